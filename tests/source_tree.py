"""Copies of the repository for tests that change it or build from it."""

from __future__ import annotations

import shutil
from pathlib import Path

from guide_pages import ROOT

# Everything else at the top is made by tools or by runs.
PARTS = ("configs", "docs", "experiment", "kvsim", "tests", "reports/README.md")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")


def copy_tree(target: Path) -> Path:
    """Put what the repository holds into ``target``, without caches, environments and runs."""
    for path in sorted(ROOT.iterdir()):
        if path.is_file() and path.name != ".git":
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    for part in PARTS:
        source, goal = ROOT / part, target / part
        if source.is_dir():
            shutil.copytree(source, goal, ignore=_LEFT_OUT)
        else:
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, goal)
    return target
