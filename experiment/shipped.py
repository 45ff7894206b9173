"""What comes with the program: its configs, and the name that a person calls it by.

In a clone both lie beside the package; in a wheel the configs are inside of it, and there is no
``run_experiment.py`` at all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import experiment

_PACKAGE = Path(experiment.__file__).resolve().parent
_INSIDE = _PACKAGE / "configs"
CONFIGS = _INSIDE if _INSIDE.is_dir() else _PACKAGE.parent / "configs"
DOOR = _PACKAGE.parent / "run_experiment.py"
COMMAND = "pagedkv"


def find_config(name: str) -> Path:
    """The file of that name; where there is none, ``configs/NAME.toml`` is the one that we ship.

    So a documented command works in any working directory.
    """
    path = Path(name)
    shipped = CONFIGS / path.name
    ours = not path.exists() and path.parent == Path("configs") and shipped.is_file()
    return shipped if ours else path


def program() -> tuple[str, ...]:
    """The words that start this program here: what was typed, and in a wheel what there is."""
    typed = Path(sys.argv[0]).stem == COMMAND
    return (COMMAND,) if typed or not DOOR.is_file() else ("python", DOOR.name)
