"""The base of policies, and the state of a simulation in progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from math import isnan

from kvsim.core.prefix import PrefixStats
from kvsim.core.request import final_tokens
from kvsim.latency.clock import DecodeRun, StepClock
from kvsim.sim.arrivals import ArrivalQueue, Shortfall, seconds
from kvsim.sim.config import SimConfig, SimulationError
from kvsim.sim.recorder import Recorder

# Levels in addition to the slot states.
LARGEST_PIECE, WHOLE_PIECE = "largest_free_piece", "whole_free_piece"
WRITTEN_LATER, NEVER_WRITTEN = "written_later", "never_written"
# Steps without a finished request that are tolerated beyond twice the longest request.
_GRACE_STEPS = 1000


@dataclass(slots=True)
class Totals:
    """Counters over a whole run.

    Attributes:
        computed_tokens: positions whose K and V were computed, padding and recomputed ones
            included.
        final_tokens: positions of finished requests, each once.
        shared_tokens: positions that requests took from others.
        pad_tokens: padding computed.
        ended_tokens: computed for ended rows.
        preempted: number of preemptions of each request (or search).
        swapped_out, swapped_in: blocks moved to the host and back.
        copied_blocks: by copy-on-write; ``copied_slots``: by a growing cache.
        peak_copy_slots: most slots taken while a growing cache was copied.
        unshared, held: block-steps without and with sharing, see
            :class:`kvsim.accounting.slots.Sharing`.
        batches: batches of ``static`` and ``growing``.
    """

    computed_tokens: int = 0
    final_tokens: int = 0
    shared_tokens: int = 0
    pad_tokens: int = 0
    ended_tokens: int = 0
    output_tokens: int = 0
    preempted: Counter[int] = field(default_factory=Counter)
    swapped_out: int = 0
    swapped_in: int = 0
    copied_blocks: int = 0
    copied_slots: int = 0
    peak_copy_slots: int = 0
    unshared: int = 0
    held: int = 0
    batches: int = 0
    finished: int = 0


@dataclass(slots=True)
class SimulationRun:
    """A simulation in progress. ``jump``: fast-forward over decode-only steps."""

    config: SimConfig
    arrivals: ArrivalQueue
    recorder: Recorder
    clock: StepClock
    jump: bool = True
    totals: Totals = field(default_factory=Totals)
    _progress: tuple[int, int] = (0, 0)  # finished requests, and steps since the last one

    def started(self, row: int) -> None:
        """Record that a chunk of a request starts now; the first one counts."""
        if isnan(self.arrivals.scheduled[row]):
            self.arrivals.scheduled[row] = seconds(self.recorder.now)

    def first_token(self, row: int) -> None:
        """Record that a request has a token now; the first one counts."""
        if isnan(self.arrivals.first_token[row]):
            self.arrivals.first_token[row] = seconds(self.recorder.now)

    def finish(self, row: int, sequences: int = 1) -> None:
        """Record that a request ends now; ``sequences`` were generated from its prompt."""
        arrivals, totals = self.arrivals, self.totals
        arrivals.finished[row] = seconds(self.recorder.now)
        output = arrivals.output[row]
        totals.finished += 1
        totals.output_tokens += output * sequences
        totals.final_tokens += arrivals.prompt[row] + sequences * (output - 1)

    def decode_run(self, decodes: int, context: int, steps: int) -> DecodeRun:
        """Return steps up to the next arrival or series point, see :class:`StepClock`."""
        recorder, at = self.recorder, self.arrivals.next_arrival_at
        until = recorder.next_point_at if at is None else min(recorder.next_point_at, at)
        return self.clock.decode_run(decodes, context, steps).until(until - recorder.now)

    def check_progress(self, more: int) -> None:
        """Check for progress after ``more`` steps.

        The oldest request computes at least one token per step, so it ends within its length.

        Raises:
            SimulationError: ``livelock``: no request ends.
        """
        ended, steps = self._progress
        finished = self.totals.finished
        if finished != ended:
            self._progress = (finished, 0)
            return
        self._progress = (ended, steps + more)
        if steps > 2 * self.arrivals.most_positions + _GRACE_STEPS:
            raise SimulationError(
                "livelock", steps=steps, finished=finished,
                waiting=self.arrivals.waiting, seconds=seconds(self.recorder.now),
            )  # fmt: skip


class Policy(ABC):
    """A pool and its scheduling. ``names`` are those of its levels."""

    names: tuple[str, ...]

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self._run: SimulationRun

    def begin(self, run: SimulationRun) -> None:
        """Attach to ``run``."""
        self._run = run

    def check(self, prompt: int, output: int, samples: int) -> Shortfall | None:
        """Return why a request of these lengths and samples can never be served, or None."""
        if samples > 1:
            return Shortfall("samples", samples, 1)
        final = final_tokens(prompt, output)
        if final > self.config.max_length:
            return Shortfall("max_length", final, self.config.max_length)
        return self.memory_shortfall(prompt, output)

    @abstractmethod
    def memory_shortfall(self, prompt: int, output: int) -> Shortfall | None:
        """Return why a request does not fit into the empty pool, or None."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether requests run or wait inside the policy, or ends are unreported."""

    @abstractmethod
    def levels(self) -> tuple[int, ...]:
        """Return the current levels, in the order of ``names``."""

    @abstractmethod
    def step(self) -> None:
        """Simulate one step, or several decode-only ones; record them and advance the clock."""

    def stats(self) -> PrefixStats | None:
        """Return the prefix cache counters; None without a prefix cache."""
        return None
