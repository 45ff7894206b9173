"""Events of the engines beneath the arms: their kernels, caches, graphs and own statistics."""

from __future__ import annotations

from typing import Any, Literal

from experiment.events.base import EventBase, Int, Name
from experiment.text.messages import Message


class CacheQuantized(EventBase):
    """A paged cache in another precision than the model's: bytes, and its error as measured.

    Bytes of a block and the blocks in the budget stand beside those in the model's precision
    (``plain_...``). The error was measured before the arm began, on ``tokens`` tokens that begin
    with those of request ``request``; see :class:`experiment.engine.kv_error.KVError`.
    """

    event: Literal["cache_quantized"] = "cache_quantized"
    arm: Name
    kv_dtype: Name
    block_size: Int
    block_bytes: Int
    plain_block_bytes: Int
    blocks: Int
    plain_blocks: Int
    request: Int
    tokens: Int
    attention: float
    attention_worst: float
    logit_mean: float
    logit_largest: float
    logit_spread: float
    positions: Int
    same_token: Int


class PrefixCacheUsed(EventBase):
    """What the prefix cache found over the whole arm, in tokens; see kvsim.core.prefix."""

    event: Literal["prefix_cache"] = "prefix_cache"
    arm: Name
    queried: Int
    hit_cross: Int
    hit_batch: Int
    requeried: Int
    hit_own: Int
    hit_again: Int


class LookupTimed(EventBase):
    """Attention of one layer and one decoding step: contiguous, and through block tables.

    See :mod:`experiment.engine.attention.lookup`; the experiment of that name asks for it.
    """

    event: Literal["lookup"] = "lookup"
    arm: Name
    requests: Int
    context: Int
    block_size: Int
    contiguous_s: float
    ordered_s: float
    scattered_s: float


class HolesSeen(EventBase):
    """Requests that came and went in a contiguous arena of slots, ``slot_bytes`` each.

    See :class:`experiment.engine.arena.Holes`.
    """

    event: Literal["holes"] = "holes"
    arm: Name
    allocator: Literal["first_fit", "buddy"]
    slots: Int
    slot_bytes: Int
    steps: Int
    refused_steps: Int
    first_step: Int | None
    free: Int | None
    largest: Int | None
    needed: Int | None
    running_peak: Int


class KernelChosen(EventBase):
    """The paged engine's attention kernel; ``reason`` says why a GPU does without Triton's."""

    event: Literal["kernel"] = "kernel"
    arm: Name
    device: str
    asked: Name
    kernel: Name
    reason: Message | None = None


class WeightsPacked(EventBase):
    """Weights of the paged engine in oneDNN's order, see ``engine.packed_weights``.

    ``layers`` were packed in ``seconds``, ``kept`` linear layers stay as they were loaded, because
    another module needs their weight; activations of ``fused`` layers are computed with them, and
    products of few rows in ``few_rows`` layers are by the engine's own compiled code.
    ``embeddings`` read their rows from packed weights, and ``gelus`` were replaced by PyTorch's.
    The packed weights take ``bytes``, of which ``huge_bytes`` lie on huge pages (None where the
    system has none). ``reason`` says why none is packed. What older logs do not hold is None.
    """

    event: Literal["weights_packed"] = "weights_packed"
    arm: Name
    layers: Int
    kept: Int
    fused: Int
    few_rows: Int = 0
    embeddings: Int | None = None
    gelus: Int | None = None
    seconds: float | None
    bytes: Int | None = None
    huge_bytes: Int | None = None
    reason: Message | None = None


class ProfileRun(EventBase):
    """What an arm computed before its clock, so that nothing on it is computed for the first time.

    A step over prompts like the workload's, ``requests`` of them with ``prompt_tokens``, and two
    that decode (``workload.first_prompts``). An experiment, whose first repeat warms up, needs
    none: both are 0, or there is no such event. ``kept`` says whether the process keeps what it
    computes in from one step to the next. vLLM's is ``first_request_s`` of its report.
    """

    event: Literal["profile_run"] = "profile_run"
    arm: Name
    prompt_tokens: Int
    requests: Int
    seconds: float
    kept: bool


