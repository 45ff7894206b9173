"""Which cell a claim is judged by, what a draw leaves open, and what is said beside a quotient."""

from __future__ import annotations

import pytest
from made_up import Figures, begun_busy, cell, findings, found_of, sides, why

from experiment.analysis.experiment_results import CellResult
from experiment.config.reading import load_config
from experiment.experiments.base import drawn_lengths
from experiment.experiments.claims import SEARCHES, Judged, judge
from experiment.experiments.found import FEWEST, Found
from experiment.files.shipped import CONFIGS
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import message


def claim(name: str, found: Found) -> Judged:
    judged = judge({found.config.experiment.name or "": found})
    return next(one for one in judged if one.claim.name == name)


def beams(
    shares: tuple[float, ...], searches: int = SEARCHES, random_weights: bool = False
) -> Judged:
    cells = [
        cell(i, {"beam_width": 2 * i + 2}, paged={"saved": each}).model_copy(
            update={"requests": searches}
        )
        for i, each in enumerate(shares)
    ]
    one = found_of("beam", *cells)
    return claim("beams", Found(one.config, one.cells, random_weights))


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [((0.40, 0.54, 0.56), "shown"), ((0.40, 0.90, 0.50), "not_shown")],  # the widest: too little
)
def test_each_width_is_held_against_its_own_figure_of_the_paper(
    shares: tuple[float, ...], verdict: str
) -> None:
    seen = beams(shares)
    assert seen.verdict == verdict
    assert seen.reason == message("claims.why.beams_searched", n=SEARCHES)


def test_the_shipped_full_size_draws_searches_enough() -> None:
    """Else no run of it could judge the claim."""
    config = load_config(CONFIGS / "beam.toml", {})
    assert len(drawn_lengths(config)) >= SEARCHES
    assert config.experiment.repeats >= FEWEST


@pytest.mark.parametrize("shares", [(0.40, 0.54, 0.56), (0.1, 0.1, 0.1)])
@pytest.mark.parametrize(
    ("searches", "random_weights", "why"),
    [
        (SEARCHES - 1, False, "beams_drawn"),
        (SEARCHES, True, "beams_random"),
        (4, True, "beams_random"),
    ],
)
def test_beams_of_a_few_searches_or_of_random_weights_decide_nothing(
    shares: tuple[float, ...], searches: int, random_weights: bool, why: str
) -> None:
    seen = beams(shares, searches, random_weights)
    assert seen.verdict == "untested"
    assert seen.seen is not None
    assert seen.reason is not None
    assert seen.reason.key == f"claims.why.{why}"


def capacity(index: int, requests: int, slabs: tuple[int, float], paged: int) -> CellResult:
    """Steps and waste of slabs, steps of blocks, which waste a tenth."""
    made = cell(
        index, {"requests": requests}, slabs={"steps": slabs[0], "waste": slabs[1]},
        paged={"steps": paged, "waste": 0.1},
    )  # fmt: skip
    return made.model_copy(update={"requests": requests})


def test_what_is_saved_is_judged_at_the_most_requests_that_run_alike() -> None:
    """Of the first cells alone the smallest load would speak for all; the note is of the same."""
    cells = [capacity(0, 2, (90, 0.5), 90), capacity(1, 3, (99, 0.7), 99),
             capacity(2, 24, (400, 0.9), 200)]  # fmt: skip
    seen = claim("saved", found_of("capacity", *cells))
    assert seen.seen is not None
    assert seen.seen.value == pytest.approx(1 - 0.3 / 0.9)
    # (32, 16), (96, 24) and (16, 32): the last token of each needs no slot.
    assert seen.reason == message("claims.why.lengths", slots=64, mean=(47 + 119 + 47) / 3)


@pytest.mark.parametrize(
    ("gone", "key"), [(None, "steps_differ"), ("steps", "no_figure"), ("waste", "no_figure")]
)
def test_where_none_run_alike_it_is_said_that_they_do_not(gone: str | None, key: str) -> None:
    """Both arms ran, and counts need no repeats; of what is unknown nothing is said to differ."""
    cells = [capacity(0, 2, (90, 0.5), 80), capacity(1, 24, (400, 0.9), 200)]
    left = [
        arm.model_copy(update={"figures": {n: f for n, f in arm.figures.items() if n != gone}})
        for one in cells for arm in one.arms
    ]  # fmt: skip
    made = [one.model_copy(update={"arms": left[2 * n : 2 * n + 2]}) for n, one in enumerate(cells)]
    seen = claim("saved", found_of("capacity", *made))
    assert (seen.seen, seen.verdict) == (None, "untested")
    assert seen.reason == message(f"claims.why.{key}")


