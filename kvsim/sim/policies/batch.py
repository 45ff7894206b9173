"""Batches that start, step and are released together.

    static    slab  [pad pad | prompt | generated | never written .... ]  of the maximum length
              slab  [prompt ......... | generated | never written .... ]
    growing   rows  [pad pad | prompt | generated ]─► copied into a longer one at every growth
                    [prompt ......... | generated ]   both exist while copying

Prompts are left-padded to the longest one. An ended row is computed until the last row ends.
Copies are counted but take no time.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.accounting.slots import SlotState
from kvsim.core.request import final_tokens
from kvsim.latency.roofline import StepWork
from kvsim.sim.arrivals import Shortfall
from kvsim.sim.config import SimConfig
from kvsim.sim.policies.base import Policy


@dataclass(slots=True)
class _Batch:
    """Rows sorted by their ends; the first ``ended`` have ended."""

    rows: list[int]
    longest: int
    last: int  # new tokens of the row that ends last
    generated: int = 0
    ended: int = 0


class Static(Policy):
    """Slabs of the maximum length, allocated for a whole batch."""

    names = (
        SlotState.LIVE.value,
        SlotState.PADDING.value,
        SlotState.FINISHED.value,
        SlotState.UNWRITTEN.value,
        SlotState.FREE.value,
    )

    growth_per_step = 0  # slots by which each row grows

    def __init__(self, config: SimConfig) -> None:
        super().__init__(config)
        self.slots = config.shape.slots
        self.batch: _Batch | None = None

    def memory_shortfall(self, prompt: int, output: int) -> Shortfall | None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        needed = self.peak_slots(1, prompt, output)
        return Shortfall("slots", needed, self.slots) if needed > self.slots else None

    def peak_slots(self, rows: int, longest: int, last: int) -> int:  # noqa: ARG002
        """Return the peak slots of ``rows`` rows."""
        return rows * self.config.max_length

    def width(self) -> int:
        """Return the slots that each row holds."""
        return self.config.max_length

    def grow(self, steps: int) -> None:
        """Prepare ``steps`` further positions of each row."""

    @property
    def has_work(self) -> bool:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        return self.batch is not None

    def levels(self) -> tuple[int, ...]:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        batch = self.batch
        if batch is None:
            return 0, 0, 0, 0, self.slots
        prompts, width = self._run.arrivals.prompt, self.width()
        pads = [batch.longest - prompts[row] for row in batch.rows]
        written = batch.longest + batch.generated
        alive = pads[batch.ended :]
        live = len(alive) * written - sum(alive)
        finished = batch.ended * width - sum(pads[: batch.ended])
        unwritten = len(alive) * (width - written)
        free = self.slots - len(pads) * width
        assert min(live, finished, unwritten, free) >= 0, "the states do not sum to the pool"
        return live, sum(pads), finished, unwritten, free

    def step(self) -> None:
        """See :class:`kvsim.sim.policies.base.Policy`."""
        if self.batch is None:
            self._prefill()
        else:
            self._decode(self.batch)
        batch = self.batch
        if batch is not None and batch.ended == len(batch.rows):
            self.batch = None

    def _prefill(self) -> None:
        run, arrivals = self._run, self._run.arrivals
        rows, longest, last = self._choose()
        for row in rows:
            run.started(row)
        rows.sort(key=lambda row: arrivals.output[row])
        self.batch = batch = _Batch(rows, longest, last)
        run.totals.batches += 1
        tokens = len(rows) * longest
        pairs = len(rows) * (longest * (longest + 1) // 2)
        duration = run.clock.step(StepWork(tokens, 0, tokens, pairs))
        run.recorder.step(self.levels(), len(rows), arrivals.waiting, duration)
        run.totals.computed_tokens += tokens
        run.totals.pad_tokens += tokens - sum(arrivals.prompt[row] for row in rows)
        for row in rows:
            run.first_token(row)
        self._end_rows(batch)

    def _choose(self) -> tuple[list[int], int, int]:
        arrivals = self._run.arrivals
        rows: list[int] = []
        longest = last = 0
        while arrivals.waiting and len(rows) < self.config.max_num_seqs:
            row = arrivals.peek()
            wider, later = max(longest, arrivals.prompt[row]), max(last, arrivals.output[row])
            fits = final_tokens(wider, later) <= self.config.max_length
            if not fits or self.peak_slots(len(rows) + 1, wider, later) > self.slots:
                break
            rows.append(arrivals.pop())
            longest, last = wider, later
        return rows, longest, last

    def _decode(self, batch: _Batch) -> None:
        """Decode up to the next end."""
        run, rows = self._run, len(batch.rows)
        ends = run.arrivals.output[batch.rows[batch.ended]]
        # The prefill samples the first of n new tokens, decoding the other n - 1.
        steps = ends - 1 - batch.generated if run.jump else 1
        context = rows * (batch.longest + batch.generated)
        line = run.decode_run(rows, context, steps)
        steps = line.steps
        self.grow(steps)
        batch.generated += 1
        alive, wider = rows - batch.ended, self.growth_per_step
        slopes = (alive, 0, batch.ended * wider, alive * (wider - 1), -rows * wider)
        run.recorder.run(self.levels(), slopes, alive, run.arrivals.waiting, line)
        batch.generated += steps - 1
        run.totals.computed_tokens += rows * steps
        run.totals.ended_tokens += batch.ended * steps
        self._end_rows(batch)

    def _end_rows(self, batch: _Batch) -> None:
        run = self._run
        while batch.ended < len(batch.rows):
            row = batch.rows[batch.ended]
            if run.arrivals.output[row] - 1 > batch.generated:
                break
            batch.ended += 1
            run.finish(row)


class Growing(Static):
    """Rows without spare slots; every step copies the batch's cache into a longer one."""

    growth_per_step = 1

    def peak_slots(self, rows: int, longest: int, last: int) -> int:
        """Return the slots of the last copy, old and new."""
        width = final_tokens(longest, last)
        return rows * (width if width == longest else 2 * width - 1)

    def width(self) -> int:
        """Return the slots that each row holds."""
        batch = self.batch
        assert batch is not None
        return batch.longest + batch.generated

    def grow(self, steps: int) -> None:
        """Count the slots that ``steps`` further positions of each row copy."""
        batch, totals = self.batch, self._run.totals
        assert batch is not None
        rows, width = len(batch.rows), self.width()
        totals.copied_slots += rows * (steps * width + steps * (steps - 1) // 2)
        peak = rows * (2 * (width + steps) - 1)
        totals.peak_copy_slots = max(totals.peak_copy_slots, peak)
