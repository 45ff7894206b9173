"""Background load of other programs during each measured repeat of an arm.

    usage of an arm, every 250 ms     others   0.0 0.1 0.0 | 1.2 1.0 1.1 | 0.0 0.0 0.1
                                               repeat 1      repeat 2      repeat 3
                                                             no verdict on a time of this arm

Load that slows all consecutive repeats of an arm alike does not show in their spread; between
interleaved arms it may be unequal. An arm without samples is judged by the load before the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from experiment.analysis.experiment_results import BUSY_NOTE
from experiment.analysis.gains import cores_before
from experiment.events import (
    ArmStarted,
    EnvironmentProbed,
    Event,
    Notice,
    RepeatFinished,
    Step,
    TurnStarted,
    Usage,
)
from experiment.experiments.cells import CellEvents, is_old_notice
from experiment.machine.background_load import is_busy
from experiment.text.messages import Message, message

# Shorter repeats, in nanoseconds, are not judged separately: a brief load is normal.
_LONG = 10**9


def cell_others(cell: CellEvents) -> dict[str, float]:
    """See :func:`others_cores`."""
    return others_cores((*cell.before, *cell.events))


def others_cores(events: Iterable[Event]) -> dict[str, float]:
    """Cores that other programs used while an arm ran, by arm; without undisturbed arms.

    If an older log has the load at the arm's start, the larger of the two.
    """
    seen: dict[str, float] = {}
    before: float | None = None
    ran: defaultdict[str, _Ran] = defaultdict(_Ran)
    for event in events:
        if isinstance(event, Notice) and is_old_notice(event) and event.arm is not None:
            seen[event.arm] = event.text.params["cores"]
        elif isinstance(event, EnvironmentProbed):
            before = cores_before(event.environment)
        elif isinstance(event, Step | Usage | TurnStarted | RepeatFinished):
            ran[event.arm].take(event)
    for arm, each in ran.items():
        cores = each.others_cores()
        cores = before if cores is None else cores
        if cores is not None and is_busy(cores):
            seen[arm] = max(cores, seen.get(arm, 0.0))
    return seen


@dataclass(slots=True)
class _Ran:
    """Load samples of an arm and the times of its measured repeats, in nanoseconds.

    ``samples`` are (start, end, cores used by others); ``spans`` (start of a repeat's first step,
    end of its last one).
    """

    samples: list[tuple[int, int, float]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    _sampled: int | None = None
    _steps: list[Step] = field(default_factory=list)

    def take(self, event: Step | Usage | TurnStarted | RepeatFinished) -> None:
        """Process the arm's next event."""
        if isinstance(event, Step):
            self._steps.append(event)
        elif isinstance(event, RepeatFinished):
            if self._steps and not event.warm_up:
                self.spans.append((self._steps[0].started_ns, self._steps[-1].t_ns))
            self._steps = []
        elif isinstance(event, TurnStarted):
            self._sampled = event.t_ns  # earlier time belongs to other arms' turns
        else:
            # The start of the first sample is unknown; the arm was not generating yet.
            if self._sampled is not None and event.others_cores is not None:
                self.samples.append((self._sampled, event.t_ns, event.others_cores))
            self._sampled = event.t_ns

    def others_cores(self) -> float | None:
        """Largest mean of a repeat; short repeats are merged. None if unknown."""
        judged = [[span] for span in self.spans if span[1] - span[0] >= _LONG]
        judged.append([span for span in self.spans if span[1] - span[0] < _LONG])
        means = map(self._mean, judged)
        return max((mean for mean in means if mean is not None), default=None)

    def _mean(self, spans: Sequence[tuple[int, int]]) -> float | None:
        """Mean over the spans; samples are clipped to them."""
        parts = [
            (min(end, to) - max(begin, since), cores)
            for begin, end in spans
            for since, to, cores in self.samples
            if since < end and begin < to
        ]
        seconds = sum(part for part, _ in parts)
        return sum(part * cores for part, cores in parts) / seconds if seconds else None


def busy_note(cells: Sequence[CellEvents]) -> list[Message]:
    """One note on all disturbed arms; empty without any."""
    seen = [cores for cell in cells for cores in cell_others(cell).values()]
    if not seen:
        return []
    began = sum(isinstance(event, ArmStarted) for cell in cells for event in cell.events)
    return [message(BUSY_NOTE, n=len(seen), of=began, cores=max(seen))]
