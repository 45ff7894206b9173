"""Load a trace: a file or a preset, with its edits, and facts from one pass over it.

file or preset ─► head ─► tile ─► rate ─► Loaded: requests in memory, or read again each time
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiment.files.parse_memory import memory_budget, memory_limit
from experiment.simulate.names import unknown_trace
from experiment.text.errors import user_error
from experiment.workload.kvsim_errors import translate_errors
from kvsim.traces import (
    PRESETS,
    ArrivalProcess,
    Head,
    ReadOptions,
    RequestStream,
    ScaleRate,
    SyntheticTrace,
    Tile,
    TraceFile,
    TraceInfo,
    TraceRequest,
    WithArrivals,
    at_rate,
    from_preset,
)

# Traces with more requests (or hash ids) are read again for every policy.
_KEPT = 2_000_000
# Memory per request of a simulated trace, with a margin: 110 were measured.
_REQUEST_BYTES = 256
_PRESET_REQUESTS = 1_000
# Characters per piece of a text, and positions that always end a word of GPT-2.
_PIECE = 1 << 16
_MOST_PIECE = 1 << 18  # longer words are cut, which adds some tokens
_CUT = re.compile(r"(?<=\S)(?=\s)|(?<=[^\W_])(?=[^\w\s|])")  # but in <|endoftext|>
Tick = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options of a trace.

    Attributes:
        source: a file, or the name of a preset.
        requests, cv: number of requests and burstiness of arrivals of a preset.
        rate: requests per second; ``factor``: multiplies the trace's rate.
    """

    source: str
    read: ReadOptions = field(default_factory=lambda: read_options({}))
    requests: int | None = None
    cv: float | None = None
    seed: int = 0
    rate: float | None = None
    factor: float | None = None
    head: int | None = None
    tile: int | None = None
    max_length: int | None = None

    @property
    def preset(self) -> bool:
        """Whether the trace is synthetic."""
        return self.source in PRESETS and not Path(self.source).exists()


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Facts from one pass over a trace; tokens are totals, ``longest`` is the maximum."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    longest: int
    samples: int
    hash_ids: int


class Loaded:
    """A stream that was read once, kept in memory if it fits."""

    def __init__(self, source: RequestStream) -> None:
        self._source = source
        self._kept: list[TraceRequest] | None = []
        held = prompt = output = longest = ids = 0
        samples, count = 1, 0
        for request in source:
            count += 1
            prompt += request.prompt_tokens
            output += request.output_tokens
            longest = max(longest, request.prompt_tokens + request.output_tokens)
            samples = max(samples, request.samples)
            ids += request.hash_ids is not None
            held += 1 + len(request.hash_ids or ())
            if self._kept is not None:
                self._kept.append(request)
                if held > _KEPT:
                    self._kept = None
        self.info: TraceInfo = source.info
        self.facts = TraceFacts(count, prompt, output, longest, samples, ids)

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self._source if self._kept is None else self._kept)


def load(options: TraceOptions) -> Loaded:
    """Open, edit and read a trace once, to find its errors before a simulation.

    Raises:
        UserError: it cannot be read, or cannot be scaled to the rate.
    """
    limit = nullcontext() if options.preset else memory_limit(options.source)
    with translate_errors(), limit:
        stream = _generated(options) if options.preset else _file(options)
        if options.head:
            stream = Head(stream, options.head)
        if options.tile:
            stream = Tile(stream, options.tile)
        if not options.preset:
            stream = _at_rate(stream, options)
        return Loaded(stream)


def _file(options: TraceOptions) -> RequestStream:
    path = Path(options.source)
    if not path.exists():
        raise unknown_trace(options.source)
    for flag, given in (("--requests", options.requests), ("--cv", options.cv)):
        if given is not None:
            other = "--trace PRESET (--list presets)"
            raise user_error("error.needs_flag", flag=flag, other=other)
    return TraceFile(path, options.read)


def _generated(options: TraceOptions) -> RequestStream:
    read = options.read
    for flag, given in (("--format", read.format), ("--unit", read.unit),
                        ("--hash-block-size", read.block_size),
                        ("--output-tokens", read.output_tokens)):  # fmt: skip
        if given is not None:
            raise user_error("error.needs_flag", flag=flag, other="--trace FILE")
    rate = options.rate
    if options.factor is not None:
        raise user_error("error.sim.no_rate_to_scale", value=f"{options.factor:g}x")
    if rate is None and options.cv is not None:
        raise user_error("error.needs_flag", flag="--cv", other="--rate")
    cv = 1.0 if options.cv is None else options.cv
    requests = options.requests or _PRESET_REQUESTS
    recipe = from_preset(
        options.source, requests, ArrivalProcess(rate, cv), seed=options.seed,
        max_length=options.max_length,
    )  # fmt: skip
    try:
        return SyntheticTrace(recipe)
    except ValueError as error:
        length = options.max_length
        raise user_error("error.sim.hardly_fits", name=options.source, length=length) from error


def _at_rate(stream: RequestStream, options: TraceOptions) -> RequestStream:
    """Scale its times, or sample Poisson arrivals for a trace without arrival times."""
    rate, factor, seed = options.rate, options.factor, options.seed
    if rate is not None:
        about: dict[str, float | str] = {"process": "poisson", "rate": rate, "seed": seed}
        found = at_rate(stream, rate, 1.0, seed, about)
        if isinstance(found, WithArrivals) and stream.info.has_clock:
            raise user_error("error.sim.no_rate_to_scale", value=f"{rate:g}")
        return found
    if factor is not None and not stream.info.has_clock:
        raise user_error("error.sim.no_rate_to_scale", value=f"{factor:g}x")
    return stream if factor is None else ScaleRate(stream, factor)


def read_options(values: dict[str, Any]) -> ReadOptions:
    """Read options of a file; texts are counted in tokens of GPT-2."""
    return ReadOptions(count_tokens=_Counter(), most=memory_budget() // _REQUEST_BYTES, **values)


class _Counter:
    """Count tokens with GPT-2's tokenizer, loaded at the first text.

    Long texts are counted in pieces, since tokenising takes hundreds of times their memory.
    """

    def __init__(self) -> None:
        self._tokenizer: Any = None

    def __call__(self, text: str) -> int:
        if self._tokenizer is None:
            from experiment.model.tokenizer import gpt2_tokenizer

            self._tokenizer = gpt2_tokenizer()
        return sum(len(self._tokenizer.encode(piece)) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """Split a text between words, so that its tokens do not change."""
    begin = 0
    while len(text) - begin > _PIECE:
        cut = _CUT.search(text, begin + _PIECE, begin + _MOST_PIECE)
        end = cut.start() if cut else begin + _MOST_PIECE
        yield text[begin:end]
        begin = end
    yield text[begin:]
