"""What comes with the program: its configs, and the name that a person calls it by.

In a clone both lie beside the package; in a wheel the configs are inside of it, and there is no
``run_experiment.py`` at all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import experiment
from experiment.text.errors import unknown
from kvsim.spelling import nearest

_PACKAGE = Path(experiment.__file__).resolve().parent
_INSIDE = _PACKAGE / "configs"
CONFIGS = _INSIDE if _INSIDE.is_dir() else _PACKAGE.parent / "configs"
DOOR = _PACKAGE.parent / "run_experiment.py"
COMMAND = "pagedkv"


def config_names() -> tuple[str, ...]:
    """Names of the configs that come with the program: of runs, and of sweeps (``sweep-...``)."""
    return tuple(name for name in _names(".toml") if not name.startswith("gate-"))


def find_config(name: str, suffix: str = ".toml") -> Path:
    """The file of that name; where there is none, the one that we ship under it.

    ``quick`` and ``configs/quick.toml`` are ours in any working directory; so are gates, and with
    the suffix ``.json`` baselines.

    Raises:
        UserError: there is neither, and one that we ship has nearly that name.
    """
    path = Path(name)
    if path.is_file():
        return path
    if name in _names(suffix):
        return CONFIGS / f"{name}{suffix}"
    shipped = CONFIGS / path.name
    if path.parent == Path("configs") and shipped.is_file():
        return shipped
    if not path.exists() and (near := nearest(path.stem, _names(suffix))):
        raise unknown("config", name, near, near=near)
    return path


def _names(suffix: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in CONFIGS.glob(f"*{suffix}")))


def program() -> tuple[str, ...]:
    """The words that start this program here: what was typed, and in a wheel what there is."""
    typed = Path(sys.argv[0]).stem == COMMAND
    return (COMMAND,) if typed or not DOOR.is_file() else ("python", DOOR.name)
