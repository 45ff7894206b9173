"""Runs an engine step by step while everything that can be counted twice is."""

from __future__ import annotations

from collections.abc import Callable

from recount import recount

from experiment.engine.engine import Engine
from experiment.engine.generation import StepOutcome
from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.core.step import Finish, OpKind, StepPlan


class CheckedRun:
    """An engine, and a ledger that replays its plans as they go through the log."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shape = PoolShape(engine.pool.num_blocks, engine.pool.block_size, 1)
        self.ledger = Ledger(self.shape)
        self.plans: list[StepPlan] = []
        self.finished: list[Finish] = []

    def step(self) -> StepOutcome:
        """One step; tensors, tables, ledger and recount must agree in its middle."""
        engine, ledger = self.engine, self.ledger
        outcome = engine.execute()
        self.plans.append(outcome.plan)
        counts = ledger.apply(outcome.plan)
        engine.blocks.check_integrity()
        assert counts == recount(self.shape, ledger.owners, ledger.cached)
        assert counts.reserved == self.shape.slots
        assert engine.pool.written_slots() == ledger.written_slots
        assert ledger.tables() == {r: tuple(engine.blocks.table(r)) for r in engine.blocks.owners}
        entries = [block for table in ledger.tables().values() for block in table]
        assert (ledger.table_entries, ledger.owned_blocks) == (len(entries), len(set(entries)))
        self.finished += engine.complete(outcome)
        engine.blocks.check_integrity()
        return outcome

    def to_the_end(
        self, before: Callable[[int], None] | None = None, least: int = 0
    ) -> list[StepPlan]:
        """Step until nothing is left, ``least`` times at least; ``before`` gets the step."""
        while self.engine.scheduler.has_work or len(self.plans) < least:
            assert len(self.plans) < 3000, "no progress"
            if before is not None:
                before(len(self.plans))
            self.step()
        blocks, host = self.engine.blocks, self.engine.scheduler.host
        assert blocks.num_free == blocks.num_blocks
        assert len(self.ledger.cached) == blocks.num_cached
        assert host is None or not host.owners
        return self.plans

    def count(self, kind: OpKind) -> int:
        """Blocks of all operations of a kind so far."""
        return sum(len(op.blocks) for plan in self.plans for op in plan.ops if op.kind is kind)
