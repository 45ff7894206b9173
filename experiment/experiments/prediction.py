"""kvsim's predictions for a cell: simulations of the same lengths under the same policy.

    contiguous.sequential   static, one prompt's samples at once      slabs   paged, block = slab
    contiguous.batch        static, as many rows as slabs             paged   paged
    contiguous.compiled     the same
    contiguous.growing      growing, one prompt's samples at once

Every step takes one second of the simulated clock, so means over time are means over steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from experiment.analysis.experiment_results import CellResult
from experiment.config.arms import ARMS
from experiment.config.kv_dtype import cache_geometry
from experiment.config.schema import Config
from experiment.events import ModelPrepared, WorkloadReady
from experiment.experiments.arenas import ArenaPrediction
from experiment.experiments.base import cell_config
from experiment.experiments.cells import Cell, CellEvents
from experiment.experiments.found import Simulate
from experiment.text.errors import UserError
from experiment.text.messages import Message, message
from experiment.workload.requests import cannot_grow, random_requests
from kvsim.latency.roofline import LinearLatency
from kvsim.sim.arena import Fit, replay_arena
from kvsim.sim.config import SimConfig, SimulationError
from kvsim.sim.metrics import SimResult
from kvsim.sim.simulator import simulate
from kvsim.sizing.geometry import KVGeometry
from kvsim.traces.types import NANOSECONDS, TraceInfo, TraceRequest

_ONE_SECOND = LinearLatency(fixed_s=1.0)
# The simulator's reason if a pool cannot hold a slab or any request.
REFUSED = "experiments.unforetold.refused"
OTHER_ENGINES = tuple(name for name, arm in ARMS.items() if arm.simulated is None)


def decided_by_scores(config: Config) -> bool:
    """Whether counts depend on the model's scores, and so not on lengths alone."""
    workload, sampling = config.workload, config.sampling
    return scores_decide(
        ignore_eos=workload.ignore_eos, stops=sampling.stop_token_ids, beams=sampling.beam_width
    )


def scores_decide(*, ignore_eos: bool, stops: Collection[int], beams: int) -> bool:
    """Whether scores determine where requests end, or which beams are selected."""
    return not ignore_eos or bool(stops) or beams > 1


def predict(
    arm: str, config: Config, model: ModelPrepared, workload: WorkloadReady
) -> SimResult | Message:
    """Simulate an arm's requests, or return the reason why not."""
    if arm not in ARMS or arm in OTHER_ENGINES:
        return message("experiments.unforetold.other_engine")
    if decided_by_scores(config):
        return message("experiments.unforetold.scores")
    if config.workload.timed:
        return message("experiments.unforetold.wall")
    kind = ARMS[arm].simulated
    if kind == "growing" and (why := cannot_grow(arm, workload, model.slot_bytes)) is not None:
        return why
    paged = kind in ("slabs", "paged")
    requests = _requests(config, workload, paged, _block_size(arm, workload))
    return _simulated(requests, lambda: _sim_config(arm, config, model, workload))


def simulator(cells: Sequence[CellEvents]) -> Simulate:
    """Return a function that predicts cells with other values of config keys."""

    def simulate(cell: CellResult, arm: str, overrides: Mapping[str, Any]) -> SimResult | Message:
        mine = next(each for each in cells if each.started.index == cell.index)
        model, workload = mine.first(ModelPrepared), mine.first(WorkloadReady)
        if model is None or workload is None:
            return message("experiments.unforetold.not_said")
        try:
            config = cell_config(mine.config, Cell({}, overrides))
            requests = random_requests(config, model.vocab_size, lambda _: "")
        except UserError as error:
            return message(REFUSED, reason=error.text.key)
        changed = {"requests": requests, "max_length": config.cache.max_length}
        return predict(arm, config, model, workload.model_copy(update=changed))

    return simulate


def last_that(holds: Callable[[int], bool | None], low: int, high: int) -> int | None:
    """Bisect for the largest number for which a monotonic condition holds.

    None if it does not hold for ``low``, holds for ``high``, or is unknown (None) for a number.
    """
    if holds(low) is not True or holds(high) is not False:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        known = holds(middle)
        if known is None:
            return None
        low, high = (middle, high) if known else (low, middle)
    return low


