"""Stand-ins for absent libraries of images: vLLM's classes can then be imported.

Python imports this at the start of every process that has the directory on its path: vLLM inspects
classes in processes of its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

LIBRARIES = ("timm", "torchvision")


class _Stub(ModuleType):
    """Any module, class, decorator or value."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub(name)

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if given and callable(given[0]) else self

    def __getitem__(self, _: Any) -> Any:
        return self

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return ()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nothing before it has found; to who asks whether it is there, it is not."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        asked_whether = sys._getframe(2).f_code.co_name == "find_spec"
        if name.partition(".")[0] not in LIBRARIES or asked_whether:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to do."""


sys.meta_path.append(_Finder())
