"""What two runs may be said to differ in, and what not; also where one did not run to its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from compare_runs import events, figure, side, write

from experiment.analysis.experiment_results import (
    CellArm,
    CellResult,
    ExperimentResult,
    FigureInfo,
    FigureValue,
)
from experiment.analysis.results import Results
from experiment.compare.facts import read_side
from experiment.compare.figures import figures_of
from experiment.compare.results import Comparison, Row, Side
from experiment.compare.sides import MAX_FIGURES, compare_sides
from experiment.events import (
    PrefixCacheUsed,
    RunStarted,
    WorkloadReady,
)
from experiment.experiments.figures import FIGURES
from experiment.text.errors import UserError
from experiment.text.messages import Message, message


def row(comparison: Comparison, figure_id: str) -> Row:
    return next(row for row in comparison.rows if row.id == figure_id)


@pytest.fixture(scope="module")
def wide_and_narrow(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Blocks of four slots, then of two: 4, 6 tokens leave 2 slots unwritten, then none."""
    place = tmp_path_factory.mktemp("runs")
    wide = write(place / "wide", events(4, began=1))
    return compare_sides(read_side(wide), read_side(write(place / "narrow", events(2, began=2))))


def test_less_waste_is_better_by_how_much_there_is_less(wide_and_narrow: Comparison) -> None:
    wasted = row(wide_and_narrow, "paged/wasted_slots")
    assert wasted.left is not None
    assert wasted.right is not None
    assert (wasted.left.value, wasted.right.value) == (2, 0)
    assert (wasted.verdict, wasted.change, wasted.improvement) == ("better", -1.0, 1.0)
    share = row(wide_and_narrow, "paged/live_share")
    assert share.verdict == "better"
    assert share.improvement == pytest.approx(0.2)


def test_the_other_way_round_it_is_worse(wide_and_narrow: Comparison) -> None:
    turned = compare_sides(wide_and_narrow.right, wide_and_narrow.left)
    wasted = row(turned, "paged/wasted_slots")
    assert (wasted.verdict, wasted.change, wasted.difference) == ("worse", None, 2)
    assert row(turned, "paged/live_share").verdict == "worse"


def test_what_has_no_better_direction_only_differs(wide_and_narrow: Comparison) -> None:
    blocks = row(wide_and_narrow, "paged/blocks")
    assert (blocks.verdict, blocks.improvement) == ("differs", None)
    assert row(wide_and_narrow, "contiguous.batch/wasted_slots").verdict == "same"
    told = [(d.group, d.name, d.left, d.right) for d in wide_and_narrow.differences]
    assert told == [("config", "cache.block_size", 4, 2)]


@pytest.mark.parametrize(
    ("before", "after", "better", "verdict", "improvement"),
    [
        ((10, 11, 12), (7, 8, 9), "less", "better", 3 / 11),
        ((10, 11, 12), (7, 8, 9), "more", "worse", -3 / 11),
        ((7, 8, 9), (10, 11, 12), "less", "worse", -3 / 8),
        ((7, 8, 9), (10, 11, 12), "more", "better", 3 / 8),
        ((7, 8, 10), (10, 11, 12), "less", "unclear", -3 / 8),
        ((7, 8, 13), (9, 10, 11), "more", "unclear", 2 / 8),
        ((8,), (10, 11, 12), "less", "single", -3 / 8),
        ((8,), (11,), "more", "single", 3 / 8),
        ((7, 9), (10, 11, 12), "less", "single", -2 / 9),
        ((10, 11, 12), (7, 9), "less", "single", 2 / 11),
        ((8,), (8,), "less", "same", 0),
        ((7, 9), (9, 7), "more", "same", 0),
        ((7, 8, 9), (8,), "less", "unclear", 0),
        ((7, 8, 9), (8, 8, 8), "more", "unclear", 0),
    ],
)
def test_a_time_is_judged_by_its_direction_and_its_spread(
    before: tuple[float, ...],
    after: tuple[float, ...],
    better: str,
    verdict: str,
    improvement: float,
) -> None:
    left = side(figure("generate_s", *before, better=better))
    found = row(
        compare_sides(left, side(figure("generate_s", *after, better=better))), "a/generate_s"
    )
    assert found.verdict == verdict
    assert found.improvement == pytest.approx(improvement)


