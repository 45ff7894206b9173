"""The log of a run that was resumed reads like one of a run that was not."""

from __future__ import annotations

from typing import Any

from event_makers import BATCH, PAGED, batch_arm, head, paged_arm, record

from experiment.analysis.conclusions import evaluate
from experiment.events import (
    ArmFailed,
    ArmSkipped,
    CellStarted,
    Event,
    ModelPrepared,
    Notice,
    RunFinished,
    RunResumed,
    RunStarted,
    Step,
    TokenMargin,
    TurnStarted,
)
from experiment.experiments.measured import cells_of
from experiment.measure.resume import finished_arms
from experiment.record.merged import merged_events
from experiment.text.messages import message

S = 10**9
BOOT_S = 5_000_000  # what the first machine's clock showed


def resumed(wall_s: float, t_s: float = 10, **changes: Any) -> RunResumed:
    data = {"t_ns": int(t_s * S), "version": "1", "wall_ns": int(wall_s * S), "utc_offset_s": 0,
            "command": [], "missing": [(None, PAGED)], **changes}  # fmt: skip
    return RunResumed.model_validate(data)


def begun(arms: list[str] | None = None) -> list[Event]:
    started, *others = head()
    assert isinstance(started, RunStarted)
    config = {"run": {"arms": arms or [BATCH, PAGED]}}
    update = {"t_ns": BOOT_S * S, "wall_ns": 0, "config": config}
    return [started.model_copy(update=update), *others]


def killed(events: list[Event]) -> list[Event]:
    """The first half of an arm, and that it was killed."""
    reason = message("failure.killed", signal="SIGKILL")
    half = events[: len(events) // 2]
    return [*half, ArmFailed(t_ns=BOOT_S * S, arm=PAGED, reason=reason, exit_code=-9)]


def at(event: Event, t_s: float) -> Event:
    return event.model_copy(update={"t_ns": int(t_s * S)})


def test_an_unbroken_log_is_left_as_it_is() -> None:
    events = [*begun(), *batch_arm(), *paged_arm(), RunFinished(status="complete")]
    assert list(merged_events(events)) == events


def test_the_first_attempt_stands_where_the_arm_did_not_begin_again() -> None:
    log = [*begun(), *batch_arm(), *killed(paged_arm()), resumed(60), *head()[1:]]
    results = evaluate(record(merged_events(log)))
    assert [arm.status for arm in results.arms] == ["finished", "failed"]
    assert results.arms[1].requests or results.arms[1].steps
    assert results.status == "failed"  # it broke off once more


def test_arms_stand_in_the_order_in_which_they_run() -> None:
    skipped = ArmSkipped(arm=BATCH, reason=message("skip.beams"))
    log = [*begun(), skipped, *paged_arm(), resumed(60), *batch_arm()]
    assert [arm.arm for arm in evaluate(record(merged_events(log))).arms] == [BATCH, PAGED]
    assert not [e for e in merged_events(log) if isinstance(e, ArmSkipped)]


def test_what_is_told_twice_stands_once_and_a_failed_preparation_is_forgotten() -> None:
    busy = Notice(text=message("note.busy", load=9))
    failed = ArmFailed(arm="prepare", reason=message("failure.no_end"))
    log = [*begun(), busy, failed, resumed(60), *head()[1:], busy, *batch_arm(), *paged_arm()]
    found = merged_events(log)
    assert len([e for e in found if isinstance(e, ModelPrepared)]) == 1
    assert len([e for e in found if isinstance(e, Notice)]) == 1
    assert failed not in found
    notes = [note.key for note in evaluate(record(found)).notes]
    assert notes.count("note.resumed") == 1


def test_a_difference_that_was_looked_at_later_belongs_to_its_arm() -> None:
    margin = TokenMargin(arm=PAGED, reference=BATCH, request=0, index=1, tokens=(1, 2),
                         logits=(0.5, 0.4), margin=0.1)  # fmt: skip
    old = margin.model_copy(update={"margin": 0.9})
    log = [*begun(), *batch_arm(), *killed(paged_arm()), old, resumed(60), *paged_arm(), margin]
    assert [e.margin for e in merged_events(log) if isinstance(e, TokenMargin)] == [0.1]
    log = [*begun(), *batch_arm(), *paged_arm(), resumed(60), margin]
    assert [e.margin for e in merged_events(log) if isinstance(e, TokenMargin)] == [0.1]


def test_moments_behind_a_break_follow_the_wall_clock_and_no_duration_moves() -> None:
    """The machine was restarted: its monotonic clock shows less than before."""
    first = [at(e, BOOT_S + 3) for e in begun()[1:]]
    second = paged_arm()
    log = [begun()[0], *first, resumed(wall_s=3600, t_s=10), *second]
    steps = [e for e in merged_events(log) if isinstance(e, Step)]
    before = [e for e in second if isinstance(e, Step)]
    assert [e.t_ns - e.started_ns for e in steps] == [e.t_ns - e.started_ns for e in before]
    # The step that ended 9 s before the clock showed 10 ended 3600 - 9 s after the run began.
    assert before[0].t_ns == S
    assert steps[0].t_ns == (BOOT_S + 3600 - 9) * S


def test_a_wall_clock_that_was_set_back_puts_nothing_before_what_was_there() -> None:
    first = [at(e, BOOT_S + 100) for e in begun()[1:]]
    log = [begun()[0], *first, resumed(wall_s=-9999, t_s=BOOT_S + 200)]
    assert merged_events(log)[-1].t_ns >= (BOOT_S + 100) * S


def cell(index: int) -> CellStarted:
    arms = [BATCH, PAGED]
    return CellStarted(index=index, of=2, values={"n": index}, overrides={}, arms=arms)


def test_cells_whose_arms_took_turns_are_put_together() -> None:
    """Killed in the turn of one of two that waited; what the second attempt says counts."""
    _, model, workload = head()
    half = len(paged_arm()) // 2

    def turns(group: int) -> list[list[Event]]:
        """Of either cell an arm: its beginning, and its end behind the turn of the other one."""
        first, last = paged_arm()[:half], paged_arm()[half:]
        begins = [[cell(n), model, workload, *batch_arm(), *first] for n in (0, 1)]
        ends = [[TurnStarted(cell=n, arm=PAGED, repeat=1, group=group), *last] for n in (1, 0)]
        return [*begins, *ends]

    one, two, end_two, _ = turns(1)
    broken = [begun()[0], *one, *two, *end_two[:3]]
    assert (0, PAGED) not in finished_arms(record(broken))  # so both run again
    log = [*broken, resumed(60, missing=[(0, PAGED)]), *(e for part in turns(2) for e in part),
           RunFinished(status="complete")]  # fmt: skip
    for whole in (log, merged_events(log)):
        assert {(0, PAGED), (1, PAGED)} <= finished_arms(record(whole))
    here: int | None = None
    for event in merged_events(log):  # each cell in one piece, whoever ran in between
        here = event.index if isinstance(event, CellStarted) else here
        assert not isinstance(event, TurnStarted) or event.cell == here
    plain = evaluate(record([*begun(), *batch_arm(), *paged_arm()])).arms
    for one in cells_of(record(merged_events(log))):
        arms = evaluate(one.view(0)).arms
        assert [(arm.arm, arm.status, arm.requests) for arm in arms] == [
            (arm.arm, "finished", arm.requests) for arm in plain
        ]
        assert one.group(PAGED) == 2
