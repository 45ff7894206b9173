"""The configs that come with the program: inside the package of a wheel, beside that of a clone."""

from __future__ import annotations

from pathlib import Path

import experiment

_PACKAGE = Path(experiment.__file__).resolve().parent
_INSIDE = _PACKAGE / "configs"
CONFIGS = _INSIDE if _INSIDE.is_dir() else _PACKAGE.parent / "configs"


def find_config(name: str) -> Path:
    """The file of that name; where there is none, ``configs/NAME.toml`` is the one that we ship.

    So a documented command works in any working directory.
    """
    path = Path(name)
    shipped = CONFIGS / path.name
    ours = not path.exists() and path.parent == Path("configs") and shipped.is_file()
    return shipped if ours else path