TIMES = (100, 101, 102), (90, 91, 92)
QUICK = {"experiment.size": "quick", "experiment.margin": None}
LIMIT = "experiment.options.time_limit_s"
OTHER_MODEL = {"model": {"name": "another"}}
OTHER_CPU = {"machine": {"cpu": "another"}}
COUNT = {"kind": "count", "unit": "count"}
PLAIN = {"sampling.beam_width": 1, "workload.ignore_eos": True, "sampling.stop_token_ids": []}


def both(
    name: str, before: Sequence[float], after: Sequence[float],
    left: dict[str, Any] | None = None, right: dict[str, Any] | None = None, **about: Any,
) -> tuple[Side, Side]:  # fmt: skip
    """A figure on two sides, with what else differs between these."""
    return (
        side(figure(name, *before, **about), **(left or {})),
        side(figure(name, *after, **about), **(right or {})),
    )


def margins(before: dict[str, Any], after: dict[str, Any]) -> tuple[Side, Side]:
    return both("generate_s", *TIMES, {"config": before}, {"config": after})


def in_time(before: dict[str, Any], after: dict[str, Any]) -> tuple[Side, Side]:
    shares = (0.1, 0.2, 0.3), (0.7, 0.8, 0.9)
    configs = {"config": before}, {"config": after}
    return both("succeeded", *shares, *configs, unit="share", better="more")


def stretched(name: str, times: float) -> tuple[Side, Side]:
    """Seconds over those of all arrivals, which come as they were asked to on either side."""
    about = FIGURES[name].about
    spans = (0.99, 1.0, 1.01), (0.99 * times, times, 1.01 * times)
    return both(name, *spans, unit=about.unit, kind=about.kind, better=about.better)


SLOW, FAST = (figure("generate_s", *seen) for seen in ((10, 11, 12), (7, 8, 9)))
JUDGED = {
    # Repeats of a busy arm are slow alike, and so apart from those of a quiet machine.
    "busy before": ((side(SLOW.model_copy(update={"busy": True})), side(FAST)), "busy", None),
    "busy after": ((side(SLOW), side(FAST.model_copy(update={"busy": True}))), "busy", None),
    # A tenth less in every repeat: two processes may differ by more.
    "margin": (margins({}, {}), "unclear", None),
    "margin of quick": (margins(QUICK, {}), "unclear", None),
    "small margin": (margins({"experiment.margin": 0.05}, {"experiment.margin": 0.05}),
                     "better", None),
    "wider margin": (margins({"experiment.margin": 0.05}, {"experiment.margin": 0.2}),
                     "unclear", None),
    "margin of one": (margins({"experiment.margin": 0.05}, {}), "unclear", None),
    "memory has none": (both("rss", *TIMES, kind="measured"), "better", None),
    "a share is no time": (
        both("succeeded", (1.0, 1.0, 1.0), (0.85, 0.84, 0.86), unit="share", better="more"),
        "worse", None),
    "another machine": (both("generate_s", *TIMES, right=OTHER_CPU), "not_comparable", "machine"),
    "no machine": (both("generate_s", *TIMES, right={"machine": {}}), "not_comparable",
                   "no_machine"),
    "another model": (both("generate_s", *TIMES, right=OTHER_MODEL), "not_comparable", "model"),
    "a count elsewhere": (
        both("steps", (5,), (5,), {"config": PLAIN}, {"config": PLAIN, **OTHER_CPU, **OTHER_MODEL},
             **COUNT), "same", None),
    "two limits": (in_time({LIMIT: 10}, {LIMIT: 5}), "not_comparable", "time_limit"),
    "one limit": (in_time({LIMIT: 10}, {}), "not_comparable", "time_limit"),
    "the same limit": (in_time({LIMIT: 10}, {LIMIT: 10}), "better", None),
    "no limit": (in_time({}, {}), "better", None),
    "no matter of a limit": (
        both("latency_s", *TIMES, {"config": {LIMIT: 10, "experiment.margin": 0.05}},
             {"config": {LIMIT: 5, "experiment.margin": 0.05}}), "better", None),
    "slowest": (stretched("slowest", 1.15), "unclear", None),
    "much slower": (stretched("slowest", 1.25), "worse", None),
    # The rest is from 1 to 1.3, and all with the arrivals, which is stretched, from 2 to 2.3.
    "rest": (stretched("rest", 1.3), "unclear", None),
    "longer rest": (stretched("rest", 1.5), "worse", None),
    # Seconds over seconds of the same process.
    "later tokens": (stretched("later_tokens", 1.15), "differs", None),
    "kept up": (stretched("kept_up", 0.85), "differs", None),
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGED)
def test_what_is_said_of_a_figure(name: str) -> None:
    sides, verdict, reason = JUDGED[name]
    (found,) = compare_sides(*sides).rows
    key = found.reason.key.rpartition(".")[2] if found.reason else None
    assert (found.verdict, key) == (verdict, reason)
    assert (found.change is None) is (verdict == "not_comparable")


