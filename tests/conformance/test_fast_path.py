"""The simulator's fast path plans as the scheduler does, on the workloads of the oracle."""

from __future__ import annotations

from dataclasses import dataclass

from sweeps import TIMES
from test_cohort import Case, both
from workloads import Workload, keys_of, random_workload, scheduling_of

from kvsim.core.request import Request


@dataclass(frozen=True)
class WorkloadCase(Case):
    """A workload as the comparison of fast and plain takes it: every request to its end."""

    workload: Workload | None = None

    def arrivals(self, step: int) -> list[Request]:
        assert self.workload
        return [
            Request(
                number,
                len(one["tokens"]),
                one["new"],
                keys_of(self.block_size, whole_text(one)),
                one["priority"],
            )
            for number, one in enumerate(self.workload["requests"])
            if one["arrival"] == step
        ]


def whole_text(request: Workload) -> list[int]:
    prompt = len(request["tokens"])
    return [*request["tokens"], *(30_001 + prompt + place for place in range(request["new"]))]


def test_the_fast_path_plans_as_the_scheduler_does() -> None:
    taken = 0
    for seed in range(150 * TIMES):
        workload = random_workload(seed)
        config = scheduling_of(workload)
        # It has no interval between prefills, and room for a token of all that run.
        if config.prefill_schedule_interval > 1 or config.token_budget < config.active_seqs:
            continue
        rows = tuple(
            (one["arrival"], len(one["tokens"]), one["new"], 0) for one in workload["requests"]
        )
        both(
            WorkloadCase(
                workload["blocks"], workload["block_size"], config, rows, workload=workload
            )
        )
        taken += 1
    assert taken > 100 * TIMES
