"""Where blocks let no more run than slabs it is said, and whether they cost time there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up import Figures, begun_busy, below, budget, cell, findings

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.text import Translator

FAST, SLOW = [2300, 2310, 2320], [1700, 1710, 1720]


def capacity(
    index: int, paged: Sequence[float], mean: float = 2.75, steps: int = 64, slabs: float = 2.75
) -> CellResult:
    """Requests with ``paged`` tokens per second in blocks, beside fast slabs of 64 steps."""
    made = cell(
        index, {"requests": 4 * (index + 1)},
        slabs={**budget(slabs, FAST[: len(paged)]), "steps": 64},
        paged={**budget(mean, paged), "steps": steps},
    )  # fmt: skip
    return made.model_copy(update={"requests": 4 * (index + 1)})


def en(finding: Finding) -> str:
    return Translator("en").message(finding.whole)


@pytest.mark.parametrize(
    ("paged", "key", "said"),
    [
        (SLOW, "slower", "1.35 times as long in blocks with 4 requests (repeats: 1.34 to 1.36)"),
        ([1700, 2000, 2400], "same", "repeats overlap, so neither a gain nor a cost in time"),
        ([2500, 2510, 2520], "faster", "which is less, though not for more at once"),
        (SLOW[:2], "few", "not compared with 4 requests: 2 of the 3 repeats"),
    ],
)
def test_where_paging_gains_nothing_it_is_said_what_it_costs(
    paged: Sequence[float], key: str, said: str
) -> None:
    seen = findings("capacity", capacity(0, paged))["throughput"]
    told = below(seen)
    assert told["alike.counted"]["places"]["params"] == {"n": 4}
    assert {each for each in told if each.startswith("alike.")} == {"alike.counted", f"alike.{key}"}
    assert said in en(seen)


def test_a_busy_machine_costs_no_time_and_the_counts_stay() -> None:
    seen = findings("capacity", begun_busy(capacity(0, SLOW), "slabs"))["throughput"]
    assert seen.verdict == "untested"
    assert {"alike.counted", "alike.busy"} <= below(seen).keys()
    assert "alike.slower" not in below(seen)


@pytest.mark.parametrize("other", [{"mean": 4.0}, {"steps": 60}, {"mean": 4.0, "steps": 60}])
def test_where_more_run_or_in_fewer_steps_it_is_not_said(other: dict[str, float]) -> None:
    seen = findings("capacity", capacity(0, SLOW, **other))["throughput"]  # type: ignore[arg-type]
    assert not [key for key in below(seen) if key.startswith("alike.")]


def test_each_number_at_which_nothing_is_gained_is_named() -> None:
    """Of the last one, where paging is faster, it says nothing."""
    cells = (capacity(0, SLOW), capacity(1, FAST), capacity(2, [4000, 4010, 4020], 5.0, 30))
    text = en(findings("capacity", *cells)["throughput"])
    assert "in as many steps, with 4 requests, with 8 requests: paging lets no more" in text
    assert "12 requests:" not in text


def context(index: int, slots: int, slabs: Figures, paged: Figures) -> CellResult:
    return cell(index, {"context": slots}, slabs=slabs, paged=paged)


def timed(seconds: Sequence[float], mean: float = 4.0, steps: int = 16) -> Figures:
    return {"running_mean": mean, "running_peak": 4, "preemptions": 0, "steps": steps,
            "generate_s": seconds}  # fmt: skip


SHORT = context(0, 512, timed([0.0435, 0.0449, 0.0453]), timed([0.0461, 0.0467, 0.0477]))
LONG = context(1, 1024, timed([0.22, 0.23, 0.24], 2.0, 32), timed([0.09, 0.1, 0.11]))


def test_a_longer_context_is_told_in_time_too() -> None:
    """At the short one as many run, and blocks are slower; at the long one they are faster."""
    seen = findings("context", SHORT, LONG)["time"]
    assert seen.verdict is None
    text = Translator("en").message(seen.text)
    assert "1.04 times as long with 512 slots (repeats: 1.02 to 1.10)" in text
    assert "0.43 times as long with 1,024 slots (repeats: 0.38 to 0.50)" in text
    assert below(seen)["alike.counted"]["places"]["params"] == {"n": 512}
    # The factor is in the finding itself, with its spread.
    assert {key for key in below(seen) if key.startswith("alike.")} == {"alike.counted"}


def test_a_time_of_a_busy_machine_is_marked_at_its_context_and_decides_nothing_alone() -> None:
    seen = findings("context", begun_busy(SHORT, "paged"), LONG)["time"]
    assert "to 1.10, where other programs were busy), 0.43" in Translator("en").message(seen.text)
    assert {key for key in below(seen) if key.startswith("alike.")} == {"alike.counted"}
    alone = findings("context", begun_busy(SHORT, "paged"))["time"]
    assert (alone.verdict, alone.text.key) == ("untested", "experiments.busy")
    assert "alike.counted" in below(alone)


def classes(index: int, policy: str, paged: Sequence[float], peak: int = 4) -> CellResult:
    def ran(seconds: Sequence[float], peak: int) -> Figures:
        return {"urgent_first_steps": 9 - index, "patient_first_steps": 9 + index, "steps": 120,
                "running_peak": peak, "urgent_first_s": seconds}  # fmt: skip

    slabs = ran([0.0101, 0.0105, 0.0106], 4)
    return cell(index, {"policy": policy}, slabs=slabs, paged=ran(paged, peak), vllm=slabs)


def test_priorities_without_paging_say_what_blocks_cost() -> None:
    slow, meet = [0.0148, 0.0162, 0.0206], [0.0099, 0.0105, 0.0110]
    seen = findings("priority", classes(0, "fcfs", meet), classes(1, "priority", slow))
    text = en(seen["slabs"])
    assert "as many steps, in order of arrival, by priority: paging lets no more run there" in text
    assert "The first token of urgent requests took 1.54 times as long in blocks by prior" in text
    assert "1.00 times as long in blocks in order of arrival" in text
    assert not [key for key in below(seen["vllm"]) if key.startswith("alike.")]
    more = findings("priority", classes(0, "fcfs", meet, 9), classes(1, "priority", slow, 9))
    assert not [key for key in below(more["slabs"]) if key.startswith("alike.")]


@pytest.mark.parametrize(("last", "key"), [("b", "all"), ("c", "some")])
def test_sharing_that_lets_no_more_run_bought_nothing(last: str, key: str) -> None:
    def ran(saved: float, rates: Sequence[float]) -> Figures:
        return {"saved": saved, "copied_slots": 9, "steps": 115, "running_peak": 10,
                "tokens_per_s": rates}  # fmt: skip

    def width(index: int, beams: int, paged: Sequence[float]) -> CellResult:
        made = cell(index, {"beam_width": beams}, slabs=ran(0.1, FAST), paged=ran(0.5, paged))
        outputs = {"slabs": ["a", "b"], "paged": ["a", last]}
        arms = [arm.model_copy(update={"outputs": outputs[arm.arm]}) for arm in made.arms]
        return made.model_copy(update={"arms": arms})

    seen = findings("beam", width(0, 2, [2000, 2305, 2600]), width(1, 6, SLOW))["slabs"]
    text = en(seen)
    assert "in as many steps, with 2 beams, with 6 beams: paging lets no more run there" in text
    assert "in blocks with 2 beams (repeats: 0.88 to 1.16): repeats overlap" in text
    assert "1.35 times as long in blocks with 6 beams" in text
    equal = {"outputs": 4, "equal": 4 if key == "all" else 2}
    assert below(seen)[f"shared_outputs.{key}"] == equal
