"""A run is held against its gate whatever it takes to read it: it has just been drawn."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from compare_runs import events

from experiment.commands import walkthrough
from experiment.commands.main import main
from experiment.events import encode
from experiment.record.log import EVENTS_FILE
from experiment.text.errors import ExitCode


@pytest.mark.parametrize(("most", "code"), [(8, ExitCode.OK), (1, ExitCode.GATE)])
def test_a_gate_is_judged_by_the_run_of_this_process_whatever_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, code: int
) -> None:
    """For a run of someone else there is a limit, which a log in full size may exceed."""
    out, gate = tmp_path / "out", tmp_path / "gate.toml"
    gate.write_text(f'[limits]\n"paged/blocks" = {{ max = {most} }}\n', encoding="utf-8")

    def measure(*_: object) -> int:
        text = "".join(encode(event) + "\n" for event in events())
        (out / EVENTS_FILE).write_text(text, encoding="utf-8")
        monkeypatch.setattr("experiment.files.parse_memory._CHECK_BYTES", 1)
        monkeypatch.setenv("PAGEDKV_MEMORY", "1B")
        return ExitCode.OK

    monkeypatch.setattr(walkthrough, "measure", measure)
    drawn = SimpleNamespace(experiment=None)
    monkeypatch.setattr(walkthrough, "render_ended", lambda *_: drawn)  # tested elsewhere
    words = ["--yes", "--model", "tiny-gpt2", "--gate", str(gate), "--out", str(out)]
    assert main([*words, "--lang", "en"]) == code
