"""Observe vLLM's scheduler: each decision becomes a plan and a snapshot of block tables.

Reads ``running``, ``requests``, ``kv_cache_manager`` and ``get_request_counts`` of vLLM's
``Scheduler``, and from its output the number of tokens for each request and the preempted requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from kvsim.core.observed import Decision, ScheduleTrace
from kvsim.core.step import Chunk, StepPlan


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """A plan, and block tables and written tokens after it."""

    plan: StepPlan
    tables: dict[int, list[int]]
    written: dict[int, int]


@dataclass(slots=True)
class SchedulerWatcher:
    """Wraps the scheduler's ``schedule``. ``ids`` maps vLLM's request names to ours.

    It runs during a step, within ``paused``, so that its time is not counted. ``decisions`` are the
    decisions since it was last cleared: one per step, unless vLLM schedules ahead.
    """

    scheduler: Any
    trace: ScheduleTrace
    ids: Mapping[str, int]
    paused: Callable[[], AbstractContextManager[None]]
    decisions: list[ObservedStep] = field(default_factory=list)
    _decide: Any = None

    def attach(self) -> None:
        """Start observing."""
        decide = self._decide = self.scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            output = decide(*args, **kwargs)
            with self.paused():
                self._take(output)
            return output

        self.scheduler.schedule = schedule

    def detach(self) -> None:
        """Stop observing."""
        self.scheduler.schedule = self._decide

    def tables(self) -> dict[int, list[int]]:
        """Block tables of running requests, in the scheduler's order."""
        found = {}
        for request in self.scheduler.running:
            # One attention kind, one table: see arm.py.
            table = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]
            if table:
                found[self.ids[request.request_id]] = list(table)
        return found

    def blocks_in_tables(self) -> int:
        """Number of distinct blocks held by unfinished requests."""
        return len({block for table in self.tables().values() for block in table})

    def _take(self, output: Any) -> None:
        tables = self.tables()
        chunks = []
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            # The scheduler has already counted the step's tokens as computed.
            end = request.num_computed_tokens
            chunks.append(Chunk(self.ids[name], end - count, count, end >= request.num_tokens))
        preempted = tuple(self.ids[name] for name in output.preempted_req_ids or ())
        waiting = self.scheduler.get_request_counts()[1]
        plan = self.trace.plan(Decision(tables, preempted, tuple(chunks), waiting))
        written = {
            self.ids[r.request_id]: r.num_computed_tokens
            for r in self.scheduler.running
            if self.ids[r.request_id] in tables
        }
        self.decisions.append(ObservedStep(plan, tables, written))
