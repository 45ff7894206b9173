"""Configs that come with the program, and the command that starts it.

In a clone both are beside the package. A wheel contains the configs and no ``run_experiment.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import experiment
from experiment.text.errors import unknown
from kvsim.base.spelling import nearest

_PACKAGE = Path(experiment.__file__).resolve().parent
_INSIDE = _PACKAGE / "configs"
CONFIGS = _INSIDE if _INSIDE.is_dir() else _PACKAGE.parent / "configs"
ENTRY_SCRIPT = _PACKAGE.parent / "run_experiment.py"
COMMAND = "pagedkv"


def config_names() -> tuple[str, ...]:
    """Names of the shipped configs of runs and sweeps (``sweep-...``)."""
    return tuple(name for name in _names(".toml") if not name.startswith("gate-"))


def find_config(name: str, suffix: str = ".toml") -> Path:
    """Path of a config file; falls back to the shipped file of that name.

    ``quick`` and ``configs/quick.toml`` name the shipped config in any working directory. So do
    gates and, with the suffix ``.json``, baselines.

    Raises:
        UserError: neither exists, and a shipped one has a similar name.
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
    """The command that starts this program: as typed, or the one that is installed."""
    typed = Path(sys.argv[0]).stem == COMMAND
    return (COMMAND,) if typed or not ENTRY_SCRIPT.is_file() else ("python", ENTRY_SCRIPT.name)
