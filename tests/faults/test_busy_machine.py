"""Commands on a machine that other programs keep busy: said once, at once, with a choice."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from programs import Starter, in_a_terminal, read_until
from sweeps import full

from experiment.text.errors import ExitCode

CAPACITY = ("--config", "configs/capacity.toml", "--quick", "--arms", "slabs,paged", "--yes")


def times_said(printed: str) -> int:
    """How often it is said how many cores others keep busy, but for tables."""
    return len(re.findall(r"ackground\s+load:\s+1\.50\s+cores", printed))


def results(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert isinstance(found["results"], dict)
    return found["results"]


def notes(out: Path) -> list[str]:
    """Keys of what the report says of it."""
    found = results(out)
    own = found["experiment"]
    told = [*found["notes"], *(own["notes"] if own else [])]  # type: ignore[index, misc]
    return [note["key"] for note in told if "busy" in note["key"]]


@pytest.mark.parametrize("words", [pytest.param(("--yes",), marks=full), CAPACITY])
def test_a_run_says_it_once_and_its_report_in_one_sentence(
    start: Starter, words: tuple[str, ...]
) -> None:
    program = start(*words, "--out", str(start.place / "out"), others=[1.5])
    code, printed, err = program.end()
    assert (code in (ExitCode.OK, ExitCode.INCOMPLETE), err) == (True, "")
    assert times_said(printed) == 1
    assert len(notes(program.out)) == 1


@pytest.mark.parametrize(("typed", "waits"), [pytest.param("", False, marks=full), ("w", True)])
def test_at_a_terminal_one_may_wait_until_it_is_quiet(
    start: Starter, typed: str, waits: bool
) -> None:
    others = [1.5, 1.5, 1.5, 0.0, 1.5, 0.0]  # one quiet look among busy ones is not enough
    program, terminal = in_a_terminal(start, "--ascii", others=others)
    read_until(terminal, "w and Enter")
    os.write(terminal, f"{typed}\n".encode())
    read_until(terminal, "q quits")
    os.write(terminal, b"q\n")
    read_until(terminal, "report.html")
    assert program.process.wait(60) == ExitCode.OK
    os.close(terminal)
    load = results(program.out)["environment"]["load"]  # type: ignore[index]
    assert load["others_cores"] == (0.0 if waits else 1.5)
    assert bool(notes(program.out)) is not waits
