"""Other programs that are busy as an arm begins or runs: seen, written down and told once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import Ran
from made_up import busy_notice, why

from experiment.compare.facts import read_side
from experiment.compare.sides import compare_sides
from experiment.config.schema import Config, make_config
from experiment.events import (
    ArmStarted,
    CellStarted,
    Event,
    Notice,
    RunResumed,
    TurnAwaited,
    encode,
)
from experiment.experiments import busy
from experiment.experiments.evaluate import picture
from experiment.experiments.measured import cells_of
from experiment.machine import background_load as noise
from experiment.measure import cells
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.record.merged import merged_events
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.console.results import show_results
from experiment.report.page.page import report_html
from experiment.runner.interleave import ArmCoroutine, Interleaver
from experiment.text import Translator
from experiment.text.messages import message


@pytest.mark.parametrize(
    ("seen", "expected", "unused"),
    [
        ((0.0, 1.0, 1.0), 0.0, 2),
        ((1.0, 0.125, 1.0), 0.125, 1),
        ((1.0, 0.5, 0.75), 0.5, 0),
        ((1.0, 2.0, 3.0), 1.0, 0),
        ((None, 1.0, 1.0), None, 2),
        ((1.0, None, 1.0), None, 1),
    ],
)
def test_what_others_keep_busy_takes_more_than_one_look(
    monkeypatch: pytest.MonkeyPatch,
    seen: tuple[float | None, ...],
    expected: float | None,
    unused: int,
) -> None:
    """The least of them is told, also where it is quiet; nobody busy is not nobody knows."""
    left = list(seen)
    monkeypatch.setattr(noise, "others_cores", lambda: left.pop(0))
    assert noise.min_background_load() == expected
    assert len(left) == unused


@dataclass
class Told:
    """Stands in for the session and its console: what is written down, and which arms run when."""

    events: list[Event] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    repeats: int = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self.order.append("notice")

    def arm_coroutine(self, arm: str, *_: Any) -> ArmCoroutine[None]:
        self.order.append(arm)
        for repeat in range(1, self.repeats + 1):
            yield TurnAwaited(arm=arm, repeat=repeat)
            self.order.append(f"{arm} {repeat}")
        return None

    def begin(self, *_: Any) -> None: ...

    def end(self) -> None: ...


def begun_cell(told: Told, config: Config, device: str = "cpu") -> None:
    """Of a cell whose arms are slabs and blocks, as it is led."""
    started = CellStarted(index=1, of=2, values={}, overrides={}, arms=["slabs", "paged"])
    given = SimpleNamespace(prepared=None, refused={})
    begin: Any = cells._begin_cell
    with Interleaver[None](lambda turn, repeat: None) as turns:
        environment = SimpleNamespace(device=device)
        begin(told, told, started, config, environment, given, ["slabs", "paged"], turns)
        turns.run()


@pytest.mark.parametrize(
    ("changes", "device", "room", "order"),
    [
        ({}, "cpu", True, ["slabs", "paged", "slabs 1", "paged 1"]),
        ({}, "cuda", True, ["slabs", "slabs 1", "paged", "paged 1"]),
        ({"turns": False}, "cpu", True, ["slabs", "slabs 1", "paged", "paged 1"]),
        # Behind the turn of another cell the log says which one goes on.
        ({}, "cpu", False, ["slabs", "slabs 1", "notice", "paged", "paged 1"]),
    ],
)
def test_arms_take_turns_where_they_may(
    changes: dict[str, Any], device: str, room: bool, order: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not room:
        monkeypatch.setattr(Interleaver, "has_room", lambda self, more: not self._coroutines)
    told = Told(repeats=1)
    begun_cell(told, make_config({"experiment": {"name": "capacity", **changes}}), device)
    assert told.order == order
    assert [type(event) for event in told.events] == ([] if room else [CellStarted])


def with_notices(two_arms: Ran, place: Path, cores: Mapping[str, float]) -> Record:
    """The log of the same run as it is where other programs were seen as these arms began."""
    log = (two_arms.record.directory / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    (started,) = (cell.started for cell in cells_of(two_arms.record))
    lines = []
    for line in log:
        event = json.loads(line)
        if event["event"] == "arm_started" and event["arm"] in cores:
            arm = event["arm"]
            lines.append(encode(busy_notice(started, arm, cores[arm])))
        lines.append(line)
    (place / EVENTS_FILE).write_text("\n".join([*lines, ""]), encoding="utf-8")
    return read_record(place)


def test_of_all_arms_it_is_told_once_and_with_advice(two_arms: Ran, tmp_path: Path) -> None:
    assert not [note for note in two_arms.result.notes if note.key == "experiments.note.busy"]
    record = with_notices(two_arms, tmp_path, {"slabs": 0.5, "paged": 1.25})
    (cell,) = cells_of(record)
    assert len(cell.view(1).of(ArmStarted)) == 2
    assert not cell.view(1).of(Notice)
    results = picture(record)[1]
    assert results.experiment is not None
    told = [note for note in results.experiment.notes if note.key == "experiments.note.busy"]
    # With no other note on times: those of three repeats may scatter, too.
    assert results.experiment.model_copy(update={"notes": told}).noisy
    assert [note.params for note in told] == [{"n": 2, "of": 2, "cores": 1.25}]
    assert results.experiment.problems == []
    assert not [note for note in results.notes if note.key.startswith("experiments.note.busy")]


@pytest.mark.parametrize("arm", ["slabs", "paged"])
def test_a_time_of_an_arm_that_began_busy_gets_no_verdict(
    two_arms: Ran, tmp_path: Path, arm: str
) -> None:
    record = with_notices(two_arms, tmp_path, {arm: 0.75})
    result = picture(record)[1].experiment
    assert result is not None
    (cell,) = result.cells
    assert {one.arm: one.others_cores for one in cell.arms} == {
        "slabs": None, "paged": None, arm: 0.75
    }  # fmt: skip
    before = {finding.id: finding for finding in two_arms.result.findings}
    after = {finding.id: finding for finding in result.findings}
    assert before["throughput"].verdict in ("shown", "not_shown")
    assert why(after["throughput"]) == "busy"
    assert (after["at_once"].verdict, after["preempting"]) == (
        before["at_once"].verdict, before["preempting"]
    )  # fmt: skip
    assert [one.figures for one in cell.arms] == [
        one.figures for one in two_arms.result.cells[0].arms
    ]


@pytest.mark.parametrize("arm", ["slabs", "paged"])
def test_where_the_gain_comes_from_is_not_told_of_an_arm_that_began_busy(
    two_arms: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str], arm: str
) -> None:
    """In the page and on the console there is a dash, with the reason."""
    (_, before) = two_arms.results.gains
    open_ = message("gains.not_apart")  # of so short a run repeats may tell nothing either
    assert before.reason == (open_ if before.factor is None else None)
    shown, results = picture(with_notices(two_arms, tmp_path, {arm: 0.75}))
    slabs, paged = results.gains
    assert (slabs.reason, paged.factor, paged.step) == (None, None, "paging")
    assert paged.reason == message("experiments.busy")
    t = Translator("en")
    told_why = t.message(paged.reason)
    for page, told in ((report_html(two_arms.shown, two_arms.results, "en"), False),
                       (report_html(shown, results, "en"), True)):  # fmt: skip
        ladder = page.partition('id="gains"')[2].partition("</table>")[0]
        assert (told_why in ladder) is told
        assert ('class="dash"' in ladder) is (told or before.factor is None)
    show_results(ConsoleReporter("en"), results.model_copy(update={"experiment": None}), [])
    printed = " ".join(capsys.readouterr().out.split())
    assert t("console.note", text=told_why) in printed


def test_of_an_arm_that_ran_again_the_later_attempt_was_busy_or_not(
    two_arms: Ran, tmp_path: Path
) -> None:
    """A notice belongs to its arm, so a broken-off attempt takes its own with it."""
    events = list(with_notices(two_arms, tmp_path, {"slabs": 0.5, "paged": 1.25}).events)
    at = {
        arm: next(i for i, event in enumerate(events)
                  if isinstance(event, Notice) and event.arm == arm)
        for arm in ("slabs", "paged")
    }  # fmt: skip
    first, broken, rest = (
        events[: at["paged"]], events[at["paged"] : at["paged"] + 3], events[at["paged"] + 1 :]
    )  # fmt: skip
    started = next(event for event in events if isinstance(event, CellStarted))
    resumed = RunResumed(version="1", wall_ns=2**62, utc_offset_s=0, command=[],
                         missing=[(0, "paged")])  # fmt: skip
    log = merged_events([*first, *broken, resumed, started, *rest])
    assert busy.others_cores(log) == {"slabs": 0.5}
    again = events[at["paged"] :]
    log = merged_events([*first, *rest[:2], resumed, started, *again])
    assert busy.others_cores(log) == {"slabs": 0.5, "paged": 1.25}


@pytest.mark.parametrize("busy_side", ["left", "right"])
def test_two_runs_side_by_side_get_no_verdict_on_its_times_either(
    two_arms: Ran, tmp_path: Path, busy_side: str
) -> None:
    """On those of the other arm they do, and on all counts."""
    record = with_notices(two_arms, tmp_path, {"slabs": 0.75})
    sides = [read_side(record.directory), read_side(two_arms.record.directory)]
    found = compare_sides(*(sides if busy_side == "left" else reversed(sides)))
    assert {row.figure.kind for row in found.rows} >= {"time", "count"}
    for row in found.rows:
        left, right = row.left, row.right
        assert left is not None
        assert right is not None
        assert {left.busy, right.busy} == (
            {True, False} if (row.figure.arm, row.figure.kind) == ("slabs", "time") else {False}
        ), row.id
