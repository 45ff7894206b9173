"""Figures in a start-up log of vLLM: where memory went, and why the start failed.

Forms of the lines: vLLM 0.6 to 0.33. Of several ranks the first that prints a figure counts; the
ranks of one engine print nearly the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_GIB = 1 << 30
_NUMBER = r"(-?[\d.]+)"
# A figure and the lines that print it, newest form first.
_BYTES = {
    "total": (
        rf"Free memory on device(?: \S+)? \([\d.]+/{_NUMBER} GiB\)",
        rf"total_gpu_memory(?: \(|=){_NUMBER} ?GiB",
    ),
    "weights": (
        rf"Model loading took {_NUMBER} GiB",
        rf"[Mm]odel weights took {_NUMBER} GB",
        rf"model weights take {_NUMBER} ?GiB",
    ),
    "activations": (
        rf"{_NUMBER} GiB for peak activation",
        rf"activation peak memory takes {_NUMBER} ?GiB",
    ),
    "non_torch": (
        rf"{_NUMBER} GiB for non-torch memory",
        rf"non_torch_memory(?: takes |=){_NUMBER} ?GiB",
    ),
    "graphs": (
        rf"Graph capturing finished in .* took {_NUMBER} GiB",
        rf"Estimated CUDA graph memory: {_NUMBER} GiB",
    ),
    "kv": (
        rf"Available KV cache memory: {_NUMBER} GiB",
        rf"reserved for KV Cache is {_NUMBER} ?GiB",
        rf"kv_cache_size={_NUMBER} ?GiB",
        rf"available KV cache memory \({_NUMBER} GiB\)",
    ),
    "needed": (rf"\({_NUMBER} GiB KV cache is needed", rf"{_NUMBER} GiB KV cache is needed"),
}
_WHOLE = {
    "max_length": (
        r"max_seq_len=(\d+)",
        r"'max_model_len': (\d+)",
        r"Maximum concurrency for ([\d,]+) tokens",
        r"max seq len \((\d+)\)",
    ),
    "tensor_parallel": (r"tensor_parallel_size['\"]?[=:] ?(\d+)",),
    "tokens": (r"[CG]PU KV cache size: ([\d,]+) tokens", r"stored in KV cache \((\d+)\)"),
    "blocks": (r"#? ?GPU blocks: (\d+)",),
    "block_size": (r"'block_size': (\d+)",),
    "max_num_seqs": (r"'max_num_seqs': (\d+)", r"max_num_seqs=(\d+)"),
    "max_num_batched_tokens": (
        r"'max_num_batched_tokens': (\d+)",
        r"max_num_batched_tokens=(\d+)",
    ),
    "longest": (r"estimated maximum model length is (\d+)",),
}
_UTILISATION = (
    r"Desired GPU memory utilization is \(([\d.]+),",
    r"gpu_memory_utilization \(([\d.]+)\)",
    r"gpu_memory_utilization['\"]?[=:] ?([\d.]+)",
)
_VERSION = (
    r"LLM engine \(v?(\d+\.\d+)",
    r"vLLM API server version v?(\d+\.\d+)",
    r"vLLM (?:version )?v?(\d+\.\d+)\.\d",
)
_MODEL = (
    r"model='([^']{1,200})'",
    r"'model(?:_tag)?': '([^']{1,200})'",
    r"model_tag='([^']{1,200})'",
    r"vllm serve (\S{1,200})",
)
_CONCURRENCY = (r"tokens per request: ([\d.]+)x",)
_CACHING = r"enable_prefix_caching['\"]?[=:] ?True"
_HITS = r"Prefix cache hit rate: (?:GPU: )?(\d+\.\d+)%"
# The first that is found; a graph is captured after the cache is there.
_FAILURES = (
    ("no_memory", r"No available memory for the cache blocks"),
    ("too_long", r"larger than the (?:available KV cache|maximum number of tokens that can)"),
    ("little_free", r"is less than desired GPU memory utilization"),
    ("oom", r"CUDA out of memory|OutOfMemoryError"),
)
_CAPTURING = r"Capturing (?:the model for )?CUDA graph|Capturing cudagraphs"
_OTHERS = ("sglang", "TensorRT-LLM", "text-generation-inference", "llama_model_loader", "ollama")


class NotALogError(ValueError):
    """Nothing in a text is a figure of vLLM's; ``engine``: what printed it, where that is known."""

    def __init__(self, engine: str | None) -> None:
        super().__init__(engine or "unknown")
        self.engine = engine


@dataclass(frozen=True, slots=True)
class StartLog:
    """What a log says; bytes are of one GPU, None: not said.

    Attributes:
        total: memory that CUDA reports. ``kv``: of the cache; ``needed``: of a longest request.
        tokens, concurrency, blocks: of the cache, as printed.
        block_size, max_num_seqs, max_num_batched_tokens: where they are set, or printed.
        longest: the maximum length with which vLLM says that it would start.
        prefix_caching: whether it is on. ``prefix_hits``: the last share of tokens found, printed.
        failure: ``no_memory``, ``too_long``, ``little_free``, ``oom_profile``, ``oom_capture``.
    """

    version: tuple[int, int] | None
    model: str | None
    utilisation: float | None
    concurrency: float | None
    total: int | None
    weights: int | None
    activations: int | None
    non_torch: int | None
    graphs: int | None
    kv: int | None
    needed: int | None
    max_length: int | None
    tensor_parallel: int | None
    tokens: int | None
    blocks: int | None
    block_size: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    longest: int | None
    prefix_caching: bool
    prefix_hits: float | None
    failure: str | None


def read_start_log(text: str) -> StartLog:
    """Find the figures.

    Raises:
        NotALogError: there is none of memory or of a cache.
    """
    sizes = {name: _size(_first(text, forms)) for name, forms in _BYTES.items()}
    wholes = {name: _whole(_first(text, forms)) for name, forms in _WHOLE.items()}
    failure = next((name for name, form in _FAILURES if re.search(form, text)), None)
    if failure == "oom":
        failure = "oom_capture" if re.search(_CAPTURING, text) else "oom_profile"
    if failure is None and not any((sizes["kv"], wholes["tokens"], wholes["blocks"])):
        raise NotALogError(next((name for name in _OTHERS if name.lower() in text.lower()), None))
    version = _first(text, _VERSION)
    hits = re.findall(_HITS, text)[-1:]
    return StartLog(
        version=_pair(version) if version else None,
        model=_first(text, _MODEL),
        utilisation=_number(_first(text, _UTILISATION)),
        concurrency=_number(_first(text, _CONCURRENCY)),
        prefix_caching=re.search(_CACHING, text) is not None,
        prefix_hits=float(hits[0]) / 100 if hits else None,
        failure=failure,
        **sizes,
        **wholes,
    )


def _first(text: str, forms: tuple[str, ...]) -> str | None:
    for form in forms:
        if match := re.search(form, text):
            return match[1]
    return None


def _pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major[:4]), int(minor[:4])


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _size(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None or abs(number) > 1e6 else round(number * _GIB)


def _whole(text: str | None) -> int | None:
    digits = (text or "").replace(",", "")[:12]
    return int(digits) if digits else None