SCORED = [
    ({}, "equal_requests"),
    ({}, "equal_tokens"),
    ({"experiment.name": "beam"}, "saved"),
    ({"sampling.beam_width": 2}, "steps"),
    ({"workload.ignore_eos": False}, "steps"),
    ({"sampling.stop_token_ids": [5]}, "steps"),
]


@pytest.mark.parametrize(("config", "name"), SCORED)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"machine": {"cpu": "another"}}, "compare.reason.machine"),
        ({"model": {"name": "tiny", "weights_sha256": "another"}}, "compare.reason.model"),
    ],
)
def test_counts_that_scores_decide_are_those_of_a_machine_and_a_model(
    config: dict[str, object], name: str, changes: dict[str, object], reason: str | None
) -> None:
    """Another machine rounds otherwise, and another token or beam follows; a baseline too."""
    figures = (figure(name, 5, kind="count", unit="count"), figure("fits", 5, kind="count"))
    for kind in ("run", "baseline"):
        found = compare_sides(
            side(*figures, kind=kind, config=config), side(*figures, config=config, **changes)
        )
        why = row(found, f"a/{name}").reason
        assert (why.key if why else None) == reason
        assert row(found, "a/fits").verdict == "same"


def test_nothing_is_compared_between_other_requests(tmp_path: Path) -> None:
    log = events()
    changed = [
        e.model_copy(update={"requests": e.requests[:1]}) if isinstance(e, WorkloadReady) else e
        for e in log
    ]
    one, other = write(tmp_path / "one", log), write(tmp_path / "other", changed)
    found = compare_sides(read_side(one), read_side(other))
    assert found.rows
    assert {r.verdict for r in found.rows} == {"not_comparable"}


def test_what_one_run_has_not_is_unknown_with_the_reason() -> None:
    failed = figure("steps", kind="count", reason={"key": "failure.out_of_memory"})
    found = compare_sides(side(figure("steps", 5, kind="count")), side(failed))
    assert row(found, "a/steps").verdict == "unknown"
    assert row(found, "a/steps").reason.key == "failure.out_of_memory"  # type: ignore[union-attr]
    gone = compare_sides(side(figure("steps", 5, kind="count")), side())
    assert row(gone, "a/steps").reason.key == "compare.reason.not_here"  # type: ignore[union-attr]
    assert "compare.note.nothing_shared" in {note.key for note in gone.notes}


def test_the_same_run_twice_is_called_so(tmp_path: Path) -> None:
    run = read_side(write(tmp_path / "run", events()))
    found = compare_sides(run, run)
    assert found.rows
    assert {r.verdict for r in found.rows} <= {"same", "single"}
    assert not found.differences
    assert "compare.note.same_run" in {note.key for note in found.notes}


