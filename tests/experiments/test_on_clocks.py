"""Experiments whose requests arrive later, wait for each other, or begin with the same tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from in_process import Ran, run, tiny_config
from made_up import beside, busy_notice, sides

from experiment.analysis.finding_text import answer
from experiment.config.reading import load_config
from experiment.config.schema import Config
from experiment.events import (
    ArmSkipped,
    CellStarted,
    Event,
    RequestFinished,
    encode,
)
from experiment.experiments.base import cell_config
from experiment.experiments.capacity import CAPACITY
from experiment.experiments.cells import Cell
from experiment.experiments.load import in_time
from experiment.experiments.measured import cells_of, measure
from experiment.experiments.prefix import questions
from experiment.experiments.serving import SERVING, poisson
from experiment.measure.cells import _spared
from experiment.model.tokenizer import gpt2_tokenizer
from experiment.text.messages import message

# They run where they count something else than before; elsewhere it is said why not.
ONE_BY_ONE = ("contiguous.sequential", "contiguous.growing")
OTHER = "transformers_paged"
SLOT = 1024  # bytes of a token's K and V in the tiny model


def test_concurrency_limits_every_arm_and_is_foretold(tmp_path: Path) -> None:
    config = tiny_config(
        "concurrency",
        experiment__values=[1, 3],
        experiment__options={"requests": 5, "lengths": [[5, 4], [12, 6], [3, 8]]},
        cache__max_length=32,
        cache__budget=4 * 32 * SLOT,
    )
    ran = run(config, tmp_path / "run")
    ran.assert_sound(skipped=ONE_BY_ONE, untested=("few", "needs"))
    one, three = ran.result.cells
    assert {arm.arm for arm in one.arms if arm.status == "finished"} > set(ONE_BY_ONE)
    assert [arm.arm for arm in three.arms if arm.reason is None] == [
        "contiguous.batch", "slabs", "paged",
    ]  # fmt: skip
    skipped = {arm.arm: arm.reason for arm in three.arms if arm.status == "skipped"}
    assert skipped == dict.fromkeys(ONE_BY_ONE, message("skip.one_at_a_time"))
    for arm in ("contiguous.batch", "slabs", "paged"):
        assert ran.figure(one, arm, "running_peak").value == 1
        assert ran.figure(three, arm, "running_peak").value == 3
    whole = ran.result.findings[0]
    steps = {arm: ran.figure(three, arm, "steps").value for arm in ("paged", "slabs")}
    assert sides(beside(whole)["steps"]) == steps
    # It is the headline, and the cell with more at a time is the one that the page shows.
    assert ran.results.headline.params["text"] == answer(whole).model_dump()
    assert ran.result.focus == 1


def test_prefix_is_computed_once(tmp_path: Path) -> None:
    config = tiny_config(
        "prefix",
        experiment__values=[3],
        experiment__options={"models": ["tiny-gpt2"], "max_lengths": [256], "questions": 3},
        workload__max_new_tokens=3,
        run__arms=["paged", OTHER],
    )
    ran = run(config, tmp_path / "run")
    ran.assert_sound()
    off, on = ran.cell(prefix_cache="off"), ran.cell(prefix_cache="on")
    hits = ran.figure(on, "paged", "prefix_hits")
    assert hits.value == hits.foretold
    assert hits.value
    assert hits.value % (2 * config.cache.block_size) == 0
    computed = [ran.figure(cell, "paged", "computed").value for cell in (off, on)]
    assert computed[0] is not None
    assert computed[1] == computed[0] - hits.value
    assert ran.verdicts()["tokens"] == ran.verdicts()["outputs"] == "shown"
    told = ran.finding("tokens")
    assert sides(told) == {"off": computed[0], "on": computed[1]}
    assert sides(told.beside[0]) == {"prefix_hits": hits.value}
    assert ran.figure(off, "paged", "prefix_hits").value is None
    # Transformers' own prefix sharing finds the same blocks, in the repeat as in the warm-up.
    theirs = ran.finding(OTHER)
    assert (sides(theirs), sides(theirs.beside[0])) == (sides(told), sides(told.beside[0]))
    assert (beside(theirs)["same_outputs"].estimate, beside(theirs)["same_outputs"].n) == (3, 3)
    assert ran.figure(off, OTHER, "prefix_hits").value is None


def test_the_table_of_people_is_as_long_as_said() -> None:
    tokenizer = gpt2_tokenizer()

    def longest(rows: int) -> int:
        return max(len(tokenizer(text)["input_ids"]) for text in questions(rows, 6))

    rows, more = load_config(_shipped("prefix"), {}).experiment.values
    assert longest(int(rows)) + 8 - 1 <= 1024 < longest(int(rows) + 1) + 8 - 1
    assert more == 30


def test_priority_serves_urgent_requests_first(tmp_path: Path) -> None:
    config = tiny_config(
        "priority",
        experiment__options={
            "requests": 8, "every": 1, "urgent_every": 3, "lengths": [[6, 8], [9, 5]],
        },
        engine__max_num_seqs=2,
        cache__max_length=32,
    )  # fmt: skip
    ran = run(config, tmp_path / "run")
    ran.assert_sound()
    verdicts = ran.verdicts()
    assert verdicts["urgent"] == verdicts["patient"] == verdicts["outputs"] == "shown"
    assert verdicts["slabs"] == "shown"
    for cell in ran.result.cells:
        assert [arm.arm for arm in cell.arms] == ["slabs", "paged"]
        assert all(arm.plans and arm.plans[0] == arm.plans[1] > 0 for arm in cell.arms)
        for name in ("steps", "urgent_first_steps", "patient_first_steps"):
            slabs, paged = (ran.figure(cell, arm, name) for arm in ("slabs", "paged"))
            assert (slabs.exact, paged.exact) == (True, True), (cell.values, name)
            assert slabs.value == paged.value  # with memory enough the order is all
    gone = [e for e in ran.record.of(RequestFinished) if e.request == 5]
    assert {e.arrival_step for e in gone} == {5}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Arrivals so far apart that everybody is idle in between, and so close that all wait."""
    draw = {"workload": "alpaca-like", "requests": 12, "seed": 0, "max_length": 32}
    config = tiny_config(
        "serving",
        experiment__values=[20, 2000],
        experiment__options={"step_s": 0.005, "draw": draw},
        cache__max_length=32,
        cache__budget=3 * 32 * SLOT,
        run__arms=["contiguous.sequential", "contiguous.batch", "slabs", "paged", OTHER],
    )
    return run(config, tmp_path_factory.mktemp("serving") / "run")


