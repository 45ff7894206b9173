"""Results of a run as data: numbers and message keys. Written to ``run.json``.

Every field names its unit; None means unknown, with the reason in the next field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, computed_field

from experiment.analysis.experiment_results import ExperimentResult, Verdict
from experiment.replay.step_rows import SlotFigures, StepRow
from experiment.text.messages import Message
from kvsim.planning.remedies import Change


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True)


class RequestResult(_Result):
    """One request of an arm; seconds from its arrival."""

    request: int
    reason: str
    prompt_tokens: int
    new_tokens: int
    wait_s: float
    first_token_s: float | None
    latency_s: float
    text: str
    tokens: list[int]


class MemoryRow(_Result):
    """One memory figure of an arm at a stage (or its ``maximum`` over all samples)."""

    stage: str
    request: int | None
    channel: str
    scope: str
    bytes: int | None
    total_bytes: int | None
    reason: Message | None
    t_ns: int


class ChannelFigure(_Result):
    """The KV bytes of an arm by one channel.

    ``difference`` is relative to the formula; ``agrees`` whether it is within ``allowed_bytes``,
    None where it is not judged.
    """

    channel: str
    bytes: int | None
    reason: Message | None
    difference: float | None
    agrees: bool | None
    allowed_bytes: int | None = None


PartName = Literal["runtime", "weights", "started", "kv", "inputs", "work", "slack", "left"]


class MemoryPart(_Result):
    """A part of the process's memory; see :mod:`experiment.analysis.process_memory`.

    ``work`` is at the most, ``left`` after release; ``slack`` lies inside the others. Changes can
    be negative.
    """

    part: PartName
    channel: str
    bytes: int | None
    reason: Message | None = None


class Reconciliation(_Result):
    """The same bytes by every channel; ``text`` says whether they agree.

    ``reserved`` is whether the cache was there at once; one that grows is compared at its largest.
    """

    expected_bytes: int | None
    reserved: bool = True
    rows: list[ChannelFigure]
    agree: bool | None
    text: Message
    parts: list[MemoryPart]


class Watch(_Result):
    """How busy an arm kept the machine while it generated, and how it was watched.

    ``cpu_cores`` is CPU time over wall time, ``others_cores`` that of all other programs; None in
    records of before it was taken. GPU figures are shares of time, of the whole
    device. ``sampler_cpu_s`` is what watching cost the runner in ``watched_s`` of wall time, when
    ``usable_cores`` could be kept busy. ``settled`` is whether the device's memory stood still
    before the arm began, at ``baseline_bytes`` by ``device_channel``; ``device_delta_bytes`` is the
    most that this channel showed above it, whoever it was that took it. ``foreign_*`` count the
    processes on the GPU that were not ours.
    """

    cpu_cores: float | None
    cpu_reason: Message | None
    others_cores: float | None = None
    others_reason: Message | None = None
    gpu_share: float | None
    gpu_memory_share: float | None
    gpu_reason: Message | None
    sampler_cpu_s: float | None
    watched_s: float | None
    settled: bool | None
    waited_s: float | None
    usable_cores: float | None = None
    device_channel: str | None = None
    baseline_bytes: int | None
    device_delta_bytes: int | None = None
    device_reason: Message | None = None
    foreign_before: int | None
    foreign_after: int | None
    foreign_reason: Message | None = None

    @property
    def sampler_share(self) -> float | None:
        """CPU time of the sampler relative to wall time and usable cores."""
        if self.sampler_cpu_s is None or not self.watched_s or not self.usable_cores:
            return None
        return self.sampler_cpu_s / (self.watched_s * self.usable_cores)


class EngineResult(_Result):
    """What an engine that is not ours said of itself; see EngineReported.

    ``foretold_tokens`` and ``foretold_concurrency`` are what kvsim said that it would say, of the
    budget alone. ``preempted`` and the prefix-cache tokens are sums of its own statistics.
    ``watched_steps`` is how many steps those were compared with the block tables at.
    """

    versions: dict[str, str]
    arguments: dict[str, Any]
    variables: dict[str, str]
    blocks: int
    block_bytes: int | None
    tokens: int | None
    max_concurrency: float | None
    max_length: int
    foretold_tokens: int | None
    foretold_concurrency: float | None
    rank_bytes: list[int]
    load_s: float
    compile_s: float
    cache_s: float
    capture_s: float
    first_request_s: float
    preempted: int
    prefix_queries: int
    prefix_hits: int
    watched_steps: int


class SimulatorCheck(_Result):
    """What the simulator makes of an arm's requests in its pool, beside what the arm did.

    ``agrees`` is None where that could not be told; ``text`` says it in words, or why not. Either
    ``equal_steps`` of ``steps`` plans are equal block for block, from the first one on, or, for an
    engine that is not ours, blocks in use were compared step by step: ``mean_points`` and
    ``most_points`` are sizes of the difference in percentage points of ``usable_blocks``, the
    latter at ``worst_step``. ``preempted`` is recorded and simulated; ``curve`` is (step, blocks
    recorded, blocks simulated) of some of the steps.
    """

    agrees: bool | None
    text: Message
    steps: int
    equal_steps: int | None = None
    simulated_steps: int | None = None
    usable_blocks: int | None = None
    mean_points: float | None = None
    most_points: float | None = None
    worst_step: int | None = None
    preempted: tuple[int, int] | None = None
    curve: list[tuple[int, int, int]] = []


class RemedyResult(_Result):
    """A change and what it led to when it was simulated: see :mod:`kvsim.planning.remedies`."""

    change: Change
    value: int
    preemptions: int
    duration: float
    first_token_s: float | None = None
    text: Message


class Preempting(_Result):
    """Why requests were preempted, and what prevents it.

    ``duration`` is in steps in a run and in seconds in a simulation; ``before`` says it in words.
    ``waits``, and ``waited`` in words, is how often the first request in the queue began to wait,
    by :class:`kvsim.core.step.WaitReason`. ``remedies`` are by duration; ``verdict`` names the
    fastest one that needs no memory.
    """

    text: Message
    before: Message
    duration: float
    waited: Message | None = None
    waits: dict[str, int] = {}
    remedies: list[RemedyResult] = []
    verdict: Message | None = None


class SecondPart(_Result):
    """More requests at once than slabs hold; see :class:`experiment.events.SecondPartRun`.

    ``others_cores`` are those that other programs kept busy meanwhile, None where unknown.
    """

    requests: int
    finished: int
    running: int | None
    mean_running: float | None
    generate_s: float
    tokens_per_s: float | None
    others_cores: float | None
    reason: Message | None


class PeakBytes(_Result):
    """The slots of a peak in bytes."""

    reserved: int
    allocated: int
    live: int
    wasted: int


class ArmResult(_Result):
    """One arm. Bytes and seconds; slots in ``peak`` and ``mean``.

    ``process_peak`` is the most that its processes held, at least, by the main channel of the run,
    from the moment on at which the cache was there; ``process_peak_loading`` until then.

    ``fits`` is how many requests like those of the workload the budget holds at the same time
    with this arm's way of allocating, ``fits_plain`` the same in the model's own precision.
    ``kv_dtype`` is None where that is what the cache holds; ``scale_bytes`` are those of a block
    beside its slots. ``packing`` is what :class:`experiment.events.WeightsPacked` says, None where
    the log holds none. ``problems`` are contradictions found while replaying. ``simulator`` is None
    for arms that the simulator does not stand for, ``preempting`` for those without preemption.
    """

    arm: str
    status: Literal["finished", "failed", "skipped"]
    reason: Message | None
    problems: list[Message]
    slot_bytes: int | None
    block_size: int | None
    blocks: int | None
    elastic: bool
    tensor_bytes: int | None
    budget_bytes: int | None
    peak: StepRow | None
    mean: SlotFigures | None
    reserved_variation: float | None
    allocated_variation: float | None
    process_peak: int | None = None
    process_peak_loading: int | None = None
    process_peak_channel: str | None = None
    process_variation: float | None
    process_variation_channel: str | None = None
    fits: int | None
    fits_plain: int | None = None
    scale_bytes: int = 0
    kv_dtype: str | None = None
    quantization: dict[str, int | float | str] | None = None
    packing: dict[str, Any] | None = None
    requests: list[RequestResult]
    new_tokens: int | None
    import_s: float | None
    load_s: float | None
    generate_s: float | None
    tokens_per_s: float | None
    mean_request_s: float | None
    threads: int | None
    device_name: str | None
    preemptions: int | None
    mean_running: float | None
    steps: int | None
    witnessed_steps: int | None
    moved_bytes: int | None
    mapping: dict[str, int] | None
    prefix_cache: dict[str, int] | None
    shared_peak: int | None
    copied_blocks: int | None
    swapped_blocks: int | None
    memory: list[MemoryRow]
    reconciliation: Reconciliation | None
    watch: Watch
    engine: EngineResult | None = None
    simulator: SimulatorCheck | None = None
    preempting: Preempting | None = None
    second_part: SecondPart | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def peak_bytes(self) -> PeakBytes | None:
        """``peak`` in bytes; None where it is unknown, or what a slot takes."""
        if self.peak is None or self.slot_bytes is None:
            return None
        sizes = {name: self.bytes_of(getattr(self.peak, name)) for name in PeakBytes.model_fields}
        return PeakBytes.model_validate(sizes)

    @property
    def bytes_per_slot(self) -> float | None:
        """Bytes of a slot, with an even share of its block's scales."""
        if self.slot_bytes is None or not self.scale_bytes or not self.block_size:
            return self.slot_bytes
        return self.slot_bytes + self.scale_bytes / self.block_size

    def bytes_of(self, slots: float | None) -> int | None:
        """Convert slots of this arm's pool to bytes; exact for whole blocks."""
        if slots is None or self.slot_bytes is None:
            return None
        scales = slots * self.scale_bytes / self.block_size if self.block_size else 0
        return round(slots * self.slot_bytes + scales)


