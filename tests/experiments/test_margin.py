"""Two processes of one arm may differ by themselves: times closer than that are not told apart."""

from __future__ import annotations

import pytest
from made_up import Figures, budget, cell, findings, notes, value

from experiment.config.reading import load_config
from experiment.config.schema import MARGINS
from experiment.experiments.found import Faster, Found, ratio
from experiment.experiments.time_notes import time_notes
from experiment.files.shipped import CONFIGS
from experiment.text.errors import UserError
from experiment.text.messages import message

SLOW = [100, 101, 102]


def times(*percent: float) -> list[float]:
    """Repeats at so many percent of the slow ones."""
    return [each * one / 100 for each, one in zip(SLOW, percent, strict=True)]


def against(margin: float, percent: float) -> Faster:
    seen = ratio(value(times(*[percent] * 3)), value(SLOW), busy=False, margin=margin)
    assert seen is not None
    return seen


@pytest.mark.parametrize(
    ("percent", "margin", "tie"),
    [
        (101, 0.0, "overlap"), (110, 0.0, None), (90, 0.0, None),
        (119, 0.2, "margin"), (121, 0.2, None), (84, 0.2, "margin"), (83, 0.2, None),
        (101, 0.2, "overlap"), (300, 2.5, "margin"),
    ],
)  # fmt: skip
def test_repeats_that_lie_apart_are_a_difference_beyond_the_margin(
    percent: float, margin: float, tie: str | None
) -> None:
    seen = against(margin, percent)
    assert seen.tie == tie
    assert seen.clear is (tie is None)


def asked(size: str, margin: float | None) -> Found:
    keys = {"experiment.size": size, "experiment.margin": margin}
    ran: Figures = {"tokens_per_s": times(110, 110, 110), "step_s": SLOW}
    slow: Figures = {"tokens_per_s": SLOW, "step_s": SLOW}
    cells = [cell(index, {"requests": 4 + index}, slabs=slow, paged=ran) for index in (0, 1)]
    return Found(load_config(CONFIGS / "capacity.toml", keys), cells)


@pytest.mark.parametrize(
    ("size", "margin", "used"),
    [("full", None, MARGINS["full"]), ("quick", None, MARGINS["quick"]), ("quick", 0.05, 0.05)],
)
def test_the_margin_is_that_of_the_size_unless_it_is_set(
    size: str, margin: float | None, used: float
) -> None:
    found = asked(size, margin)
    first, second = found.cells
    for one, base in (
        ((first, "paged"), (first, "slabs")),  # two arms
        ((first, "paged"), (second, "paged")),  # one arm in two cells
    ):
        seen = found.compared((*one, "tokens_per_s"), (*base, "tokens_per_s"))
        assert seen is not None
        assert seen.margin == used
    assert MARGINS["quick"] > MARGINS["full"] > 0


def test_two_times_of_one_process_need_no_margin() -> None:
    found = asked("quick", None)
    one = found.cells[0]
    seen = found.compared((one, "paged", "tokens_per_s"), (one, "paged", "step_s"))
    assert seen is not None
    assert seen.margin == 0
    assert seen.clear


@pytest.mark.parametrize("margin", [-0.1, 11])
def test_a_margin_that_is_none_is_refused(margin: float) -> None:
    with pytest.raises(UserError):
        load_config(CONFIGS / "capacity.toml", {"experiment.margin": margin})


def test_a_verdict_on_a_time_heeds_it_and_says_so() -> None:
    """Blocks are a fifth faster here, and every repeat is: a run with a margin shows no gain."""

    def one(index: int, requests: int, percent: float) -> object:
        made = cell(
            index, {"requests": requests},
            slabs={**budget(3.7, SLOW), "steps": 9},
            paged={**budget(13.4, times(*[percent] * 3)), "steps": 6},
        )  # fmt: skip
        return made.model_copy(update={"requests": requests})

    cells = [one(0, 4, 105), one(1, 24, 119)]
    assert findings("capacity", *cells)["throughput"].verdict == "shown"  # type: ignore[arg-type]
    seen = findings("capacity", *cells, margin=None)["throughput"]  # type: ignore[arg-type]
    assert seen.verdict == "not_shown"
    assert seen.reason == message("experiments.why.margin", percent=20)


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_report_says_what_it_does_not_call_a_difference(repeats: int) -> None:
    asked = {"experiment.margin": 0.07, "experiment.repeats": repeats}
    ran = budget(3.7, SLOW[:repeats])
    one = cell(0, {"requests": 4}, slabs=ran, paged=ran)
    told = time_notes([one], load_config(CONFIGS / "capacity.toml", asked))
    margins = [note.params for note in told if note.key.endswith("note.margin")]
    assert margins == ([] if repeats == 1 else [{"percent": 7}])


@pytest.mark.parametrize(
    ("percent", "steps", "verdict"),
    [
        (85, {"slabs": 100, "paged": 120}, "not_shown"),  # less than the margin: steps decide
        (85, {"slabs": 100, "paged": 90}, "shown"),
        (101, {"slabs": 100, "paged": 120}, "shown"),  # repeats overlap: no slower
        (70, {"slabs": 100, "paged": 90}, "not_shown"),  # clearly slower
    ],
)
def test_within_the_margin_steps_say_whether_blocks_are_slower(
    percent: float, steps: dict[str, int], verdict: str
) -> None:
    made = cell(
        0, {"requests": 24},
        slabs={**budget(3.7, SLOW), "steps": steps["slabs"]},
        paged={**budget(6.4, times(*[percent] * 3)), "steps": steps["paged"]},
    )  # fmt: skip
    assert findings("capacity", made, margin=0.2)["at_once"].verdict == verdict


@pytest.mark.parametrize(("margin", "open_"), [(0.0, False), (0.2, True)])
def test_where_throughput_saturates_is_open_within_the_margin(margin: float, open_: bool) -> None:
    """A twentieth more is less than a tenth, and so a process's own pace may make of a fifth."""
    cells = [
        cell(index, {"concurrency": number}, paged={"tokens_per_s": [rate - 1, rate, rate + 1]})
        for index, (number, rate) in enumerate([(1, 1000), (4, 2000), (16, 2100)])
    ]
    seen = findings("concurrency", *cells, margin=margin)["saturation_paged"]
    assert seen.verdict is None
    assert ("saturation_open" in notes(seen)) is open_