def test_arrivals_in_steps_are_foretold_for_every_arm(serving: Ran) -> None:
    serving.assert_sound(skipped=ONE_BY_ONE, untested=("few", "sustained", "missing"))
    none = "experiments.reason"
    for cell in serving.result.cells:
        for arm in (arm for arm in cell.arms if arm.reason is None):
            figures = arm.figures
            known = {name for name, figure in figures.items() if figure.value is not None}
            if cell.values["clock"] == "steps":
                assert {"latency_s", "latency_p90_s"} & known == set()
                # Another engine's scheduler is not ours.
                exact = [figures[name].exact for name in ("steps", "running_at_rate")]
                assert exact == [None if arm.arm == OTHER else True] * 2, (cell.values, arm.arm)
                assert figures["steps"].value
            else:
                assert {"latency_s", "kept_up", "latency_p90_s", "per_token_p90_s"} <= known
                late = {f"{name}_p95_s" for name in ("latency", "first_token", "per_token")}
                assert (late | {"steps", "succeeded"}) & known == set()
                assert figures["succeeded"].reason == message(f"{none}.not_limited")
                assert figures["latency_p95_s"].reason == message(f"{none}.few_requests")
    assert serving.verdicts()["paging"] == "untested"  # one repeat
    assert {"limit_slabs", "limit_paged", "first"} <= serving.verdicts().keys()


