"""Which times are told apart: margins, rounds of arms that took turns, and the ladder of arms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest
from in_process import Ran
from made_up import Figures, budget, cell, findings, found_of, value

from experiment.analysis.experiment_results import CellResult, Number
from experiment.analysis.results import Gain, Results
from experiment.config.reading import load_config
from experiment.config.schema import MARGINS, TURNS_MARGINS
from experiment.events import (
    RepeatFinished,
    TurnStarted,
    encode,
)
from experiment.experiments.evaluate import picture
from experiment.experiments.found import Faster, Found, ratio
from experiment.experiments.time_notes import NOISY, time_notes
from experiment.files.shipped import CONFIGS
from experiment.record.log import EVENTS_FILE, read_record
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


# The machine is half as fast in two rounds of five; blocks are a quarter faster in each.
SLABS = [100, 50, 100, 52, 101]
PAGED = [125, 63, 126, 64, 127]


def one_cell(
    index: int, slabs: Sequence[Number], paged: Sequence[Number], turns: Sequence[int | None]
) -> CellResult:
    made = cell(index, {"requests": 4 + index}, slabs=budget(3, slabs), paged=budget(4, paged))
    arms = [
        arm.model_copy(update={"turns": group, "repeats": len(arm.figures["tokens_per_s"].values)})
        for arm, group in zip(made.arms, turns, strict=True)
    ]
    return made.model_copy(update={"arms": arms})


def seen(
    slabs: Sequence[Number], paged: Sequence[Number], turns: Sequence[int | None] = (7, 7)
) -> Faster:
    here = one_cell(0, slabs, paged, turns)
    faster = found_of("capacity", here, margin=None).ratio(here, "tokens_per_s", "paged", "slabs")
    assert faster is not None
    return faster


def test_rounds_tell_what_repeats_that_overlap_do_not() -> None:
    apart = seen(SLABS, PAGED, (None, None))
    assert (apart.turns, apart.tie, apart.margin) == (False, "overlap", MARGINS["full"])
    together = seen(SLABS, PAGED)
    assert (together.turns, together.tie, together.margin) == (True, None, TURNS_MARGINS["full"])
    assert together.clear
    rounds = sorted(b / a for a, b in zip(SLABS, PAGED, strict=True))
    assert (together.low, together.factor, together.high) == (rounds[0], rounds[2], rounds[-1])
    assert 1.2 < together.low < together.high < 1.3


@pytest.mark.parametrize(
    ("paged", "tie"),
    [
        ([125, 40, 126, 64, 127], "overlap"),  # one of them says the opposite
        ([108, 54, 108, 56, 109], "margin"),
        ([112, 56, 113, 59, 114], None),
        ([80, 40, 81, 41, 80], None),
    ],
)
def test_every_round_must_say_the_same_and_more_than_the_margin(
    paged: Sequence[Number], tie: str | None
) -> None:
    assert seen(SLABS, paged).tie == tie


@pytest.mark.parametrize(
    ("turns", "together"),
    [((7, 7), True), ((7, 8), False), ((7, None), False), ((None, None), False)],
)
def test_only_those_of_one_group_took_turns(turns: Sequence[int | None], together: bool) -> None:
    assert seen(SLABS, PAGED, turns).turns is together


def test_few_rounds_may_lie_on_one_side_by_chance_and_have_the_wide_margin() -> None:
    few = seen(SLABS[:4], PAGED[:4])
    assert (few.turns, few.margin) == (True, MARGINS["full"])


def test_a_repeat_without_the_figure_makes_no_rounds() -> None:
    """The second of five is missing in one arm: from there on they would be of other rounds."""
    here = one_cell(0, SLABS[:1] + SLABS[2:], PAGED[:1] + PAGED[2:], (7, 7))
    arms = [arm.model_copy(update={"repeats": 5}) for arm in here.arms]
    broken = here.model_copy(update={"arms": arms})
    found = found_of("capacity", broken)
    assert not found.ratio(broken, "tokens_per_s", "paged", "slabs").turns  # type: ignore[union-attr]


def test_cells_that_took_turns_are_held_against_each_other_round_by_round() -> None:
    cells = [one_cell(index, SLABS, PAGED, (7, 7)) for index in (0, 1)]
    other = [one_cell(0, SLABS, PAGED, (7, 7)), one_cell(1, SLABS, PAGED, (8, 8))]
    for two, together in ((cells, True), (other, False)):
        faster = found_of("capacity", *two, margin=None).compared(
            (two[1], "paged", "tokens_per_s"), (two[0], "slabs", "tokens_per_s")
        )
        assert faster is not None
        assert (faster.turns, faster.clear) == (together, together)


@pytest.mark.parametrize(
    ("keys", "margin"),
    [
        ({}, TURNS_MARGINS["full"]),
        ({"experiment.size": "quick"}, TURNS_MARGINS["quick"]),
        ({"experiment.turns_margin": 0.02}, 0.02),
        ({"experiment.margin": 0.01}, 0.01),  # whoever trusts processes apart trusts them in turns
        ({"experiment.margin": 0.01, "experiment.turns_margin": 0.3}, 0.3),
    ],
)
def test_the_margin_of_turns(keys: dict[str, object], margin: float) -> None:
    assert load_config(CONFIGS / "capacity.toml", keys).experiment.interleaved_margin == margin


def test_findings_say_that_they_are_of_rounds() -> None:
    cells = [one_cell(0, SLABS, SLABS, (7, 7)), one_cell(1, SLABS, PAGED, (7, 7))]
    finding = findings("capacity", *cells, margin=None)["throughput"]
    assert (finding.verdict, finding.rounds, finding.n) == ("shown", True, 5)


@pytest.mark.parametrize(
    ("groups", "together"),
    [({"slabs": [1], "paged": [1]}, True), ({"slabs": [1], "paged": [2]}, False),
     ({"slabs": [], "paged": [2]}, False),
     ({"slabs": [1, 2], "paged": [1, 2]}, False)],  # of no one group: what is not known
)  # fmt: skip
def test_a_page_says_who_took_turns(
    two_arms: Ran, tmp_path: Path, groups: dict[str, list[int]], together: bool
) -> None:
    """A real run whose log says of each repeat with whom it took turns."""
    told: list[str] = []
    for event in two_arms.record.events:
        told.append(encode(event))
        if isinstance(event, RepeatFinished) and groups[event.arm] and event.repeat < 3:
            group = groups[event.arm][min(event.repeat, len(groups[event.arm]) - 1)]
            turn = TurnStarted(cell=0, arm=event.arm, repeat=event.repeat + 1, group=group)
            told.append(encode(turn))
    (tmp_path / EVENTS_FILE).write_text("\n".join(told) + "\n", encoding="utf-8")
    result = picture(read_record(tmp_path))[1].experiment
    assert result is not None
    assert not result.problems
    keys = {note.key.removeprefix("experiments.note.") for note in result.notes}
    assert keys & {"margin", "turns"} == {"turns" if together else "margin"}


LOOKUP = [-0.01, 0.0001, 0.01]


@pytest.mark.parametrize(
    ("figures", "noisy"),
    [
        # A share next to nothing does not make a machine noisy; one that is more, does.
        ({"lookup_share": LOOKUP, "generate_s": [1.0, 1.0, 1.0]}, None),
        ({"lookup_share": LOOKUP, "generate_s": [1.0, 1.0, 1.0 + 2 * NOISY]}, 2 * NOISY),
        ({"lookup_of_step": [0.0125, 0.0168, 0.0175]}, 0.005 / 0.0168),  # a verdict rests on it
        ({"lookup_of_step": [0.0165, 0.0168, 0.0175]}, None),
        ({"lookup_of_step": [0.0, 0.0001, 0.0003]}, None),
        ({"waste": [0.1, 0.2, 0.3]}, None),  # counted
    ],
)
def test_times_that_scatter_are_told_with_the_worst(figures: Figures, noisy: float | None) -> None:
    found = found_of("lookup", cell(0, {"context": 64}, paged=figures))
    notes = {note.key: note.params for note in time_notes(found.cells, found.config)}
    told = notes.get("experiments.note.noisy", {"n": 0, "of": 1, "worst": None})
    assert (told["n"], told["of"]) == (int(noisy is not None), 1)
    assert told["worst"] == (noisy and pytest.approx(noisy))


def told(
    ran: Ran, place: Path, slabs: Sequence[float], paged: Sequence[float], turns: bool = True
) -> Results:
    """What is drawn of the run, had its measured repeats taken so many seconds."""
    seconds = {"slabs": [9.0, *slabs], "paged": [9.0, *paged]}
    lines = []
    for event in ran.record.events:
        if isinstance(event, RepeatFinished):
            event = event.model_copy(update={"generate_s": seconds[event.arm][event.repeat]})
            if turns and not event.warm_up:
                turn = TurnStarted(cell=0, arm=event.arm, repeat=event.repeat, group=1)
                lines.append(encode(turn))
        lines.append(encode(event))
    place.mkdir()
    (place / EVENTS_FILE).write_text("\n".join([*lines, ""]), encoding="utf-8")
    return picture(read_record(place))[1]


def rungs(results: Results) -> dict[str, Gain]:
    return {gain.arm: gain for gain in results.gains}


def test_rates_are_medians_and_the_factor_is_of_rounds(two_arms: Ran, tmp_path: Path) -> None:
    """The machine is half as fast in the second round; blocks take half the time in each."""
    slabs, paged = [2.0, 4.0, 2.2], [0.8, 2.0, 1.0]
    results = told(two_arms, tmp_path / "run", slabs, paged)
    found = rungs(results)
    tokens = found["slabs"].tokens_per_s * median(slabs)
    assert found["paged"].tokens_per_s == pytest.approx(tokens / median(paged))
    rounds = sorted(a / b for a, b in zip(slabs, paged, strict=True))
    assert found["paged"].factor == pytest.approx(rounds[1])
    assert found["slabs"].factor is None
    assert "fairness.turns" in {text.key for text in results.fairness}


@pytest.mark.parametrize("turns", [True, False])
def test_where_repeats_tell_nothing_there_is_a_dash_and_the_reason(
    turns: bool, two_arms: Ran, tmp_path: Path
) -> None:
    results = told(two_arms, tmp_path / "run", [1.0, 1.0, 1.0], [0.5, 1.5, 0.9], turns)
    gain = rungs(results)["paged"]
    assert gain.factor is None
    assert gain.reason is not None
    assert gain.reason.key == "gains.not_apart"
    assert ("fairness.turns" in {text.key for text in results.fairness}) is turns


def test_the_ladder_agrees_with_the_finding_beside_it(two_arms: Ran, tmp_path: Path) -> None:
    results = told(two_arms, tmp_path / "run", [3.0, 3.3, 3.1], [1.0, 1.1, 1.2])
    assert results.experiment is not None
    (finding,) = [each for each in results.experiment.findings if each.id == "throughput"]
    assert rungs(results)["paged"].factor == pytest.approx(finding.estimate)
