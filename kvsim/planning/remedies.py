"""What would end preemption: more blocks, fewer sequences, a watermark, another admission.

Each change is tried alone, by simulating the same requests again: values from small to large until
nothing is preempted, then the values between the last two, halving.

    blocks            1.05, 1.1, 1.2 ... 8 times as many, up to what memory holds
    max_num_seqs      0.9, 0.8 ... 0.1 of the most that ran
    watermark_blocks  1, 2, 5, 10, 20, 35, 50 % of the blocks
    admission         full, where it was first_chunk
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, Literal, NamedTuple

from kvsim.core.limits import Admission

Change = Literal["blocks", "max_num_seqs", "watermark_blocks", "admission"]
_MORE = (1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5, 3, 4, 6, 8)
_FEWER = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
_HELD = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
_HALVINGS = 4


class Trial(NamedTuple):
    """What one simulation is run with."""

    blocks: int
    max_num_seqs: int
    watermark_blocks: int
    admission: Admission = "full"


class Outcome(NamedTuple):
    """Preemptions, duration in seconds or steps, and the median time to the first token."""

    preemptions: int
    duration: float
    first_token_s: float | None = None


class Remedy(NamedTuple):
    """A change and its outcome; ``value`` is 0 for an admission.

    With preemptions left, it is the largest value that was tried: no smaller one ends them either.
    """

    change: Change
    value: int
    preemptions: int
    duration: float
    first_token_s: float | None = None


Attempt = Callable[[Trial], Outcome]


def find_remedies(
    given: Trial, running: int, attempt: Attempt, most_blocks: int | None = None
) -> list[Remedy]:
    """Try every change; return those that end preemption by duration, then the others.

    Args:
        running: most sequences that ran at once.
        most_blocks: blocks that memory holds; None: unknown.
    """
    more = [ceil(given.blocks * factor) for factor in _MORE]
    if most_blocks is not None:
        more = sorted({min(value, most_blocks) for value in more})
    changes: dict[Change, tuple[int, list[int]]] = {
        "blocks": (given.blocks, more),
        "max_num_seqs": (running, [int(running * share) for share in _FEWER]),
        "watermark_blocks": (
            given.watermark_blocks, [ceil(given.blocks * share) for share in _HELD],
        ),
    }  # fmt: skip
    found = []
    for change, (start, values) in changes.items():
        away = 1 if change != "max_num_seqs" else -1
        wanted = [value for value in dict.fromkeys(values) if value > 0 < (value - start) * away]
        remedy = _search(change, start, wanted, given, attempt)
        if remedy is not None:
            found.append(remedy)
    if given.admission == "first_chunk":
        found.append(Remedy("admission", 0, *attempt(given._replace(admission="full"))))
    return sorted(found, key=lambda remedy: (remedy.preemptions > 0, remedy.duration))


def _search(
    change: Change, start: int, values: Sequence[int], given: Trial, attempt: Attempt
) -> Remedy | None:
    """Return the first value without preemption, drawn nearer to the one before it."""
    before, remedy = start, None
    for value in values:
        remedy = Remedy(change, value, *attempt(_changed(given, change, value)))
        if not remedy.preemptions:
            break
        before = value
    if remedy is None or remedy.preemptions:
        return remedy
    for _ in range(_HALVINGS):
        middle = (before + remedy.value) // 2
        if middle in (before, remedy.value):
            break
        nearer = Remedy(change, middle, *attempt(_changed(given, change, middle)))
        if nearer.preemptions:
            before = middle
        else:
            remedy = nearer
    return remedy


def _changed(given: Trial, change: Change, value: Any) -> Trial:
    return given._replace(**{change: value})
