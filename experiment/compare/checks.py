"""Compare two runs, and check a run against a baseline and a gate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiment.compare.baseline import check_unchanged, read_any
from experiment.compare.gate import GateResult, Limit, judge, read_gate
from experiment.compare.results import Comparison, Side
from experiment.compare.sides import compare_sides
from experiment.files.shipped import find_config
from experiment.text.errors import user_error


def compare_runs(left: Path, right: Path) -> Comparison:
    """Compare two runs; each is a run directory or a baseline file.

    Raises:
        UserError: one of them cannot be read.
    """
    return compare_sides(read_any(left), read_any(right))


@dataclass(frozen=True, slots=True)
class Checks:
    """Baseline and limits for a run, read before it starts so that errors are found early."""

    baseline: Side | None
    limits: tuple[Limit, ...] | None

    @property
    def any(self) -> bool:
        """Whether there is any check."""
        return self.baseline is not None or self.limits is not None

    def judge(self, side: Side) -> list[GateResult]:
        """Judge every limit of the gate.

        Raises:
            UserError: a file of either run was changed after it was written.
        """
        for one in (self.baseline, side):
            if one is not None:
                check_unchanged(one)
        return judge(self.limits or (), side, self.baseline)


NO_CHECKS = Checks(None, None)


def read_checks(baseline: str | None, gate: str | None, before: bool = False) -> Checks:
    """Read the files of ``--baseline`` and ``--gate``; ``before``: another run is the baseline.

    Raises:
        UserError: one of them cannot be used, or the gate needs a baseline that was not given.
    """
    limits = read_gate(find_config(gate)) if gate is not None else None
    side = read_any(_find_baseline(baseline)) if baseline is not None else None
    relative = any(limit.relative for limit in limits or ())
    if relative and side is None and not before:
        raise user_error("error.gate.needs_baseline", path=gate)
    return Checks(side, limits)


def _find_baseline(name: str) -> Path:
    path = Path(name)
    return path if path.exists() else find_config(name, ".json")
