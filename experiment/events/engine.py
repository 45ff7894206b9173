"""Events of the engines: kernels, caches, graphs, and statistics reported by an engine."""

from __future__ import annotations

from typing import Any, Literal

from experiment.events.base import ArmEvent, Int, Name
from experiment.text.messages import Message


class CacheQuantized(ArmEvent):
    """A quantized paged cache: bytes, and the measured error.

    ``plain_...`` are the values with the model's dtype. The error was measured before the arm
    began, on ``tokens`` tokens that start with those of ``request``; see
    :class:`experiment.engine.kv_error.KVError`.
    """

    event: Literal["cache_quantized"] = "cache_quantized"
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


class PrefixCacheUsed(ArmEvent):
    """Token counts of the prefix cache over the whole arm; see kvsim.core.prefix."""

    event: Literal["prefix_cache"] = "prefix_cache"
    queried: Int
    hit_cross: Int
    hit_batch: Int
    requeried: Int
    hit_own: Int
    hit_again: Int


class LookupTimed(ArmEvent):
    """Attention time of one layer and decode step: contiguous, and through block tables.

    Recorded by the experiment ``lookup``; see :mod:`experiment.engine.attention.lookup`.
    """

    event: Literal["lookup"] = "lookup"
    requests: Int
    context: Int
    block_size: Int
    contiguous_s: float
    ordered_s: float
    scattered_s: float


class HolesSeen(ArmEvent):
    """Requests in a contiguous arena of slots of ``slot_bytes`` each.

    See :mod:`experiment.engine.arena`.
    """

    event: Literal["holes"] = "holes"
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


# Kernel of a model that keeps its own attention code.
OWN_ATTENTION = "transformers"


class KernelChosen(ArmEvent):
    """Attention kernel of the paged engine; ``reason``: why Triton is not used on a GPU."""

    event: Literal["kernel"] = "kernel"
    device: str
    asked: Name
    kernel: Name
    reason: Message | None = None


class WeightsPacked(ArmEvent):
    """Weights of the paged engine in oneDNN's packed layout; see ``engine.packed_weights``.

    ``layers`` were packed in ``seconds``. ``kept`` linear layers are unchanged because another
    module needs their weight. ``few_rows`` layers use the engine's compiled code for products of
    few rows. ``embeddings`` read rows of packed weights; ``gelus`` were replaced by PyTorch's. The
    packed weights take ``bytes``. ``reason``: why no layer is packed. Fields missing in older logs
    are None; only those have ``fused``, layers that computed their activation too, and
    ``huge_bytes``, those on huge pages.
    """

    event: Literal["weights_packed"] = "weights_packed"
    layers: Int
    kept: Int
    fused: Int | None = None
    few_rows: Int = 0
    embeddings: Int | None = None
    gelus: Int | None = None
    seconds: float | None
    bytes: Int | None = None
    huge_bytes: Int | None = None
    reason: Message | None = None


class ProfileRun(ArmEvent):
    """Warm-up before the arm's clock starts, so that no code path runs there for the first time.

    A prefill step over ``requests`` prompts of ``prompt_tokens`` tokens, like the workload's, and
    two decode steps (``workload.first_prompts``). Experiments warm up in their first repeat
    instead: both are 0, or there is no event. ``kept``: the process reuses its working memory
    between steps. For vLLM see ``first_request_s`` of :class:`EngineReported`.
    """

    event: Literal["profile_run"] = "profile_run"
    prompt_tokens: Int
    requests: Int
    seconds: float
    kept: bool


class ModelCompiled(ArmEvent):
    """Seconds of model compilation, before the arm's clock starts."""

    event: Literal["compiled"] = "compiled"
    seconds: float


class DecodeGraphsReady(ArmEvent):
    """CUDA graphs of decode steps: batch sizes, or an empty list and the ``reason``.

    ``static_bytes`` are the graphs' input and output tensors, without the cache. ``reserved_bytes``
    is what torch's allocator reserved on the device, the graphs' own pool included (None if
    unknown).
    """

    event: Literal["decode_graphs"] = "decode_graphs"
    device: str
    asked: Name
    sizes: list[Int]
    static_bytes: Int | None
    reserved_bytes: Int | None = None
    capture_s: float | None
    reason: Message | None = None


class DecodeGraphsUsed(ArmEvent):
    """Replayed decode steps, their rows, and additional rows of padding."""

    event: Literal["decode_graphs_used"] = "decode_graphs_used"
    steps: Int
    rows: Int
    padding_rows: Int


class EngineReported(ArmEvent):
    """Report of an external engine that is ready to generate.

    ``tokens`` and ``max_concurrency`` are its reported capacity, ``max_concurrency`` in requests of
    ``max_length``. ``rank_bytes`` are the KV tensors of each rank, read in its own process.
    ``arguments`` are all engine arguments. Seconds: ``load_s`` loading weights, ``compile_s``
    profiling and compilation, ``cache_s`` reserving the cache, ``capture_s`` capturing graphs,
    ``first_request_s`` warm-up requests of three new tokens (prompts as in our profile run,
    otherwise one token).
    """

    event: Literal["engine"] = "engine"
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


class EngineStep(ArmEvent):
    """Statistics that an engine reports after a step, and a count of its block tables.

    ``used_blocks`` is derived from the reported usage. ``table_blocks`` counts blocks in the tables
    of unfinished requests at the same moment. The engine keeps the two separately. Preemptions and
    prefix-cache tokens are those of this step.
    """

    event: Literal["engine_step"] = "engine_step"
    step: Int
    used_blocks: Int
    table_blocks: Int
    running: Int
    waiting: Int
    preempted: Int
    prefix_queries: Int
    prefix_hits: Int


class SecondPartRun(ArmEvent):
    """The prompts of the workload, several times over, on the cache of an arm.

    ``finished`` of ``requests`` ended within the time limit. ``running`` is the most in one step,
    ``mean_running`` the mean over time; both None if no step ran. ``tokens`` were generated in
    ``seconds`` on the arm's clock, from ``started_ns`` on. ``reason``: why not all finished.
    """

    event: Literal["second_part"] = "second_part"
    started_ns: Int
    requests: Int
    finished: Int
    running: Int | None
    mean_running: float | None
    tokens: Int
    seconds: float
    reason: Message | None = None


class CacheMoved(ArmEvent):
    """Bytes that a growing cache copied because it reallocates in every step, over a request."""

    event: Literal["cache_moved"] = "cache_moved"
    request: Int
    bytes: Int


class StepProfile(ArmEvent):
    """Time of a decode step by category, from torch's profiler: medians over ``steps`` steps.

    Milliseconds of the thread that runs the engine: matrix products, attention with writing K and
    V, other tensor operations, and the rest (Python and scheduling). On a GPU they are kernel times
    and the rest is idle time; None if not measured. ``requests`` is the number of running requests.
    """

    event: Literal["profile"] = "profile"
    steps: Int
    requests: Int
    step_ms: float
    matrix_ms: float | None
    attention_ms: float | None
    other_ms: float | None
    rest_ms: float | None
    trace: str | None
