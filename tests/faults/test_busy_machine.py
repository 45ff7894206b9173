"""Commands on a machine that other programs keep busy: said once, at once, with a choice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from programs import ROOT, Starter
from sweeps import full

from experiment.text.errors import ExitCode

CONFIG = str(ROOT / "configs" / "capacity.toml")
CAPACITY = ("--config", CONFIG, "--quick", "--arms", "slabs,paged", "--yes")


def results(out: Path) -> tuple[dict[str, Any], list[str]]:
    """What the summary holds, and the keys of what it says of a busy machine."""
    found: dict[str, Any] = json.loads((out / "run.json").read_text(encoding="utf-8"))["results"]
    notes = [*found["notes"], *(found["experiment"] or {"notes": []})["notes"]]
    return found, [note["key"] for note in notes if "busy" in note["key"]]


@pytest.mark.parametrize("words", [pytest.param(("--yes",), marks=full), CAPACITY])
def test_a_run_says_it_once_and_its_report_in_one_sentence(
    start: Starter, words: tuple[str, ...]
) -> None:
    program = start(*words, others=[1.5])
    code, printed, err = program.end()
    assert (code in (ExitCode.OK, ExitCode.INCOMPLETE), err) == (True, "")
    assert len(re.findall(r"ackground\s+load:\s+1\.50\s+cores", printed)) == 1
    assert len(results(program.out)[1]) == 1


@pytest.mark.parametrize(("typed", "waits"), [pytest.param("", False, marks=full), ("w", True)])
def test_at_a_terminal_one_may_wait_until_it_is_quiet(
    start: Starter, typed: str, waits: bool
) -> None:
    others = [1.5, 1.5, 1.5, 0.0, 1.5, 0.0]  # one quiet look among busy ones is not enough
    program = start("--ascii", terminal=True, others=others)
    for seen, answer in (("w and Enter", typed), ("q quits", "q")):
        program.read_until(seen)
        program.answer(answer)
    program.read_until("report.html")
    assert program.end()[0] == ExitCode.OK
    found, notes = results(program.out)
    assert found["environment"]["load"]["others_cores"] == (0.0 if waits else 1.5)
    assert bool(notes) is not waits