def predict_arena(
    config: Config, model: ModelPrepared, workload: WorkloadReady, fit: Fit
) -> ArenaPrediction | Message:
    """Predict the same requests in one contiguous arena, or return the reason why not.

    A step there generates a token for each request, for any prompt length.
    """
    if config.workload.timed:
        return message("experiments.unforetold.wall")
    shape = KVGeometry(model.layers, model.kv_heads, model.head_dim, model.element_bytes)
    requests = _requests(config, workload, paged=False, block_size=workload.block_size)
    slot = shape.bytes_per_token
    slots, seats = workload.budget_bytes // slot, config.engine.max_num_seqs
    try:
        counts = replay_arena(requests, slots, seats, fit)
    except SimulationError as error:
        return message(REFUSED, reason=str(error))
    # A request runs one step per generated token.
    mean = sum(one.output_tokens for one in requests) / counts.steps
    return ArenaPrediction(**asdict(counts), slot_bytes=slot, running_mean=mean)


def _simulated(requests: list[TraceRequest], make: Callable[[], SimConfig]) -> SimResult | Message:
    try:
        return simulate(_Listed(requests), make())
    except SimulationError as error:
        return message(REFUSED, reason=str(error))


def _block_size(arm: str, workload: WorkloadReady) -> int:
    return workload.max_length if ARMS[arm].simulated == "slabs" else workload.block_size


def _sim_config(
    arm: str, config: Config, model: ModelPrepared, workload: WorkloadReady
) -> SimConfig:
    kind = ARMS[arm].simulated
    shape = KVGeometry(model.layers, model.kv_heads, model.head_dim, model.element_bytes)
    slot = shape.bytes_per_token
    widest = max(map(len, workload.samples()))
    # Ample: requests that do not fit are refused above, and copies are not counted.
    room = 3 * widest * workload.max_length * slot
    base = SimConfig(
        policy="paged",
        budget_bytes=room if kind == "growing" else workload.budget_bytes,
        slot_bytes=slot,
        max_length=workload.max_length,
        latency=_ONE_SECOND,
    )
    if kind in ("slabs", "paged"):
        return _paged(base, config, shape, workload, _block_size(arm, workload))
    slabs = workload.budget_bytes // (workload.max_length * slot)
    rows = min(slabs, len(workload.requests), config.engine.max_num_seqs)
    if kind == "padded":
        return replace(base, policy="static", max_num_seqs=rows)
    if kind == "one_by_one":
        return replace(base, policy="static", max_num_seqs=min(rows, widest))
    return replace(base, policy="growing", max_num_seqs=widest)


def _paged(
    base: SimConfig, config: Config, shape: KVGeometry, workload: WorkloadReady, size: int
) -> SimConfig:
    """Add the engine's limits; the number of blocks depends on the cache's dtype."""
    cache, engine = cache_geometry(shape, config.cache.kv_dtype), config.engine
    blocks = cache.blocks_in(workload.budget_bytes, size)
    scheduling = engine.scheduling()
    del scheduling["policy"], scheduling["prefix_caching"]
    return replace(
        base,
        policy="paged+prefix" if engine.prefix_caching else "paged",
        budget_bytes=blocks * size * base.slot_bytes,
        block_size=size,
        **scheduling,
        watermark_blocks=config.cache.watermark_for(size, workload.max_length),
        host_blocks=cache.blocks_in(engine.swap_space, size),
        scheduling_policy=engine.policy,
    )


def _requests(
    config: Config, workload: WorkloadReady, paged: bool, block_size: int
) -> list[TraceRequest]:
    """Requests in order of arrival: one per prompt if samples share blocks, else per sample."""
    ids = _Hashes(block_size) if config.engine.prefix_caching and paged else None
    made: list[TraceRequest] = []
    for samples in workload.samples():
        rows = samples[:1] if paged else samples
        for row in rows:
            one = TraceRequest(
                len(made), round(row.arrival * NANOSECONDS), len(row.token_ids), row.max_new_tokens,
                samples=len(samples) if paged else 1, priority=row.priority,
            )  # fmt: skip
            if ids is not None:
                one = one._replace(hash_ids=ids(row.token_ids), hash_block_size=block_size)
            made.append(one)
    return made


class _Hashes:
    """Ids of a prompt's blocks; equal for prompts that are equal up to the block's end."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._known: dict[tuple[int, ...], int] = {}

    def __call__(self, tokens: list[int]) -> tuple[int, ...]:
        ends = range(self._size, len(tokens) + self._size, self._size)
        prefixes = (tuple(tokens[:end]) for end in ends)
        return tuple(self._known.setdefault(prefix, len(self._known)) for prefix in prefixes)


class _Listed(list[TraceRequest]):
    """A request stream in memory, without clock and file."""

    info = TraceInfo("workload", "generated", "declared", None, "none", None, "none")
