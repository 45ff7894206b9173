"""Figures in a start-up log of vLLM: where memory went, and why the start failed.

Forms of the lines: vLLM 0.6 to 0.33. Of several ranks the first that prints a figure counts; the
ranks of one engine print nearly the same. Of data-parallel engines the first counts, of several
starts in one log the last.

    API server ─► loading ─► profile ─► KV cache ─► capture ─► warm-up ─► serving

A failure belongs to the last stage whose line precedes it.
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
    "free": (rf"Free memory on device(?: \S+)? \({_NUMBER}/[\d.]+ GiB\)",),
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
    "tokens": (r"[CG]PU KV cache size: ([\d,]+) tokens", r"stored in KV cache \((\d+)\)"),
    "blocks": (r"# (?:GPU|CUDA) blocks: (\d+)",),
    "block_size": (r"'block_size': (\d+)",),
    "max_num_seqs": (r"'max_num_seqs': (\d+)", r"max_num_seqs=(\d+)"),
    "max_num_batched_tokens": (
        r"'max_num_batched_tokens': (\d+)",
        r"max_num_batched_tokens=(\d+)",
    ),
    "longest": (r"estimated maximum model length is (\d+)",),
}
_RANKS = {
    "tensor_parallel": (r"tensor_parallel_size['\"]?[=:] ?(\d+)",),
    "pipeline_parallel": (r"pipeline_parallel_size['\"]?[=:] ?(\d+)",),
    "data_parallel": (r"data_parallel_size['\"]?[=:] ?(\d+)",),
}
_MOST_RANKS = 4096
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
_KV_DTYPE = (r"kv_cache_dtype['\"]?[=:] ?'?(fp8(?:_e\dm\d)?)\b",)
_CONCURRENCY = (r"tokens per request: ([\d.]+)x",)
_CACHING = r"enable_prefix_caching['\"]?[=:] ?True"
_HITS = r"Prefix cache hit rate: (?:GPU: )?(\d+\.\d+)%"
# The first form that is found; an API server prints its line before its engine does.
_STARTS = (
    r"vLLM (?:API )?server version|█\S* +version \S|batch processing API version",
    r"LLM engine \(v?\d",
)
# Processes of data-parallel engines, and the process of an engine.
_DATA_RANK = re.compile(r"\((?:EngineCore_(?:DP)?|Worker_DP)(\d{1,6})")
_CORE = re.compile(r"\(EngineCore\S* pid=(\d+)\)")
# The first that is found.
_FAILURES = (
    ("no_memory", r"No available memory for the cache blocks"),
    ("too_long", r"larger than the (?:available KV cache|maximum number of tokens that can)"),
    ("little_free", r"is less than desired GPU memory utilization"),
)
_OUT_OF_MEMORY = r"CUDA out of memory|OutOfMemoryError"
# What an allocation fails in after a line: newer versions profile CUDA graphs before the cache.
_STAGES = {
    "oom_load": r"Starting to load model",
    "oom_profile": r"[Mm]odel (?:loading|weights) took",
    "oom_warmup": r"Available KV cache memory|KV cache size: |# (?:GPU|CUDA) blocks"
    r"|Graph capturing finished",
    "oom_capture": r"Capturing (?:the model for )?CUDA graph|Capturing cudagraphs",
    "oom_serving": r"Application startup complete|init engine \(.{0,100}took",
}
_WARMING_UP = r"when warming up (?:sampler|pooler)"
_OTHERS = {
    "SGLang": r"sglang|KV Cache is allocated\. #tokens",
    "TensorRT-LLM": r"TensorRT-LLM|\[TRT-LLM\]",
    "TGI": r"text[-_]generation[-_](?:inference|launcher|router)|KV-cache blocks",
    "Ollama": r"ollama",
    "llama.cpp": r"llama_model_loader|llama_kv_cache",
}
_OWN = r"\bvLLM\b|Starting to load model|EngineCore"
_ERROR = r"\b([\w.]{0,80}(?:Error|Exception): .*)"


class NotALogError(ValueError):
    """Nothing in a text is a figure of vLLM's memory.

    Attributes:
        engine: what printed it, where that is known; ``vLLM``: the log ends too early.
        last: the first error in vLLM's log, or else its last line.
    """

    def __init__(self, engine: str | None, last: str) -> None:
        super().__init__(engine or "unknown")
        self.engine, self.last = engine, last


@dataclass(frozen=True, slots=True)
class StartLog:
    """What a log says; bytes are of one GPU, None: not said.

    Attributes:
        starts: of vLLM in the log; the other fields are of the last one.
        total: memory that CUDA reports; ``free``: of it, when vLLM starts.
        kv: of the cache; ``needed``: of a longest request.
        tokens, concurrency, blocks: of the cache, as printed.
        block_size, max_num_seqs, max_num_batched_tokens: where they are set, or printed.
        longest: the maximum length with which vLLM says that it would start.
        prefix_caching: whether it is on. ``prefix_hits``: the last share of tokens found, printed.
        failure: ``no_memory``, ``too_long``, ``little_free``; ``oom`` while it is unknown what was
            done, ``oom_load``, ``oom_profile``, ``oom_capture``, ``oom_warmup``, ``oom_serving``.
    """

    starts: int
    version: tuple[int, int] | None
    model: str | None
    utilisation: float | None
    concurrency: float | None
    total: int | None
    free: int | None
    weights: int | None
    activations: int | None
    non_torch: int | None
    graphs: int | None
    kv: int | None
    needed: int | None
    max_length: int | None
    tensor_parallel: int | None
    pipeline_parallel: int | None
    data_parallel: int | None
    tokens: int | None
    blocks: int | None
    block_size: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    longest: int | None
    kv_dtype: str | None
    prefix_caching: bool
    prefix_hits: float | None
    failure: str | None


def read_start_log(text: str) -> StartLog:
    """Find the figures.

    Raises:
        NotALogError: there is none of memory or of a cache.
    """
    everything = text.split("\n")
    rank = min(_DATA_RANK.findall(text), key=int, default=None)
    lines, starts = _last_start(everything, rank)
    whole = "\n".join(lines)  # with the failures of all engines
    text = "\n".join(line for line in lines if _is_of(line, rank))
    sizes = {name: _size(_first(text, forms)) for name, forms in _BYTES.items()}
    wholes = {name: _whole(_first(text, forms)) for name, forms in _WHOLE.items()}
    ranks = {name: _whole(_first(text, forms), _MOST_RANKS) for name, forms in _RANKS.items()}
    failure = next((name for name, form in _FAILURES if re.search(form, whole)), None)
    if failure is None and sizes["kv"] is not None and sizes["kv"] <= 0:
        failure = "no_memory"
    failure = failure or _out_of_memory(whole)
    if failure is None and not any((sizes["kv"], wholes["tokens"], wholes["blocks"])):
        raise _not_a_log(text)
    version, share = _first(text, _VERSION), _number(_first(text, _UTILISATION))
    hits = re.findall(_HITS, text)[-1:]
    return StartLog(
        starts=starts,
        version=_pair(version) if version else None,
        model=_first(text, _MODEL),
        utilisation=share if share and 0.01 <= share <= 1 else None,
        concurrency=_number(_first(text, _CONCURRENCY)),
        kv_dtype=_first(text, _KV_DTYPE),
        prefix_caching=re.search(_CACHING, text) is not None,
        prefix_hits=float(hits[0]) / 100 if hits else None,
        failure=failure,
        **sizes,
        **wholes,
        **ranks,
    )


def _last_start(lines: list[str], rank: str | None) -> tuple[list[str], int]:
    """Lines of the last start, or all of them if there is only one; the number of starts.

    Starts are those of the data-parallel engine ``rank``.
    """
    own = [place for place, line in enumerate(lines) if _is_of(line, rank)]
    for form in _STARTS:
        places = [place for place in own if re.search(form, lines[place])]
        if len(places) > 1:
            return _of_one_server(lines, places[-1], rank), len(places)
        if places:
            break
    return lines, 1


def _is_of(line: str, rank: str | None) -> bool:
    """Whether a line is of this data-parallel engine, or of none."""
    ranks = _DATA_RANK.findall(line)
    return not ranks or rank in ranks


def _of_one_server(lines: list[str], start: int, rank: str | None) -> list[str]:
    """Lines from a start on, without those of engines of other servers that run meanwhile.

    The engine is that of the start's own line, or the last one that is new; without a new one it
    is a restart in a container, where processes have the same numbers again.
    """
    older = {core for line in lines[:start] for core in _CORE.findall(line)}
    cores = [core for line in lines[start:] if _is_of(line, rank) for core in _CORE.findall(line)]
    new = [core for core in dict.fromkeys(cores) if core not in older]
    own = _CORE.findall(lines[start]) or new[-1:]
    others = (older.union(new) - set(own)) if own else set[str]()
    return [line for line in lines[start:] if not others.intersection(_CORE.findall(line))]


def _out_of_memory(text: str) -> str | None:
    """What vLLM did when memory was exhausted; None: it was not."""
    error = re.search(_OUT_OF_MEMORY, text)
    if error is None:
        return None
    before = {
        name: max((found.start() for found in re.finditer(form, text[: error.start()])), default=-1)
        for name, form in _STAGES.items()
    }
    stage = max(before, key=lambda name: before[name])
    if before[stage] >= 0:
        return stage
    return "oom_warmup" if re.search(_WARMING_UP, text) else "oom"


def _not_a_log(text: str) -> NotALogError:
    names = (name for name, form in _OTHERS.items() if re.search(form, text, re.IGNORECASE))
    engine = next(names, "vLLM" if re.search(_OWN, text) else None)
    lines = text.split("\n")
    errors = (found[1].strip() for line in lines if (found := re.search(_ERROR, line)))
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return NotALogError(engine, next(errors, last))


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


def _whole(text: str | None, most: int = 10**12) -> int | None:
    digits = (text or "").replace(",", "")[:12]
    return int(digits) if digits and int(digits) <= most else None
