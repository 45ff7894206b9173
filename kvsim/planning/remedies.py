"""What would end preemption: more blocks, fewer sequences, a watermark, shorter requests.

Each change is tried alone, from small to large, by simulating the same requests again:

    change            values tried                              until nothing is preempted
    blocks            1.05, 1.1, 1.2 ... 8 times as many
    max_num_seqs      0.9, 0.8 ... 0.1 of the most that ran
    watermark_blocks  1, 2, 5, 10, 20, 35, 50 % of the blocks
    max_length        95th, 90th ... 50th percentile of the requests' lengths; longer ones end early
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Literal, NamedTuple, get_args

Change = Literal["blocks", "max_num_seqs", "watermark_blocks", "max_length"]
_MORE = (1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3, 4, 6, 8)
_FEWER = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
_HELD = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
_SHORTER = (0.95, 0.9, 0.75, 0.5)


class Trial(NamedTuple):
    """What one simulation is run with.

    Attributes:
        max_length: tokens at which requests end early; None: none does.
    """

    blocks: int
    max_num_seqs: int
    watermark_blocks: int
    max_length: int | None = None


class Outcome(NamedTuple):
    """Preemptions, and the duration in seconds or steps, of one simulation."""

    preemptions: int
    duration: float


class Remedy(NamedTuple):
    """The smallest change that was tried without a preemption, or the one with the fewest."""

    change: Change
    value: int
    preemptions: int
    duration: float


Attempt = Callable[[Trial], Outcome]


def find_remedies(
    given: Trial,
    before: Outcome,
    running: int,
    lengths: Sequence[tuple[int, int]],
    attempt: Attempt,
) -> list[Remedy]:
    """Try every change; return those with fewer preemptions, by duration.

    Args:
        before: outcome of ``given``.
        running: most sequences that ran at once.
        lengths: prompt tokens, and slots at the end, of every request.
    """
    found = []
    for change in get_args(Change):
        best: Remedy | None = None
        for value in _values(change, given, running, lengths):
            outcome = attempt(given._replace(**{change: value}))
            if outcome.preemptions < (best or before).preemptions:
                best = Remedy(change, value, *outcome)
            if not outcome.preemptions:
                break
        if best is not None:
            found.append(best)
    return sorted(found, key=lambda remedy: (remedy.preemptions > 0, remedy.duration))


def _values(
    change: Change, given: Trial, running: int, lengths: Sequence[tuple[int, int]]
) -> Iterator[int]:
    """Yield different values of a change, smallest change first."""
    before: int | None = None
    for value in _tried(change, given, running, lengths):
        if value != before:
            yield value
        before = value


def _tried(
    change: Change, given: Trial, running: int, lengths: Sequence[tuple[int, int]]
) -> Iterator[int]:
    if change == "blocks":
        yield from (ceil(given.blocks * factor) for factor in _MORE)
    elif change == "max_num_seqs":
        values = (int(running * share) for share in _FEWER)
        yield from (value for value in values if 0 < value < running)
    elif change == "watermark_blocks":
        values = (ceil(given.blocks * share) for share in _HELD)
        yield from (value for value in values if given.watermark_blocks < value < given.blocks)
    else:
        ends = sorted(end for _, end in lengths)
        longest_prompt = max((prompt for prompt, _ in lengths), default=0)
        values = (ends[int(share * (len(ends) - 1))] for share in _SHORTER)
        yield from (value for value in values if longest_prompt <= value < ends[-1])
