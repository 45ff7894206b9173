"""Times of arms that took turns: round against round, a narrower margin, and what a page says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from in_process import Ran
from made_up import budget, cell

from experiment.analysis.experiment_results import CellResult, Number
from experiment.analysis.finding_text import answer
from experiment.config.reading import load_config
from experiment.config.schema import MARGINS, TURNS_MARGINS, ExperimentConfig
from experiment.events import (
    ArmFailed,
    ArmFinished,
    CellStarted,
    Event,
    RepeatFinished,
    TurnStarted,
    encode,
)
from experiment.experiments.evaluate import picture
from experiment.experiments.found import Faster, Found
from experiment.experiments.registry import find_experiment
from experiment.experiments.time_notes import margin_notes
from experiment.files.shipped import CONFIGS
from experiment.record.log import EVENTS_FILE, read_record
from experiment.report.console.experiment_live import ExperimentConsole
from experiment.report.console.reporter import ConsoleReporter
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import message

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


def found(*cells: CellResult, size: str = "full") -> Found:
    return Found(load_config(CONFIGS / "capacity.toml", {"experiment.size": size}), list(cells))


def seen(
    slabs: Sequence[Number], paged: Sequence[Number], turns: Sequence[int | None] = (7, 7)
) -> Faster:
    here = one_cell(0, slabs, paged, turns)
    faster = found(here).ratio(here, "tokens_per_s", "paged", "slabs")
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
    faster = found(broken).ratio(broken, "tokens_per_s", "paged", "slabs")
    assert faster is not None
    assert not faster.turns


def test_cells_that_took_turns_are_held_against_each_other_round_by_round() -> None:
    cells = [one_cell(index, SLABS, PAGED, (7, 7)) for index in (0, 1)]
    other = [one_cell(0, SLABS, PAGED, (7, 7)), one_cell(1, SLABS, PAGED, (8, 8))]
    for two, together in ((cells, True), (other, False)):
        faster = found(*two).compared(
            (two[1], "paged", "tokens_per_s"), (two[0], "slabs", "tokens_per_s")
        )
        assert faster is not None
        assert faster.turns is together
        assert faster.clear is together


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
    finding = next(
        each for each in find_experiment("capacity").findings(found(*cells))
        if each.id == "throughput"
    )  # fmt: skip
    assert (finding.verdict, finding.rounds, finding.n) == ("shown", True, 5)
    assert "1.23 to 1.26, 5 repeats" in Translator("en").message(answer(finding))


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


@pytest.mark.parametrize(
    ("margin", "turns_margin", "notes"),
    [(0.0, None, []), (0.0, 0.1, ["turns"]), (0.2, 0.0, []), (0.2, 0.1, ["turns"])],
)
def test_a_margin_of_nothing_is_not_told(
    margin: float, turns_margin: float | None, notes: list[str]
) -> None:
    asked = ExperimentConfig(margin=margin, turns_margin=turns_margin)
    here = one_cell(0, SLABS, PAGED, (7, 7))
    told = margin_notes([here], asked)
    assert [note.key.removeprefix("experiments.note.") for note in told] == notes
    two = [here, one_cell(1, SLABS, PAGED, (8, 8))]
    apart = ["margin"] if margin else []
    assert [note.key.removeprefix("experiments.note.") for note in margin_notes(two, asked)] == [
        *notes, *apart
    ]  # fmt: skip


@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_fails_before_any_cell_is_told(lang: str, capsys: pytest.CaptureFixture[str]) -> None:
    live = ExperimentConsole(ConsoleReporter(lang))
    live.console.handle(ArmFailed(arm="prepare", reason=message("failure.out_of_memory")))
    assert Translator(lang)("failure.out_of_memory")[:10] in capsys.readouterr().out


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_console_names_the_cell_of_what_it_prints(
    lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    t = Translator(lang)
    live = ExperimentConsole(ConsoleReporter(lang))
    cells = [
        CellStarted(index=n, of=2, values={"requests": 4 + n}, overrides={}, arms=["paged"])
        for n in (0, 1)
    ]
    for started in cells:
        live.console.handle(started)
    assert not capsys.readouterr().out.strip()
    ends: list[Event] = []
    for repeat in (1, 2):
        for n in (0, 1):
            ends += [
                TurnStarted(cell=n, arm="paged", repeat=repeat, group=1),
                RepeatFinished(arm="paged", repeat=repeat, warm_up=False, generate_s=2.0 + n),
            ]
            if repeat == 2:
                ends.append(ArmFinished(arm="paged", import_s=1, load_s=1, generate_s=3, threads=1,
                                        device_name="cpu"))  # fmt: skip
    for event in ends:
        live.console.handle(event)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    named = [t("experiments.cell", n=n + 1, of=2, name=t("experiments.axis.requests"), value=4 + n)
             for n in (0, 1)]  # fmt: skip
    assert lines[0] == named[0]
    assert lines[2] == named[1]
    assert "2.00 s" in lines[1]
    assert "3.00 s" in lines[3]
