"""Other programs that are busy as an arm begins: they are seen, written down and told once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import run, tiny_config

from experiment import lead, noise
from experiment.events import ArmStarted, CellStarted, Event, Notice
from experiment.experiments import busy
from experiment.experiments.evaluate import picture
from experiment.experiments.measured import cells_of
from experiment.i18n import LANGUAGES, Translator
from experiment.messages import arm_message, message
from experiment.record import EVENTS_FILE, read_record


@pytest.mark.parametrize(
    ("seen", "expected", "unused"),
    [
        ((0.0, 1.0, 1.0), None, 2),
        ((1.0, 0.2, 1.0), None, 1),
        ((1.0, 0.5, 0.75), 0.5, 0),
        ((None, 1.0, 1.0), None, 2),
    ],
)
def test_what_others_keep_busy_takes_more_than_one_look(
    monkeypatch: pytest.MonkeyPatch,
    seen: tuple[float | None, ...],
    expected: float | None,
    unused: int,
) -> None:
    left = list(seen)
    monkeypatch.setattr(noise, "others_cores", lambda: left.pop(0))
    assert noise.kept_busy() == expected
    assert len(left) == unused


@dataclass
class Told:
    """Stands in for the session and its console: what is written down, and which arms run when."""

    events: list[Event] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self.order.append("notice")

    def run_arm(self, arm: str, *_: Any) -> None:
        self.order.append(arm)

    def begin(self, *_: Any) -> None: ...

    def end(self) -> None: ...


def test_an_arm_is_looked_at_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = [None, 1.5]
    monkeypatch.setattr(lead, "kept_busy", lambda: cores.pop(0))
    told = Told()
    started = CellStarted(index=1, of=2, values={}, overrides={}, arms=["slabs", "paged"])
    given = SimpleNamespace(prepared=None, refused={})
    run_cell: Any = lead._run_cell
    run_cell(told, told, started, None, None, given, ["slabs", "paged"])
    assert told.order == ["slabs", "notice", "paged"]
    (notice,) = told.events
    assert isinstance(notice, Notice)
    assert busy.is_busy(notice)
    for lang in LANGUAGES:
        text = Translator(lang).message(notice.text)
        assert "1.50" in text
        assert "{" not in text


def test_of_all_arms_it_is_told_once_and_with_advice(tmp_path: Path) -> None:
    config = tiny_config(
        "capacity",
        experiment__values=[2],
        experiment__options={"lengths": [[5, 4]]},
        cache__max_length=64,
        cache__block_size=4,
        cache__budget=2 * 64 * 1024,
        run__arms=["slabs", "paged"],
    )
    quiet = run(config, tmp_path / "quiet")
    assert not quiet.result.noisy
    log = (quiet.record.directory / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    lines = []
    for line in log:
        event = json.loads(line)
        if event["event"] == "arm_started":
            cores = 0.5 if event["arm"] == "slabs" else 1.25
            arm = arm_message(event["arm"]).model_dump()
            text = message("experiments.note.busy_arm", cell=1, arm=arm, cores=cores)
            lines.append(Notice(text=text).model_dump_json())
        lines.append(line)
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / EVENTS_FILE).write_text("\n".join([*lines, ""]), encoding="utf-8")
    record = read_record(tmp_path / "busy")
    (cell,) = cells_of(record)
    assert len(cell.view(1).of(ArmStarted)) == 2
    assert not cell.view(1).of(Notice)
    results = picture(record)[1]
    assert results.experiment is not None
    assert results.experiment.noisy
    told = [note for note in results.experiment.notes if note.key == "experiments.note.busy"]
    assert [note.params for note in told] == [{"n": 2, "of": 2, "cores": 1.25}]
    assert results.experiment.problems == []
    assert not [note for note in results.notes if note.key.startswith("experiments.note.busy")]
