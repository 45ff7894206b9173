"""A wrong simulator would not get the paper's numbers; they are in tests/test_paper_command.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.paper import PaperClaim, Tolerance, Verdict
from kvsim.paper.sharing import samples_sharing
from kvsim.paper.steady import NotSteadyError, config, steady_state
from kvsim.paper.workloads import (
    MAX_LENGTH,
    SHAREGPT_MEANS,
    alpaca,
    output_deviation,
    output_second_moment,
    sharegpt,
)
from kvsim.sim.simulator import simulate


def claim(ours: tuple[float, ...], tolerance: Tolerance, paper: float | None = 10.0) -> PaperClaim:
    return PaperClaim("x", "Fig. 0", "live", "nobody", "percent", paper, ours, tolerance)


@pytest.mark.parametrize(
    ("ours", "tolerance", "paper", "holds"),
    [
        ((10.0,), Tolerance("exact"), 10.0, True),
        ((10.1,), Tolerance("exact"), 10.0, False),
        ((9.0, 13.0), Tolerance("absolute", 1.0), 10.0, True),
        ((9.0, 13.1), Tolerance("absolute", 1.0), 10.0, False),
        ((11.0,), Tolerance("relative", 0.1), 10.0, True),
        ((8.9,), Tolerance("relative", 0.1), 10.0, False),
        ((2.0,), Tolerance("at_least", 2.0), None, True),
        ((1.9,), Tolerance("at_least", 2.0), None, False),
        ((2.1,), Tolerance("at_most", 2.0), None, False),
        ((3.0, 11.0), Tolerance("covers"), 10.0, True),
        ((3.0, 9.0), Tolerance("covers", 0.9), 10.0, False),
        ((3.0, 9.0), Tolerance("covers", 1.0), 10.0, True),
    ],
)
def test_a_verdict_is_that_of_the_mean(
    ours: tuple[float, ...], tolerance: Tolerance, paper: float | None, holds: bool
) -> None:
    verdict = claim(ours, tolerance, paper).verdict
    assert verdict is (Verdict.HOLDS if holds else Verdict.FAILS)


def test_what_is_not_judged_is_neither_right_nor_wrong() -> None:
    assert claim((99.0,), Tolerance("none")).verdict is Verdict.NOT_JUDGED


def test_drawn_conversations_have_the_printed_means() -> None:
    pairs = np.array([(r.prompt_tokens, r.output_tokens) for r in sharegpt().sample(40_000, 11)])
    assert (pairs.sum(1) <= MAX_LENGTH).all()
    assert pairs[:, 0].mean() == pytest.approx(SHAREGPT_MEANS[0], rel=0.03)
    assert pairs[:, 1].mean() == pytest.approx(SHAREGPT_MEANS[1], rel=0.03)
    assert (pairs[:, 1] ** 2).mean() == pytest.approx(output_second_moment(), rel=0.04)


def test_the_spread_of_outputs_is_inverted_from_the_bar_of_orca_max() -> None:
    # 13.3 % of 15,728 slots over 7 requests are what one will write later, on average.
    later = 0.133 * 15_728 / 7
    assert output_deviation() == pytest.approx((2 * 337.99 * later - 337.99**2) ** 0.5)
    assert 296 < output_deviation() < 297


@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.parametrize("block_size", [1, 16])
def test_closed_sums_of_sharing_are_the_simulators(samples: int, block_size: int) -> None:
    drawn = alpaca().sample(12, 3)
    roomy = replace(config("paged", block_size), samples=samples)
    found = simulate(drawn, roomy)
    assert found.preemptions.total == 0
    lengths = [(each.prompt_tokens, each.output_tokens) for each in drawn]
    assert found.sharing == samples_sharing(lengths, samples, block_size)


def test_too_few_requests_are_not_steady() -> None:
    with pytest.raises(NotSteadyError):
        steady_state(alpaca().sample(20, 0), "paged")
