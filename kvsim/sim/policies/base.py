"""What every policy has in common: the run that it is part of, and how it is driven."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from kvsim.core.prefix import PrefixStats
from kvsim.core.request import final_tokens
from kvsim.latency.clock import StepClock
from kvsim.sim.arrivals import Arrivals, Misfit, seconds
from kvsim.sim.config import SimConfig, SimulationError
from kvsim.sim.recorder import Recorder

# Levels beside the states of a slot.
LARGEST_PIECE, WHOLE_PIECE = "largest_free_piece", "whole_free_piece"
WRITTEN_LATER, NEVER_WRITTEN = "written_later", "never_written"
# Turns that may pass without the end of a request, beyond twice the longest one's positions.
_PATIENCE = 1000


@dataclass(slots=True)
class Totals:
    """Counts over a whole run.

    Attributes:
        computed_tokens: positions whose K and V were computed, fillers and repeats included.
        final_tokens: positions of the requests that have ended, each once.
        shared_tokens: of those, begun with, because others had computed them.
        pad_tokens: fillers computed.
        ended_tokens: computed for rows that had ended already.
        preempted: how often each request (or search) lost its blocks.
        swapped_out, swapped_in: blocks moved to the host and back.
        copied_blocks: by copy-on-write; ``copied_slots``: by a cache that grows.
        peak_copy_slots: most slots that were taken at once while a cache was copied.
        unshared, held: block-steps without and with sharing, see :mod:`kvsim.accounting.sharing`.
        batches: of static policies.
        orphaned_blocks: cached ones that requests asked for and could not reach.
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
    orphaned_blocks: int = 0
    finished: int = 0


@dataclass(slots=True)
class Run:
    """A simulation in progress. ``jump``: several steps at once where nothing changes."""

    config: SimConfig
    arrivals: Arrivals
    recorder: Recorder
    clock: StepClock
    jump: bool = True
    totals: Totals = field(default_factory=Totals)
    _watched: tuple[int, int] = (0, 0)  # requests ended, and turns since the last one did

    def started(self, row: int) -> None:
        """The first tokens of a request are computed from now on."""
        self.arrivals.scheduled[row] = seconds(self.recorder.now)

    def first_token(self, row: int) -> None:
        """A request has its first token now."""
        self.arrivals.first_token[row] = seconds(self.recorder.now)

    def finish(self, row: int, sequences: int = 1) -> None:
        """A request has its last token now; ``sequences`` were generated from its prompt."""
        arrivals, totals = self.arrivals, self.totals
        arrivals.finished[row] = seconds(self.recorder.now)
        output = arrivals.output[row]
        totals.finished += 1
        totals.output_tokens += output * sequences
        totals.final_tokens += arrivals.prompt[row] + sequences * (output - 1)

    def horizon(self) -> int:
        """Attoseconds from now to what happens next outside of the pool; -1: nothing does."""
        recorder, at = self.recorder, self.arrivals.next_at
        mark = recorder.next_mark
        until = mark if at is None or mark < at else at
        return until - recorder.now

    def watch(self, more: int) -> None:
        """Make sure, after so many more turns, that requests end.

        The oldest one computes a token at least in every step, so it ends within its length.

        Raises:
            SimulationError: ``livelock``: steps go by and no request ends.
        """
        ended, turns = self._watched
        finished = self.totals.finished
        if finished != ended:
            self._watched = (finished, 0)
            return
        self._watched = (ended, turns + more)
        if turns > 2 * self.arrivals.most_positions + _PATIENCE:
            raise SimulationError(
                "livelock", steps=turns, finished=finished,
                waiting=self.arrivals.waiting, seconds=seconds(self.recorder.now),
            )  # fmt: skip


class Policy(Protocol):
    """A pool and who runs on it."""

    names: tuple[str, ...]

    def check(self, prompt: int, output: int, samples: int) -> Misfit | None:
        """Whether a request of such lengths and so many samples can ever be served."""

    def begin(self, run: Run) -> None:
        """Be part of ``run`` from now on."""

    @property
    def busy(self) -> bool:
        """Whether anything runs, waits inside of the policy, or is still to be reported."""

    def levels(self) -> tuple[int, ...]:
        """Slots by state now, and what else ``names`` says."""

    def step(self) -> None:
        """One step, or some at whose boundaries nothing changes: record them, move the clock."""

    def stats(self) -> PrefixStats | None:
        """What the prefix cache found; None without one."""

    def check_integrity(self) -> None:
        """Compare the policy's records with each other."""


class Unshared:
    """A policy that keeps one sequence for each request, and shares nothing with anybody."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self._run: Run

    def begin(self, run: Run) -> None:
        """See :class:`Policy`."""
        self._run = run

    def check(self, prompt: int, output: int, samples: int) -> Misfit | None:
        """See :class:`Policy`; what memory there is for it is asked in :meth:`room_for`."""
        if samples > 1:
            return Misfit("samples", samples, 1)
        final = final_tokens(prompt, output)
        if final > self.config.max_length:
            return Misfit("max_length", final, self.config.max_length)
        return self.room_for(prompt, output)

    def room_for(self, prompt: int, output: int) -> Misfit | None:
        """Whether a request of such lengths finds memory in an empty pool."""
        raise NotImplementedError

    def stats(self) -> PrefixStats | None:
        """See :class:`Policy`."""
        return None