class ModelCompiled(EventBase):
    """The seconds in which an arm compiled its model, before its clock began."""

    event: Literal["compiled"] = "compiled"
    arm: Name
    seconds: float


class DecodeGraphsReady(EventBase):
    """CUDA graphs of decoding steps: batch sizes, or none and the ``reason``.

    ``static_bytes`` are those of the tensors that the graphs read and write beside the cache;
    ``reserved_bytes`` what torch's allocator took from the device for all of it, the graphs' own
    pool included (None where it keeps no count).
    """

    event: Literal["decode_graphs"] = "decode_graphs"
    arm: Name
    device: str
    asked: Name
    sizes: list[Int]
    static_bytes: Int | None
    reserved_bytes: Int | None = None
    capture_s: float | None
    reason: Message | None = None


class DecodeGraphsUsed(EventBase):
    """Decoding steps that were replayed, their rows, and rows of padding beside those."""

    event: Literal["decode_graphs_used"] = "decode_graphs_used"
    arm: Name
    steps: Int
    rows: Int
    padding_rows: Int


class EngineReported(EventBase):
    """What an engine that is not ours says of itself, once it is ready to generate.

    ``tokens`` and ``max_concurrency`` are what it says it can hold, ``max_concurrency`` in
    requests of ``max_length``; ``rank_bytes`` are the bytes of the KV tensors of each rank, asked
    in its own process. ``arguments`` are all that it was started with. Seconds: ``load_s`` until
    the weights are there, ``compile_s`` profiling and compilation, ``cache_s`` reserving the
    cache, ``capture_s`` capturing graphs, ``first_request_s`` requests before the
    clock, three new tokens each: prompts as our engine computes in its profile run, else one token.
    """

    event: Literal["engine"] = "engine"
    arm: Name
    versions: dict[str, str]
    arguments: dict[str, Any]
    variables: dict[str, str]
    blocks: Int
    block_size: Int
    tokens: Int | None
    max_concurrency: float | None
    max_length: Int
    rank_bytes: list[Int]
    load_s: float
    compile_s: float
    cache_s: float
    capture_s: float
    first_request_s: float


class EngineStep(EventBase):
    """An engine's own statistics after a step, beside a count of its block tables.

    ``used_blocks`` follows from the usage that it reports, ``table_blocks`` counts the blocks in
    the tables of its unfinished requests at the same moment; the two are kept apart inside it.
    Preemptions and prefix-cache tokens are those of this step.
    """

    event: Literal["engine_step"] = "engine_step"
    arm: Name
    step: Int
    used_blocks: Int
    table_blocks: Int
    running: Int
    waiting: Int
    preempted: Int
    prefix_queries: Int
    prefix_hits: Int


class SecondPartRun(EventBase):
    """The prompts of the workload several times over, on the cache that an arm had already.

    ``finished`` of ``requests`` ended within the time limit. ``running`` is the most that ran in a
    step, ``mean_running`` their mean over time; ``tokens`` were generated in ``seconds``, on the
    arm's clock, from ``started_ns`` on. ``reason`` says why not all finished. None: no step ran.
    """

    event: Literal["second_part"] = "second_part"
    arm: Name
    started_ns: Int
    requests: Int
    finished: Int
    running: Int | None
    mean_running: float | None
    tokens: Int
    seconds: float
    reason: Message | None = None


class CacheMoved(EventBase):
    """Bytes that a growing cache copied because every step reallocates it, over a request."""

    event: Literal["cache_moved"] = "cache_moved"
    arm: Name
    request: Int
    bytes: Int


class StepProfile(EventBase):
    """Where the time of a decode step goes, by torch's profiler: medians over ``steps`` of them.

    Milliseconds of the thread that steps the engine: matrix products, attention with the writing
    of K and V, other tensor operations, and the rest, which is Python and scheduling. On a GPU they
    are those of its kernels, and the rest is when none runs; None where they could not be seen.
    ``requests`` is how many ran.
    """

    event: Literal["profile"] = "profile"
    arm: Name
    steps: Int
    requests: Int
    step_ms: float
    matrix_ms: float | None
    attention_ms: float | None
    other_ms: float | None
    rest_ms: float | None
    trace: str | None