def common_bytes(arms: Sequence[ArmResult]) -> float | None:
    """Bytes of a slot if equal in all arms, so that slots and bytes share an axis; else None."""
    sizes = {arm.bytes_per_slot for arm in arms}
    return sizes.pop() if len(sizes) == 1 else None


class Margin(_Result):
    """The reference's token and the arm's where they first differ, and how close the call was.

    ``logits`` are those of ``tokens`` by plain Transformers in ``dtype``; ``margin`` is between
    the two most likely tokens there. ``places`` are (request, index of its first other token) of
    all requests that were looked at, ``ulps`` the margin at each, in units in the last place.
    """

    tokens: tuple[int, int]
    logits: tuple[float, float]
    margin: float
    dtype: str
    places: list[tuple[int, int]] = []
    ulps: list[float] = []


class TokenComparison(_Result):
    """Generated tokens of one arm against those of the reference arm.

    ``first_difference`` is (request, index of the first other token); ``margin`` is None where
    nobody looked at the logits there. ``tokens`` are those of the requests that both arms
    finished, ``equal_tokens`` of them stand before the first other one of their request.
    ``kv_dtype`` is None where the cache holds the model's own precision. ``reason`` says why the
    tokens were not compared; ``equal_requests`` is None then.
    """

    arm: str
    reference: str
    requests: int
    equal_requests: int | None
    first_difference: tuple[int, int] | None
    reason: Message | None = None
    tokens: int = 0
    equal_tokens: int = 0
    kv_dtype: str | None = None
    reference_kv_dtype: str | None = None
    margin: Margin | None = None

    @property
    def equal(self) -> bool | None:
        """Whether all tokens of all requests are equal; None if not compared."""
        return None if self.equal_requests is None else self.requests == self.equal_requests

    @property
    def same_cache(self) -> bool:
        """Whether both caches have the same precision, so that tokens must be equal."""
        return self.kv_dtype == self.reference_kv_dtype

    @property
    def equal_token_share(self) -> float | None:
        """Share of tokens before the first difference of their request."""
        return self.equal_tokens / self.tokens if self.tokens else None


