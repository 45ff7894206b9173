"""The bookkeeping stands alone: whoever imports it gets no torch, no console, no experiment."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import kvsim

ROOT = Path(kvsim.__file__).resolve().parent.parent
MODULES = [module.name for module in pkgutil.walk_packages(kvsim.__path__, "kvsim.")]
FORBIDDEN = {"torch", "experiment", "rich", "transformers"}


def top_levels_after(modules: list[str]) -> set[str]:
    """Names of the top-level packages that a fresh interpreter holds after importing."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    return set(json.loads(done.stdout))


def test_the_modules_are_found() -> None:
    assert {
        "kvsim.core.blocks",
        "kvsim.core.scheduler",
        "kvsim.accounting.ledger",
        "kvsim.core.step",
    } <= set(MODULES)


def test_no_module_imports_anything_heavy() -> None:
    assert top_levels_after(MODULES) & FORBIDDEN == set()
