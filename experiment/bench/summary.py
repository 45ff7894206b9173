"""Summarise the rows of all rounds: one line per workload and arm, with ratios of the paged arm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiment.bench.rows import Row
from experiment.config.arms import by_ladder

OURS = "paged"
# In half precision the order of summation decides near ties, and all later tokens depend on them.
# The first token of a request has no earlier one, so most of them must agree.
_HALF = ("float16", "bfloat16")
_ALIKE_OF_TEN = 9


@dataclass(frozen=True, slots=True)
class Line:
    """An arm in a workload over all rounds.

    ``factors`` are the paged arm's rate over this arm's, for each round with both.
    """

    workload: str
    arm: str
    rows: list[Row]
    factors: list[float]

    @property
    def finished(self) -> list[Row]:
        """Rows of finished rounds."""
        return [row for row in self.rows if row.status == "finished"]


def lines(rows: Sequence[Row]) -> list[Line]:
    """Lines in the order of workloads in ``rows``, then of the ladder of arms."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.workload, row.arm), []).append(row)
    workloads = list(dict.fromkeys(row.workload for row in rows))
    by_arm = by_ladder(grouped.items(), lambda one: one[0][1])
    return [
        Line(workload, arm, some, [] if arm == OURS else ratios(rows, workload, arm))
        for (workload, arm), some in sorted(by_arm, key=lambda one: workloads.index(one[0][0]))
    ]


def ratios(rows: Iterable[Row], workload: str, other: str) -> list[float]:
    """The paged arm's rate over the other arm's, for each round in which both are comparable."""
    rates: dict[str, dict[int, float]] = {OURS: {}, other: {}}
    for row in rows:
        rate = row.useful_tokens_per_s
        if row.workload == workload and row.arm in rates and rate and _comparable(row):
            rates[row.arm][row.round] = rate
    both = sorted(rates[OURS].keys() & rates[other].keys())
    return [rates[OURS][number] / rates[other][number] for number in both]


def _comparable(row: Row) -> bool:
    """Whether a row's rate may enter a ratio: no problems, and the tokens of the reference.

    In half precision nine tenths of the requests must begin with the same token. Files of older
    versions lack that count; their rows are accepted.
    """
    if row.reason is not None or row.problems:
        return False
    if row.dtype in _HALF:
        first, of = row.equal_first_tokens, row.requests
        return first is None or of is None or 10 * first >= _ALIKE_OF_TEN * of
    return row.equal_requests in (None, row.requests)
