"""In which order arms run, and how many rounds fit into the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def turned(arms: Sequence[str], number: int) -> list[str]:
    """The arms of round ``number``: every second time backwards, and turned by one each time.

    What drifts over the run (heat, another program) meets no arm at the same place every round.
    """
    shift = (number // 2) % len(arms) if arms else 0
    order = [*arms[shift:], *arms[:shift]]
    return order[::-1] if number % 2 else order


@dataclass(slots=True)
class Pace:
    """Decides whether another round of a workload fits.

    Attributes:
        limit_s: for all rounds; None where their number was given.
        rounds: the most of each workload.
        least: rounds that are run whatever the time.
        seconds: what each arm took at a workload, start and end of its process included.
    """

    limit_s: float | None
    rounds: int
    least: int = 1
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    def fits(self, workload: str, arms: Sequence[str], number: int, elapsed_s: float) -> bool:
        """Whether round ``number`` of a workload is to be run with these arms."""
        if number >= self.rounds:
            return False
        if number < self.least or self.limit_s is None:
            return True
        return elapsed_s + self.foreseen_s(workload, arms) <= self.limit_s

    def foreseen_s(self, workload: str, arms: Sequence[str]) -> float:
        """What the arms took before, together."""
        return sum(self.seconds.get((workload, arm), 0.0) for arm in arms)

    def took(self, workload: str, seconds: Mapping[str, float]) -> None:
        """Note what each arm took in a round."""
        self.seconds |= {(workload, arm): each for arm, each in seconds.items()}
