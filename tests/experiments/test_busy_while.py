"""Other programs that come while an arm runs: a repeat loaded in its middle gets no verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from in_process import Ran
from made_up import busy_notice, why

from experiment.analysis.experiment_results import ExperimentResult
from experiment.events import (
    CellStarted,
    EnvironmentProbed,
    Event,
    RepeatFinished,
    Step,
    TurnStarted,
    Usage,
    encode,
)
from experiment.experiments.busy import others_cores
from experiment.experiments.evaluate import picture
from experiment.machine.background_load import BUSY_CORES
from experiment.record.log import EVENTS_FILE, read_record
from kvsim.core.step import StepPlan

SECOND, EVERY = 10**9, 250_000_000
# Samples of a repeat of two seconds that somebody loads in its middle.
QUIET, LOADED = [0.05] * 8, [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def told(
    samples: Sequence[Sequence[float | None]], arm: str = "paged", apart: int = SECOND
) -> list[Event]:
    """An arm with a warm-up and repeats, a sample behind every 250 ms of them."""
    events: list[Event] = [_usage(arm, 0, None)]
    at = 0
    for repeat, each in enumerate(samples):
        if repeat and apart:
            at += apart  # in between nobody generates
            events.append(_usage(arm, at, None))
        end = at + EVERY * len(each)
        used = [_usage(arm, at + EVERY * n, cores) for n, cores in enumerate(each, 1)]
        events += [
            Step(arm=arm, plan=StepPlan(0), started_ns=at, t_ns=at + 1),
            *used,
            Step(arm=arm, plan=StepPlan(0), started_ns=end - 1, t_ns=end),
            RepeatFinished(arm=arm, repeat=repeat, warm_up=not repeat, generate_s=1.0, t_ns=end),
        ]
        at = end
    return events


def _usage(arm: str, t_ns: int, cores: float | None) -> Usage:
    return Usage(arm=arm, cpu_cores=1.0, gpu_share=None, gpu_memory_share=None,
                 others_cores=cores, t_ns=t_ns)  # fmt: skip


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([QUIET, QUIET, QUIET, QUIET], None),
        ([QUIET, QUIET, LOADED, QUIET], 0.375),
        ([LOADED, QUIET, QUIET, QUIET], None),  # the warm-up is no figure
        ([QUIET, [BUSY_CORES] * 8], None),
        ([QUIET, [None, 1.0, 1.0, 1.0, 1.0, None]], 1.0),
        ([QUIET, [None] * 8], None),
        ([QUIET], None),
    ],
    ids=["quiet", "middle", "warm-up", "at the limit", "partly unknown", "unknown", "none"],
)
def test_any_measured_repeat_counts(
    samples: list[list[float | None]], expected: float | None
) -> None:
    assert others_cores(told(samples)).get("paged") == expected


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([[0.0], [1.0], [0.0], [0.0], [0.0], [0.0]], None),
        ([[0.0], [1.0], [1.0], [0.0], [0.0], [0.0]], 0.4),
        ([[0.0], [1.0]], 1.0),
        ([[1.0], [0.0]], None),
        # Beside one that is long enough to be judged by itself, which lends them no quiet.
        ([QUIET, [0.0] * 4, [1.0] * 2], 1.0),
        ([QUIET, [0.0] * 4, [1.0], [0.0], [0.0], [0.0]], None),
    ],
)
def test_repeats_that_are_too_short_are_judged_together(
    samples: list[list[float | None]], expected: float | None
) -> None:
    """A busy moment is no busy machine."""
    assert others_cores(told(samples, apart=0)).get("paged") == expected


def test_between_two_short_repeats_nobody_was_measured() -> None:
    events = told([[0.0], [0.0], [0.0]])
    assert others_cores(events) == {}
    at = [n for n, event in enumerate(events) if isinstance(event, RepeatFinished)][1]
    events.insert(at + 1, _usage("paged", events[at].t_ns + SECOND // 2, 99.0))
    assert others_cores(events) == {}


def test_repeats_that_are_shorter_than_a_sample_are_within_it() -> None:
    """Three of them in 90 ms, and what is sampled 160 ms later."""
    millisecond = 10**6
    events: list[Event] = [_usage("paged", 0, None)]
    for repeat in range(4):
        begin = (10 + 30 * repeat) * millisecond
        end = begin + 20 * millisecond
        events += [
            Step(arm="paged", plan=StepPlan(0), started_ns=begin, t_ns=end),
            RepeatFinished(arm="paged", repeat=repeat, warm_up=not repeat, generate_s=0.02),
        ]
    assert others_cores(events) == {}
    assert others_cores([*events, _usage("paged", EVERY, 0.2)]) == {}
    assert others_cores([*events, _usage("paged", EVERY, 1.5)]) == {"paged": pytest.approx(1.5)}


def test_of_a_sample_the_part_within_the_repeat_counts() -> None:
    """A fifth of a repeat of a second lies in the first sample, the rest in the second."""
    begin, end = SECOND, 2 * SECOND
    events = [
        _usage("paged", 0, None),
        Step(arm="paged", plan=StepPlan(0), started_ns=begin, t_ns=end),
        _usage("paged", begin + SECOND // 5, 1.0),
        _usage("paged", 9 * SECOND, 0.5),
        RepeatFinished(arm="paged", repeat=1, warm_up=False, generate_s=1.0),
    ]
    assert others_cores(events) == {"paged": pytest.approx(0.6)}


def test_what_was_used_in_the_turns_of_others_is_no_business_of_an_arm() -> None:
    """Between two of its repeats another arm ran for a second; a short sample ends each turn."""

    def repeat(number: int, at: int, cores: float) -> list[Event]:
        end = at + SECOND // 10
        return [
            TurnStarted(cell=0, arm="paged", repeat=number, group=1, t_ns=at),
            Step(arm="paged", plan=StepPlan(0), started_ns=at, t_ns=end),
            RepeatFinished(arm="paged", repeat=number, warm_up=False, generate_s=0.1, t_ns=end),
            _usage("paged", end, cores),
        ]

    def other(at: int) -> Event:
        return TurnStarted(cell=0, arm="slabs", repeat=1, group=1, t_ns=at)

    def told_in_turns(cores: float) -> list[Event]:
        return [*repeat(1, SECOND, 0.0), other(2 * SECOND), *repeat(2, 3 * SECOND, cores)]

    assert others_cores(told_in_turns(0.0)) == {}
    # Half of what is judged, since the time in between is none of it.
    assert others_cores(told_in_turns(1.0)) == {"paged": pytest.approx(0.5)}


@pytest.mark.parametrize(("began", "expected"), [(0.3, 0.375), (0.5, 0.5)])
def test_of_its_beginning_and_its_repeats_the_larger_counts(began: float, expected: float) -> None:
    cell = CellStarted(index=0, of=1, values={}, overrides={}, arms=["paged"])
    events = [busy_notice(cell, "paged", began), *told([QUIET, LOADED])]
    assert others_cores(events) == {"paged": expected}
    assert others_cores(events[:1]) == {"paged": began}
    assert others_cores([events[0], *told([QUIET, QUIET])]) == {"paged": began}


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([QUIET, QUIET], {}),
        ([QUIET, [None] * 8], {"paged": 0.75}),
        ([QUIET, LOADED], {"paged": 0.375}),
    ],
    ids=["left alone", "not sampled", "disturbed"],
)
def test_what_was_seen_before_the_run_decides_where_no_repeat_was_sampled(
    samples: list[list[float | None]], expected: dict[str, float]
) -> None:
    probed = EnvironmentProbed(environment={"load": {"others_cores": 0.75}})
    assert others_cores([probed, *told(samples)]) == expected


def test_arms_are_told_apart_and_what_lies_between_repeats_is_left_out() -> None:
    events = [*told([QUIET, LOADED], "slabs"), *told([QUIET, QUIET])]
    at = next(n for n, event in enumerate(events)
              if isinstance(event, RepeatFinished) and event.arm == "paged")  # fmt: skip
    events.insert(at + 1, _usage("paged", events[at].t_ns + SECOND // 2, 99.0))
    events.append(_usage("paged", events[-1].t_ns + SECOND, 99.0))
    assert others_cores(events) == {"slabs": 0.375}


def sampled(two_arms: Ran, place: Path, cores: Mapping[tuple[str, int], float]) -> ExperimentResult:
    """The result of the same log, its clock slower by far, with samples in each repeat.

    0.1 core where none is named.
    """
    events: list[Event] = []
    began: dict[str, int] = {}
    for event in map(_slowed, two_arms.record.events):
        if isinstance(event, Step):
            began.setdefault(event.arm, event.started_ns)
            last = event.t_ns
        elif isinstance(event, RepeatFinished):
            first = began.pop(event.arm)
            assert last - first > SECOND
            used = cores.get((event.arm, event.repeat), 0.1)
            events.append(_usage(event.arm, first, None))
            events += [_usage(event.arm, first + (last - first) * n // 4, used) for n in (1, 2, 4)]
        events.append(event)
    (place / EVENTS_FILE).write_text("".join(f"{encode(e)}\n" for e in events), encoding="utf-8")
    result = picture(read_record(place))[1].experiment
    assert result is not None
    return result


def _slowed(event: Event) -> Event:
    times = {"t_ns": event.t_ns * 10_000}
    if isinstance(event, Step):
        times["started_ns"] = event.started_ns * 10_000
    return event.model_copy(update=times)


def test_left_alone_it_keeps_its_verdict(two_arms: Ran, tmp_path: Path) -> None:
    result = sampled(two_arms, tmp_path, {("paged", 0): 2.0})  # its warm-up was not
    assert [arm.others_cores for arm in result.cells[0].arms] == [None, None]
    assert result.findings == two_arms.result.findings
    assert result.notes == two_arms.result.notes


@pytest.mark.parametrize("arm", ["slabs", "paged"])
def test_one_repeat_loaded_in_its_middle_takes_the_verdict(
    two_arms: Ran, tmp_path: Path, arm: str
) -> None:
    result = sampled(two_arms, tmp_path, {(arm, 2): 0.75})
    assert {one.arm: one.others_cores for one in result.cells[0].arms} == {
        "slabs": None, "paged": None, arm: 0.75
    }  # fmt: skip
    (note,) = [note for note in result.notes if note.key == "experiments.note.busy"]
    assert note.params == {"n": 1, "of": 2, "cores": 0.75}
    seen = {finding.id: finding for finding in result.findings}
    assert why(seen["throughput"]) == "busy"
    assert seen["preempting"] == {one.id: one for one in two_arms.result.findings}["preempting"]