def test_half_a_run_is_compared_as_far_as_it_came(tmp_path: Path) -> None:
    log = events()
    cut = next(i for i, e in enumerate(log) if getattr(e, "arm", None) == "paged")
    half = write(tmp_path / "half", log[: cut + 1])
    with (half / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "step", "pl')
    whole, cut_short = read_side(write(tmp_path / "whole", log)), read_side(half)
    found = compare_sides(whole, cut_short)
    assert row(found, "contiguous.batch/live_slots").verdict == "same"
    assert row(found, "paged/live_slots").verdict == "unknown"
    keys = [note.key for note in found.notes]
    assert "compare.note.incomplete" in keys
    assert "compare.note.damaged" in keys
    # What "auto" came to stands at its end.
    assert not [each for each in found.differences if each.group == "config"]
    other = cut_short.model_copy(
        update={"config": {**cut_short.config, "cache.block_size": 99, "engine.kernel": "auto"}}
    )
    named = [each.name for each in compare_sides(whole, other).differences]
    assert named == ["cache.block_size"]


def test_a_run_that_knows_no_requests_is_not_compared(tmp_path: Path) -> None:
    log = events()
    broken = [e for e in log if not isinstance(e, WorkloadReady)]
    found = compare_sides(
        read_side(write(tmp_path / "a", log)), read_side(write(tmp_path / "b", broken))
    )
    assert found.rows
    assert {r.verdict for r in found.rows} <= {"not_comparable", "unknown"}


def test_other_machines_are_told_and_a_busy_one_too(tmp_path: Path) -> None:
    one = write(tmp_path / "one", events())
    other = write(tmp_path / "other", events(device_name="Other CPU", load={"busy": True}))
    found = compare_sides(read_side(one), read_side(other))
    assert ("machine", "device", "Test CPU", "Other CPU") in [
        (d.group, d.name, d.left, d.right) for d in found.differences
    ]
    assert "compare.note.busy" in {note.key for note in found.notes}


def test_other_versions_and_simulations_are_refused(tmp_path: Path) -> None:
    first, *others = events()
    assert isinstance(first, RunStarted)
    old = write(tmp_path / "old", [first.model_copy(update={"schema_version": 99}), *others])
    simulation = tmp_path / "simulation"
    simulation.mkdir()
    (simulation / "sim.json").write_text("{}", encoding="utf-8")
    for path, key in (
        (old, "error.newer_schema"),
        (simulation, "error.compare.simulation"),
        (tmp_path / "none", "error.compare.no_such"),
        (tmp_path, "error.no_record"),
    ):
        with pytest.raises(UserError) as caught:
            read_side(path)
        assert caught.value.text.key == key


def test_counts_of_requests_that_come_by_the_wall_clock_are_chance(tmp_path: Path) -> None:
    """No gate may hold by them, and no change of them is said to be one."""
    started, *others = events()
    assert isinstance(started, RunStarted)
    for clock in ("wall", "steps"):
        workload = {"arrivals": [0.0, 1.0], "clock": clock}
        begun = started.model_copy(update={"config": {**started.config, "workload": workload}})
        figures = read_side(write(tmp_path / clock, [begun, *others])).figures
        steps, blocks = figures["paged/steps"], figures["paged/blocks"]
        assert blocks.value is not None
        assert (steps.value is None) == (clock == "wall")
        assert (steps.reason is not None and steps.reason.key) == (
            "compare.reason.wall" if clock == "wall" else False
        )


PREFIX = ("prefix_queried", "prefix_found", "prefix_requeried", "prefix_found_again")


def test_what_a_preempted_request_finds_again_is_no_hit_of_a_prefix(tmp_path: Path) -> None:
    """More would be found the more are preempted, and more of it than was ever queried."""
    *log, end = events()
    used = PrefixCacheUsed(
        arm="paged", queried=8, hit_cross=2, hit_batch=1, requeried=9, hit_own=4, hit_again=2
    )
    figures = read_side(write(tmp_path / "run", [*log, used, end])).figures
    assert [figures[f"paged/{name}"].value for name in PREFIX] == [8, 3, 9, 6]
    assert [figures[f"paged/{name}"].better for name in PREFIX] == [None, "more", None, None]


def test_a_comparison_has_no_more_rows_than_a_page_can_show() -> None:
    many = side(*(figure("steps", 1, id=f"a{n}/steps", arm=f"a{n}") for n in range(MAX_FIGURES)))
    with pytest.raises(UserError) as caught:
        compare_sides(many, side(figure("steps", 1)))
    assert caught.value.text.key == "error.compare.figures"


def arm(status: Literal["finished", "failed"], reason: Message | None) -> CellArm:
    figures = {"steps": FigureValue(value=7, values=[7, 7])}
    return CellArm(arm=status, status=status, reason=reason, repeats=2, figures=figures)


def test_of_an_arm_of_a_cell_that_did_not_end_no_figure_is_known() -> None:
    """Its whole repeats are in the table of its own run, where it is said that it failed."""
    why = message("failure.no_end")
    arms = [arm("finished", None), arm("failed", why)]
    cell = CellResult.model_construct(values={"requests": 2}, arms=arms)
    info = FigureInfo(figure="steps", unit="count", kind="count", better="less")
    found = ExperimentResult.model_construct(name="capacity", cells=[cell], figures=[info])
    figures = figures_of(Results.model_construct(experiment=found, arms=[]))
    place = "capacity/requests=2"
    assert figures[f"{place}/finished/steps"].value == 7
    assert figures[f"{place}/failed/steps"].value is None
    assert figures[f"{place}/failed/steps"].reason == why
