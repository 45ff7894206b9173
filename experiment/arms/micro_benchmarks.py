"""Micro-benchmarks of single experiments, run inside the arm process."""

from __future__ import annotations

from dataclasses import asdict

import torch

from experiment.arms.base import ArmRun
from experiment.arms.engine_setup import query_heads
from experiment.engine.arena import Arena, ArenaRequest, run_arena
from experiment.engine.attention.lookup import layouts, queries, time_lookup
from experiment.events import HolesSeen, LookupTimed
from kvsim.core.request import final_tokens
from kvsim.sim.arena import FITS, Fit, Pieces


def run_micro_benchmarks(run: ArmRun, model: torch.nn.Module, kernel: str) -> None:
    """Run the micro-benchmark of this run's experiment and emit its result; paged arm only."""
    name = run.task.config.experiment.name
    if run.task.arm != "paged" or run.task.model.own_attention:
        return
    with run.paused():
        if name == "lookup" and (timed := _lookup(run, model, kernel)):
            run.emit(timed)
        elif name == "holes":
            for each in FITS:
                run.emit(_holes(run, each))


def _lookup(run: ArmRun, model: torch.nn.Module, kernel: str) -> LookupTimed | None:
    """Time lookups at the end of the workload's requests, which are alike; None if impossible."""
    workload, like = run.task.workload, torch.empty(0, dtype=run.task.dtype, device=run.device)
    first, count = workload.requests[0], len(workload.requests)
    context = final_tokens(len(first.token_ids), first.max_new_tokens)
    size = workload.block_size
    given = layouts(run.task.geometry, count, context, size, like)
    heads = query_heads(model, run.task.geometry.kv_heads)
    found = time_lookup(kernel, queries(count, heads, given[0].kv), given)
    if found is None:
        return None
    return LookupTimed(
        arm=run.task.arm, requests=count, context=context, block_size=size, **asdict(found)
    )


def _holes(run: ArmRun, name: Fit) -> HolesSeen:
    task = run.task
    slot_bytes = task.geometry.bytes_per_token
    slots = task.workload.budget_bytes // slot_bytes
    requests = [
        ArenaRequest(len(one.token_ids), one.max_new_tokens, one.arrival)
        for one in task.workload.requests
    ]
    max_running = task.config.engine.max_num_seqs
    found = run_arena(
        requests, Arena(slots, slot_bytes, run.device), Pieces(slots, name), max_running
    )
    return HolesSeen.model_validate(
        {"arm": task.arm, "allocator": name, "slots": slots, "slot_bytes": slot_bytes}
        | asdict(found)
    )
