"""Fifteen hundred requests, a thousand of them at once; tests/full sends ten thousand."""

from __future__ import annotations

import random

import pytest
from storm import BURST, Storm, alone, drive, left_behind

from experiment.engine.engine import Engine
from kvsim.core.step import FinishReason

REQUESTS = 1500
SAMPLE = 25


@pytest.fixture(scope="module", params=["recompute", "swap"])
def driven(request: pytest.FixtureRequest) -> tuple[Storm, Engine]:
    return drive(REQUESTS if request.param == "recompute" else BURST, request.param)


def test_every_request_ends_or_is_refused_with_a_reason(driven: tuple[Storm, Engine]) -> None:
    storm, _ = driven
    assert storm.refused["unasked"] == 0
    assert set(storm.refused) >= {"length", "token", "empty"}
    assert len(storm.asked) + storm.refused.total() in (REQUESTS, BURST)
    assert storm.finished.keys() == storm.ends
    assert set(storm.finished.values()) == {FinishReason.LENGTH, FinishReason.ABORTED}
    ended = {each for each, reason in storm.finished.items() if reason is FinishReason.ABORTED}
    assert ended == storm.aborted


def test_it_was_a_storm(driven: tuple[Storm, Engine]) -> None:
    """Without preemption, samples and a queue there would have been nothing to hold."""
    storm, engine = driven
    assert storm.most_waiting > 900
    assert storm.preempted > 100
    assert storm.forked > 100
    assert len(storm.aborted) > 50
    assert (storm.swapped > 50) == (engine.scheduler.host is not None)


def test_the_pool_is_full_again_and_nothing_is_kept(driven: tuple[Storm, Engine]) -> None:
    assert set(left_behind(driven[1]).values()) == {0}
    driven[1].blocks.check_integrity()


def test_a_sample_generates_what_it_does_alone(driven: tuple[Storm, Engine]) -> None:
    storm, _ = driven
    compared = 0
    for each in random.Random(1).sample(storm.undisturbed, SAMPLE):
        for request, tokens in alone(each).items():
            assert storm.tokens[request] == tokens, each
            compared += 1
    assert compared > SAMPLE