ClaimName = Literal["waste", "concurrency", "stability", "throughput"]


class Claim(_Result):
    """A claim that is commonly made, and what this run says to it."""

    id: ClaimName
    verdict: Verdict
    text: Message


StepName = Literal["batching", "engine", "paging", "other_engine", "mixed"]


class Gain(_Result):
    """A rung of the ladder of arms; ``factor`` is its rate over that of the rung below.

    ``step`` names what differs between the two, see ``analysis.gains``; None at the lowest.
    ``products_differ``: whether matrix products do; None: unknown, or the lowest.
    ``reason`` says why there is no factor: either arm ran on a busy machine, or the repeats of an
    experiment do not tell the two apart.
    """

    arm: str
    tokens_per_s: float
    mean_running: float | None
    factor: float | None
    step: StepName | None
    products_differ: bool | None = None
    reason: Message | None = None

    @property
    def differing(self) -> list[str]:
        """Message keys of the differences from the rung below; empty for the lowest."""
        if self.step is None:
            return []
        products = {True: ["gains.products"], False: [], None: ["gains.products_unknown"]}
        return [f"gains.step_{self.step}", *products[self.products_differ]]

    @property
    def products_unseparated(self) -> bool:
        """Whether the factor combines matrix products with other differences."""
        return self.products_differ is True and self.step in ("engine", "mixed")


class Results(_Result):
    """All results of a run, as shown in a report."""

    status: str
    arms: list[ArmResult]
    tokens: list[TokenComparison]
    headline: Message
    claims: list[Claim]
    gains: list[Gain] = []
    fairness: list[Message]
    notes: list[Message]
    quantized: list[Message] = []
    kernels: list[Message] = []
    differences: list[Message] = []
    environment: dict[str, Any] | None
    experiment: ExperimentResult | None = None

    @property
    def repeated(self) -> bool:
        """Whether times were measured more than once."""
        return self.experiment is not None and self.experiment.repeats > 1

    @property
    def compared(self) -> list[TokenComparison]:
        """Token comparisons with a result."""
        return [one for one in self.tokens if one.equal is not None]

    @property
    def not_compared(self) -> list[TokenComparison]:
        """Token comparisons without a result, each with its reason."""
        return [one for one in self.tokens if one.equal is None]

    @property
    def equal_reserved(self) -> int:
        """Number of arms that preallocated as many bytes as the paged one, including it; or 0."""
        paged = self.arm("paged")
        if paged is None or paged.tensor_bytes is None:
            return 0
        same = [a for a in self.arms if not a.elastic and a.tensor_bytes == paged.tensor_bytes]
        return len(same) if len(same) > 1 else 0

    def arm(self, name: str) -> ArmResult | None:
        """The arm with this name, if it finished."""
        finished = (arm for arm in self.arms if arm.arm == name and arm.status == "finished")
        return next(finished, None)
