"""A working directory full of what must not be run, and a look into the processes of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECRET = "S3CRET"
_NAMES = ("json", "torch", "psutil", "numba", "pickle", "socket", "multiprocessing", "experiment")
# In a module of the import path processes say what they are and which secrets they have.
_CUSTOM = """
import os, sys
secrets = sorted(name for name, value in os.environ.items() if {secret!r} in value)
open({seen!r}, "a").write(" ".join([*sys.orig_argv[1:], *secrets]) + "\\n")
"""


def make_hostile(at: Path) -> Path:
    """A directory with modules and an interpreter that leave a mark, ``at / "ran"``, if run."""
    place = at / "hostile"
    (place / "experiment").mkdir(parents=True)
    for name in _NAMES:
        path = place / name / "__init__.py" if name == "experiment" else place / f"{name}.py"
        path.write_text(f"open({str(at / 'ran')!r}, 'a').write({name!r})", encoding="utf-8")
    python = place / ".venv-vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho python >>{at / 'ran'}\n", encoding="utf-8")
    python.chmod(0o755)
    (place / ".numba_config.yaml").write_text("a: [1\n", encoding="utf-8")
    (place / "matplotlibrc").write_text(
        "\x1b[31m: 5\ntext.usetex: True\nsavefig.dpi: 1234\n", encoding="utf-8"
    )
    write_trace(place / "trace.jsonl")
    return place


def write_trace(path: Path) -> None:
    rows = ({"timestamp": n, "input_length": 9, "output_length": 3} for n in range(1, 20))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@dataclass(frozen=True)
class Ended:
    """A program that ran in a hostile place: how it ended, and what its processes had."""

    code: int
    errors: str
    marks: str
    children: list[str]


def run_in(place: Path, at: Path, words: Sequence[object], variables: Mapping[str, str]) -> Ended:
    """Run the program in a hostile place that was made ``at``."""
    seen, ran = at / "seen", at / "ran"
    (at / "path").mkdir()
    custom = _CUSTOM.format(secret=SECRET, seen=str(seen))
    (at / "path" / "sitecustomize.py").write_text(custom, encoding="utf-8")
    environment = {**os.environ, **variables, "PYTHONPATH": str(at / "path")}
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), *map(str, words), "--lang", "en"],
        cwd=place, env=environment, capture_output=True, encoding="utf-8", check=False,
        timeout=500, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    marks = ran.read_text(encoding="utf-8") if ran.exists() else ""
    _, *children = seen.read_text(encoding="utf-8").splitlines()
    return Ended(done.returncode, done.stderr, marks, children)


def holding(directory: Path, text: str) -> list[str]:
    """Files below a directory that hold a text."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert len(files) > 5
    return [str(p.relative_to(directory)) for p in files if text.encode() in p.read_bytes()]
