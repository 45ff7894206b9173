"""Puts the program's own output under each command of a page: ``make plan-page``."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

from start_logs import STARTED, TOO_LONG

from experiment.commands.main import main

ROOT = Path(__file__).parents[2]
PAGES = ("docs/plan.md", "README.md", "README.zh.md")
_LOGS = {"vllm.log": STARTED, "failed.log": TOO_LONG}
_BLOCK = re.compile(r"```console\n\$ python run_experiment\.py (.*)\n(?:.*\n)*?```\n")


def filled(text: str, lang: str = "en") -> str:
    """The page with today's outputs, at 80 columns."""
    return _BLOCK.sub(
        lambda block: (
            f"```console\n$ python run_experiment.py {block[1]}\n{_output(block[1], lang)}```\n"
        ),
        text,
    )


def page_text(page: Path) -> str:
    """A page as it should be."""
    lang = "zh" if page.stem.endswith(".zh") else "en"
    return filled(page.read_text(encoding="utf-8"), lang)


def _output(words: str, lang: str) -> str:
    out, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with (
            tempfile.TemporaryDirectory() as place,
            contextlib.chdir(place),
            contextlib.redirect_stdout(out),
        ):
            for name, log in _LOGS.items():
                Path(name).write_text(log, encoding="utf-8")
            main([*shlex.split(words), "--lang", lang])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines()) + "\n"


if __name__ == "__main__":
    for page in map(ROOT.joinpath, PAGES):
        page.write_text(page_text(page), encoding="utf-8")
