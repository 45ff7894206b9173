"""Ten thousand requests under each kind of preemption, with the memory of the process watched."""

from __future__ import annotations

import random

import pytest
from steady import growth
from storm import alone, drive, left_behind

REQUESTS = 10_000
SAMPLE = 200
_PAGES = 1 << 20


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_ten_thousand_requests_end_or_are_refused_and_leave_nothing(preemption: str) -> None:
    storm, engine = drive(REQUESTS, preemption)
    assert len(storm.asked) + storm.refused.total() == REQUESTS
    assert storm.refused["unasked"] == 0
    assert storm.finished.keys() == storm.ends
    assert set(left_behind(engine).values()) == {0}
    for each in random.Random(2).sample(storm.undisturbed, SAMPLE):
        assert {i: storm.tokens[i] for i in (each.id, *each.children)} == alone(each)
    gained, noise = growth(storm.uss[len(storm.uss) // 2 :])
    # The test itself keeps the tokens of every sequence; they are counted off.
    kept = sum(56 + 8 * len(tokens) + 100 for tokens in storm.tokens.values()) / 2
    print(
        f"{preemption}: {len(storm.asked)} accepted, {storm.refused.total()} refused, "
        f"{storm.sequences} sequences, {len(storm.aborted)} aborted, {storm.preempted} preempted, "
        f"{storm.swapped} swapped out, {storm.steps} steps, most waiting {storm.most_waiting}, "
        f"{storm.seconds:.1f} s, second half gained {gained / 1024:.0f} KiB "
        f"(noise {noise / 1024:.0f} KiB, kept by the test {kept / 1024:.0f} KiB)"
    )
    assert gained < kept + 4 * noise + _PAGES
