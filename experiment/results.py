"""What a run found, as data: numbers, message keys, nothing rendered. Written to ``run.json``.

Every field says its unit; None means unknown, and the reason stands beside it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from experiment.messages import Message


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True)


class SlotFigures(_Result):
    """Slots in each state; see :class:`kvsim.ledger.SlotState`. Means are fractional."""

    reserved: float
    allocated: float
    live: float
    wasted: float
    cached: float
    padding: float
    finished: float
    unwritten: float
    rounding: float
    hole: float
    engine: float
    watermark: float
    free: float

    @property
    def utilisation(self) -> float | None:
        """live / allocated."""
        return self.live / self.allocated if self.allocated else None


class StepRow(SlotFigures):
    """One step of an arm.

    ``witness`` is the count of written slots from the tensors, ``written`` the one from the
    tables; ``never_written`` is the part of ``unwritten`` that will never be. ``shared`` counts
    blocks with more than one owner; ``copied`` and ``swapped`` blocks that the step moved.
    """

    step: int
    t_ns: int
    started_ns: int
    tokens: int
    running: int
    waiting: int
    preempted: int
    witness: int | None
    written: int
    never_written: int
    shared: int
    copied: int
    swapped: int


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

    ``difference`` is relative to the formula; ``agrees`` whether it is within the channel's
    tolerance; ``independent`` that it does not rest on shapes.
    """

    channel: str
    bytes: int | None
    reason: Message | None
    difference: float | None
    agrees: bool | None
    independent: bool


class MemoryPart(_Result):
    """A part of the process's memory: runtime, weights, kv, work (at the most), left (at the end).

    Each but the first is a change, so it can be negative.
    """

    part: Literal["runtime", "weights", "kv", "work", "left"]
    channel: str
    bytes: int | None


class Reconciliation(_Result):
    """The same bytes by every channel; ``text`` says whether they agree."""

    expected_bytes: int | None
    rows: list[ChannelFigure]
    agree: bool | None
    text: Message
    parts: list[MemoryPart]


class Watch(_Result):
    """How busy an arm kept the machine while it generated, and how it was watched.

    ``cpu_cores`` is CPU time over wall time; GPU figures are shares of time, of the whole
    device. ``sampler_cpu_s`` is what watching cost the runner in ``watched_s`` of wall time.
    ``settled`` is whether the device's memory stood still before the arm began.
    """

    cpu_cores: float | None
    cpu_reason: Message | None
    gpu_share: float | None
    gpu_memory_share: float | None
    gpu_reason: Message | None
    sampler_cpu_s: float | None
    watched_s: float | None
    settled: bool | None
    waited_s: float | None
    baseline_bytes: int | None
    foreign_before: int | None
    foreign_after: int | None

    @property
    def sampler_share(self) -> float | None:
        """CPU time of the sampler over wall time, of one core."""
        if self.sampler_cpu_s is None or not self.watched_s:
            return None
        return self.sampler_cpu_s / self.watched_s


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


class ArmResult(_Result):
    """One arm. Bytes and seconds; slots in ``peak`` and ``mean``.

    ``fits`` is how many requests like those of the workload the budget holds at the same time
    with this arm's way of allocating. ``problems`` are contradictions found while replaying.
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
    process_variation: float | None
    fits: int | None
    requests: list[RequestResult]
    new_tokens: int
    import_s: float | None
    load_s: float | None
    generate_s: float | None
    tokens_per_s: float | None
    mean_request_s: float | None
    threads: int | None
    device_name: str | None
    preemptions: int
    mean_running: float | None
    steps: int
    witnessed_steps: int
    moved_bytes: int | None
    mapping: dict[str, int] | None
    prefix_cache: dict[str, int] | None
    shared_peak: int
    copied_blocks: int
    swapped_blocks: int
    memory: list[MemoryRow]
    reconciliation: Reconciliation | None
    watch: Watch
    engine: EngineResult | None = None

    def bytes_of(self, slots: float | None) -> int | None:
        """Slots of this arm's pool in bytes."""
        if slots is None or self.slot_bytes is None:
            return None
        return round(slots * self.slot_bytes)


class Margin(_Result):
    """The reference's token and the arm's where they first differ, and how close the call was.

    ``logits`` are those of ``tokens`` by plain Transformers in ``dtype``; ``margin`` is between
    the two most likely tokens there.
    """

    tokens: tuple[int, int]
    logits: tuple[float, float]
    margin: float
    dtype: str


class TokenComparison(_Result):
    """Generated tokens of one arm against those of the reference arm.

    ``first_difference`` is (request, index of the first other token); ``margin`` is None where
    nobody looked at the logits there.
    """

    arm: str
    reference: str
    requests: int
    equal_requests: int
    first_difference: tuple[int, int] | None
    margin: Margin | None = None

    @property
    def equal(self) -> bool:
        """Whether every token of every request is the same."""
        return self.requests == self.equal_requests


class Claim(_Result):
    """A claim that is commonly made, and what this run says to it."""

    id: Literal["waste", "stability", "throughput"]
    verdict: Literal["shown", "not_shown", "untested"]
    text: Message


class Results(_Result):
    """Everything that a report shows."""

    status: str
    arms: list[ArmResult]
    tokens: list[TokenComparison]
    headline: Message
    claims: list[Claim]
    fairness: list[Message]
    notes: list[Message]
    environment: dict[str, Any] | None

    @property
    def equal_reserved(self) -> int:
        """Arms that reserved as many bytes in advance as the paged one, itself included; or 0."""
        paged = self.arm("paged")
        if paged is None or paged.tensor_bytes is None:
            return 0
        same = [a for a in self.arms if not a.elastic and a.tensor_bytes == paged.tensor_bytes]
        return len(same) if len(same) > 1 else 0

    def arm(self, name: str) -> ArmResult | None:
        """The arm of that name if it ended well."""
        found = (arm for arm in self.arms if arm.arm == name and arm.status == "finished")
        return next(found, None)
