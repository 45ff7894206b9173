"""In which order arms run, and how many rounds fit into the time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field


def turned(arms: Sequence[str], number: int) -> list[str]:
    """The arms of round ``number``: every second time backwards, and turned by one each time.

    What drifts over the run (heat, another program) meets no arm at the same place every round.
    """
    shift = (number // 2) % len(arms) if arms else 0
    order = [*arms[shift:], *arms[:shift]]
    return order[::-1] if number % 2 else order


# An arm that takes longer is left out of a round that would end too late.
SLOW_S = 120.0


@dataclass(slots=True)
class Pace:
    """Decides whether another round of a workload fits.

    Attributes:
        limit_s: for all rounds; None where their number was given.
        rounds: the most of each workload.
        least: rounds that are run whatever the time, at least of the arms that are needed.
        seconds: what each arm took at a workload, start and end of its process included.
    """

    limit_s: float | None
    rounds: int
    least: int = 1
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    def arms_of_round(
        self,
        workload: str,
        arms: Sequence[str],
        number: int,
        elapsed_s: float,
        needed: Collection[str] = (),
    ) -> list[str]:
        """Those of the arms that round ``number`` of a workload is run with; none: it is not run.

        Where a round of all would end too late, arms that take minutes are left out of it, but
        for those that are ``needed``: a figure that is compared comes from every round or none.
        """
        if number >= self.rounds or not arms:
            return []
        if number == 0 or self._in_time(workload, arms, elapsed_s):
            return list(arms)
        some = [
            arm for arm in arms if arm in needed or self.foreseen_s(workload, [arm]) < SLOW_S
        ]  # fmt: skip
        fits = number < self.least or self._in_time(workload, some, elapsed_s)
        # One arm tells nothing of a round, unless it is all that was asked for.
        return some if fits and len(some) >= min(len(arms), 2) else []

    def outlook(
        self,
        arms: Callable[[str, int], Sequence[str]],
        needed: Mapping[str, Collection[str]],
        first: int,
        elapsed_s: float,
    ) -> tuple[int, float]:
        """Rounds that there will be in all, and the seconds of those from ``first`` on.

        Args:
            arms: those of a workload in a round, before any is left out.
            needed: for each workload, see :meth:`arms_of_round`.
        """
        count, seconds = first, 0.0
        for number in range(first, self.rounds):
            for workload, some in needed.items():
                passed = elapsed_s + seconds
                chosen = self.arms_of_round(workload, arms(workload, number), number, passed, some)
                if chosen:
                    count = number + 1
                    seconds += self.foreseen_s(workload, chosen)
        return count, seconds

    def _in_time(self, workload: str, arms: Sequence[str], elapsed_s: float) -> bool:
        if self.limit_s is None:
            return True
        return elapsed_s + self.foreseen_s(workload, arms) <= self.limit_s

    def foreseen_s(self, workload: str, arms: Sequence[str]) -> float:
        """What the arms took before, together."""
        return sum(self.seconds.get((workload, arm), 0.0) for arm in arms)

    def took(self, workload: str, seconds: Mapping[str, float]) -> None:
        """Note what each arm took in a round."""
        self.seconds |= {(workload, arm): each for arm, each in seconds.items()}