def test_by_the_wall_clock_nobody_is_served_before_it_arrives(serving: Ran) -> None:
    cell = serving.cell(rate=20.0, clock="wall")
    last = poisson(12, serving.config.run.seed)[-1] / 20
    for arm in cell.arms:
        rate = arm.figures["requests_per_s"].value
        assert rate is not None
        assert rate <= 12 / last


def test_who_answers_too_late_has_not_succeeded(serving: Ran) -> None:
    """The same record under a limit that half of the answers keep."""
    cell = next(c for c in cells_of(serving.record) if c.started.values["clock"] == "wall")
    one = next(arm for arm in measure(cell) if arm.result.arm == "slabs").repeats[0]
    latencies = sorted(request.latency_s for request in one.requests)
    options = {**one.config.experiment.options, "time_limit_s": latencies[5]}
    experiment = one.config.experiment.model_copy(update={"options": options})
    config = one.config.model_copy(update={"experiment": experiment})
    assert in_time(replace(one, config=config)) == 6 / 12
    assert in_time(one) is None


def test_one_repeat_beside_the_warm_up_is_counted_in_steps(serving: Ran) -> None:
    """One after another counts the same at every rate, so that it is counted once."""
    for cell in serving.result.cells:
        steps = cell.values["clock"] == "steps"
        again = steps and cell.values["rate"] != 20
        told = message("skip.counted_once")
        assert {a.arm for a in cell.arms if a.reason == told} == (
            {"contiguous.sequential"} if again else set()
        )
        assert {arm.repeats for arm in cell.arms if arm.reason is None} == {1}
    five = load_config(_shipped("serving"), {"experiment.repeats": 5})
    repeats = {c.values["clock"]: cell_config(five, c).experiment.repeats for c in _cells(five)}
    assert repeats == {"steps": 1, "wall": 5}


@pytest.mark.parametrize("slowed", [False, True])
def test_who_is_saturated_is_spared_higher_rates(
    slowed: bool, serving: Ran, tmp_path: Path
) -> None:
    """Latencies put in, as of a queue that grows, for slabs; nobody else has any to speak of.

    Where other programs kept cores busy as it began, it is the machine that was too slow.
    """
    steps, wall, _, higher = _cells(serving.config)
    arrivals = {request: moment / 20 for request, moment in enumerate(_poisson(serving))}
    last = max(arrivals.values())
    events: list[Event] = []
    for event in serving.record.events:
        if isinstance(event, CellStarted) and event.index == 2:
            break
        if isinstance(event, CellStarted) and slowed:
            events += [event, busy_notice(event, "slabs", 0.75)]
            continue
        if isinstance(event, RequestFinished):
            slow = arrivals[event.request] + last if event.arm == "slabs" else 1e-6
            event = event.model_copy(update={"latency_s": slow, "tokens": [1]})
        events.append(event)
    missing = ArmSkipped(arm="gone", reason=message("failure.exit", code=1))
    lines = [encode(event) + "\n" for event in (*events, missing)]
    (tmp_path / "events.jsonl").write_text("".join(lines), encoding="utf-8")

    def spared(cell: Cell) -> dict[str, float]:
        found = _spared(SERVING, SimpleNamespace(directory=tmp_path), cell)  # type: ignore[arg-type]
        return {arm: why.params["rate"] for arm, why in found.items()}

    assert spared(higher) == ({} if slowed else {"slabs": 20.0})
    assert spared(steps) == spared(wall) == {}
    assert _spared(CAPACITY, SimpleNamespace(directory=tmp_path), higher) == {}  # type: ignore[arg-type]


def _cells(config: Config) -> list[Cell]:
    return SERVING.cells(config)


def _poisson(serving: Ran) -> list[float]:
    return poisson(12, serving.config.run.seed)


def _shipped(name: str) -> Path:
    return Path(__file__).parent.parent.parent / "configs" / f"{name}.toml"