@pytest.mark.parametrize(
    ("slabs", "said"),
    [
        (1, ("with 256 slots, not with 512;", "with 512 slots, not with 1,024.")),
        (4, ("with 1,024 slots, the longest tried;", "with 512 slots, not with")),
    ],
)
def test_a_longer_context_stands_with_the_lengths_that_were_tried(
    slabs: int, said: tuple[str, str]
) -> None:
    """A length in between was not tried, so the quotient may be more or less."""

    def at(index: int, context: int, slabs: int, paged: int) -> CellResult:
        return cell(index, {"context": context}, slabs={"running_peak": slabs, "preemptions": 0},
                    paged={"running_peak": paged, "preemptions": 0})  # fmt: skip

    cells = [at(0, 256, 4, 4), at(1, 512, slabs, 4), at(2, 1024, slabs, 1)]
    seen = claim("context", found_of("context", *cells))
    assert seen.verdict == ("shown" if slabs == 1 else "not_shown")
    assert seen.reason is not None
    text = Translator("en").message(seen.reason)
    assert all(one in text for one in said)
    assert "3 requests of 127.0 slots on average" in text
    assert all("{" not in Translator(lang).message(seen.reason) for lang in LANGUAGES)


@pytest.mark.parametrize("most", [[0.0125, 0.0168, 0.0175], [0.009, 0.0168, 0.0175]])
@pytest.mark.parametrize("least", [[0.0021, 0.0022, 0.0023], [0.005, 0.006, 0.0103]])
def test_a_limit_that_is_reached_in_any_repeat_is_not_kept(
    most: list[float], least: list[float]
) -> None:
    cells = [
        cell(n, {"context": slots}, paged={"lookup_of_step": shares})
        for n, (slots, shares) in enumerate(((64, least), (512, most)))
    ]
    seen = findings("lookup", *cells)["of_step"]
    assert (seen.verdict, why(seen), sides(seen)) == ("not_shown", None, {"512": most[1]})
    assert [(why(row), sides(row)) for row in seen.beside] == [(None, {"64": least[1]})]
    busy = findings("lookup", begun_busy(cells[0], "paged"), cells[1])["of_step"]
    assert [why(row) for row in busy.beside] == ["busy"]


@pytest.mark.parametrize(
    ("slabs", "paged", "verdict", "noted"),
    [
        (0.0, 0.0, "not_shown", True),  # both are reserved
        (0.05, 0.1, "not_shown", True),
        (0.5, 0.1, "shown", False),
        (1.0, 0.9, "not_shown", False),  # no less than the growing cache
        (0.0, 0.95, "not_shown", False),
        (None, 0.0, "untested", False),
    ],
)
def test_steadier_memory_is_paging_s_only_where_slabs_swing_more(
    slabs: float | None, paged: float, verdict: str, noted: bool
) -> None:
    """Where slabs stand as still, it is reserving that steadies memory."""
    arms: dict[str, Figures] = {
        "contiguous__growing": {"reserved_swing": 0.9},
        "slabs": {} if slabs is None else {"reserved_swing": slabs},
        "paged": {"reserved_swing": paged},
    }
    seen = claim("steadier", found_of("capacity", cell(0, {"requests": 4}, **arms)))
    assert seen.verdict == verdict
    if slabs is None:
        assert seen.seen is None
        return
    assert seen.seen is not None
    assert [part.value for part in seen.seen.parts] == [0.9, slabs, paged]
    assert seen.reason == (message("claims.why.reserved") if noted else None)


@pytest.mark.parametrize(("refused", "verdict"), [(12, "shown"), (0, "not_shown")])
def test_beside_what_holes_refused_stands_what_blocks_did(refused: int, verdict: str) -> None:
    figures = {"first_fit_refused_steps": refused, "steps": 90, "preemptions": 3}
    seen = claim("holes", found_of("holes", cell(0, {"requests": 24}, paged=figures)))
    assert (seen.verdict, seen.seen and seen.seen.value) == (verdict, refused)
    told = {"requests": 4, "steps": 90, "preemptions": 3}
    assert seen.reason == message("claims.why.blocks", **told)
    for lang in LANGUAGES:
        assert "{" not in Translator(lang).message(seen.reason)
