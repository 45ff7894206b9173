"""Keep libraries from reading settings out of the working directory.

Matplotlib reads ``./matplotlibrc`` on import, Numba ``./.numba_config.yaml`` on import and before
each compilation. Either would change figures or measurements, or fail on a broken file. Settings
from the environment and from the home directory still apply.

Any Python 3 must be able to parse this file; it imports only the standard library.
"""

import os
import sys
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path

if False:  # for type checkers
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_FILES = {"matplotlib": "matplotlibrc", "numba": ".numba_config.yaml"}


class _Finder:
    """Finds these libraries as usual, and imports them from another working directory."""

    @staticmethod
    def find_spec(
        name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """See :class:`importlib.abc.MetaPathFinder`."""
        file = _FILES.get(name)
        spec = PathFinder.find_spec(name, path, target) if file else None
        if file is None or spec is None or spec.loader is None:
            return None
        _wrap(spec, name, file)
        return spec


def _wrap(spec: "ModuleSpec", name: str, file: str) -> None:
    loader = spec.loader
    assert loader is not None
    load = loader.exec_module

    def exec_module(module: "ModuleType") -> None:
        with _elsewhere(file):
            load(module)
        if name == "numba":
            vars(sys.modules["numba.core.config"])["_config_fname"] = os.devnull

    vars(loader)["exec_module"] = exec_module


def ignore_local_settings() -> None:
    """Make later imports of these libraries ignore the working directory; once is enough."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


@contextmanager
def _elsewhere(file: str) -> "Iterator[None]":
    """Leave the working directory in the block if it has such a file."""
    if not os.path.lexists(file):
        yield
        return
    here = Path.cwd()
    os.chdir(str(Path(__file__).resolve().parent))
    try:
        yield
    finally:
        os.chdir(str(here))
