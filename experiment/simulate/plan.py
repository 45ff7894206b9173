"""What fits a model, a GPU and lengths of requests: the answer of ``plan``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiment.simulate.names import gpu_of, model_of
from experiment.simulate.setup import Memory, Setup, head_of, make_setup
from experiment.simulate.trace import Loaded, TraceOptions, lengths, load
from experiment.simulate.what_if import what_if
from experiment.text.errors import user_error
from experiment.text.messages import message
from experiment.workload.kvsim_errors import translate_errors
from kvsim.latency.roofline import Latency
from kvsim.planning.capacity import capacities, longest
from kvsim.planning.plan import Plan, PlanQuestion, full_rate, make_plan
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.layout import LayoutError, lay_out
from kvsim.sizing.overhead import ServerOptions

SCHEMA_VERSION = 1
_MOST_LENGTH = 1 << 17  # of a model whose config has no positions


def plan(
    model: str,
    gpu: str | GPUFacts,
    requests: Sequence[tuple[int, int]] | TraceOptions | None = None,
    memory: Memory = Memory(),  # noqa: B008
    *,
    context: int | None = None,
    users: int | None = None,
    shared_prefix: int = 0,
    max_length: int | None = None,
    block_size: int | None = None,
    latency: Path | None = None,
    rate: float | None = None,
    async_scheduling: bool = True,
    prefix_caching: bool = True,
) -> dict[str, Any]:
    """Plan for a model on a GPU; plain values, as ``plan --out`` writes them.

    Args:
        model: a name of the catalogue, a config.json or its directory; ``gpu``: a name, or facts.
        requests: (prompt, new) tokens of each kind of request, or a trace; None: all of ``context``
            tokens.
        context: tokens of a request; None: the maximum length, or else the model's positions.
        users: concurrent requests that are asked for.
        shared_prefix: tokens that all requests begin with.
        max_length: tokens; None: what the longest request needs.
        block_size: tokens; None: vLLM's default for the model.
        latency: a file that ``calibrate`` wrote; None: the bound of model and GPU.
        rate: requests a second; None: that of the trace, where it has one.
        async_scheduling, prefix_caching: of vLLM, by its defaults.

    Raises:
        UserError: a name, the trace or the memory does not fit, or nothing does.
    """
    named = model_of(model, memory.weights)
    device = gpu if isinstance(gpu, GPUFacts) else gpu_of(gpu)
    set_up = partial(make_setup, named, device, memory, block_size=block_size, latency=latency)
    stream: Loaded | None = None
    shortened = False
    if requests is None:
        asked = max_length or context
        max_length = asked or _longest(set_up(), memory.server, async_scheduling)
        shortened = asked is None and max_length < (named.max_positions or max_length)
        requests = [(max(1, (context or max_length) - 1), 1)]
    setup = set_up(max_length=max_length)
    if isinstance(requests, TraceOptions):
        stream = load(replace(requests, max_length=max_length or named.max_positions))
        requests = lengths(stream)
        if rate is None and stream.info.span_ns:
            rate = (stream.facts.requests - 1) / (stream.info.span_ns / 1e9)
    question = PlanQuestion(
        named, setup.gpu, requests, gpus=setup.gpus, block_size=block_size, max_length=max_length,
        budget=setup.budget, kv_dtype=setup.kv_dtype, dtype=memory.dtype,
        latency=setup.latency if setup.gpu.source else None,
        options=memory.server, async_scheduling=async_scheduling, prefix_caching=prefix_caching,
    )  # fmt: skip
    try:
        with translate_errors():
            found = make_plan(question)
    except LayoutError as error:
        why = message(f"geometry.{error.code}").model_dump()
        raise user_error("error.sim.model_refused", model=named.name, why=why) from error
    # The plan's own setting, for the lines that lead from memory to blocks.
    setup = replace(
        setup, caches=tuple(found.caches), budget=found.budget, block_size=found.block_size,
        max_length=found.max_length, max_length_source="declared" if max_length else "longest",
    )  # fmt: skip
    answer = _answer(found)
    length = context or max(map(sum, requests)) if len(set(requests)) == 1 else found.max_length
    answer["capacity"] = _capacity(question, found, length, shared_prefix) | {
        "users": users,
        "positions": named.max_positions,
        "shortened": shortened,
    }
    answer["what_if"] = what_if(question, found, memory, answer["capacity"])
    if shared_prefix and found.vllm_args:
        at = answer["vllm_args"].index("--max-num-seqs") + 1
        answer["vllm_args"][at] = str(max(1, answer["capacity"]["middle"]["requests"]))
    if memory.dtype is not None and found.vllm_args:
        answer["vllm_args"] += ["--dtype", memory.dtype]
    head = head_of("plan", SCHEMA_VERSION, setup, stream)
    service = question.service(found.max_length)
    answer["vllm"] = {
        "max_num_batched_tokens": service.max_num_batched_tokens,
        "async_scheduling": async_scheduling,
        "prefix_caching": prefix_caching,
    }
    head["setup"]["limits"]["max_num_batched_tokens"] = service.max_num_batched_tokens
    if found.memory:  # no slot holds a token of every layer
        block_bytes = found.layout.block_bytes * setup.gpus
        head["setup"] |= {"slots": None, "blocks": found.blocks, "block_bytes": block_bytes}
    return head | {"plan": answer} | _load(question, found, rate)


def _longest(setup: Setup, options: ServerOptions, async_scheduling: bool) -> int:
    """The model's positions, or the longest maximum length with which vLLM starts.

    Raises:
        UserError: not even a block fits.
    """
    most = setup.model.max_positions or _MOST_LENGTH
    layout = lay_out(setup.caches)
    question = PlanQuestion(
        setup.model, setup.gpu, (), options=options, async_scheduling=async_scheduling
    )
    kv = setup.budget.kv if setup.budget.low is None else setup.budget.low  # to start surely
    found = longest(layout, kv, setup.gpus, question.service, most)
    if not found:
        size = setup.block_size
        raise user_error("error.plan.no_block", slots=0, max_length=size)
    return found if found == most else max(1, found // setup.block_size) * setup.block_size


def _capacity(
    question: PlanQuestion, found: Plan, length: int, shared_prefix: int
) -> dict[str, Any]:
    """Requests of one length that fit, and what vLLM prints: least, expected, most."""
    service = question.service(found.max_length)
    sizes = capacities(found.layout, found.budget, found.gpus, service, length, shared_prefix)
    seqs = question.options.sequences(question.gpu, found.max_length)
    return {
        "length": length,
        "shared_prefix": shared_prefix,
        "max_num_seqs": seqs,
        "limit": "sequences" if sizes["middle"].requests > seqs else "memory",
        "version": ".".join(map(str, question.options.version)),
        **{name: asdict(each) for name, each in sizes.items()},
    }


def _answer(found: Plan) -> dict[str, Any]:
    answer = {key: value for key, value in asdict(found).items() if key not in ("caches", "layout")}
    layout = found.layout
    answer["layout"] = {
        "block_bytes": layout.block_bytes,
        "padding_layers": layout.padding_layers,
        "groups": [
            {"kind": group.cache[0].kind, "layers": len(group.layers),
             "block_size": group.cache[0].block_size, "page_bytes": group.page_bytes}
            for group in layout.groups
        ],
    }  # fmt: skip
    answer["vllm_args"] = list(found.vllm_args)
    answer["block_sizes"] = [
        asdict(demand) | {"tail_share": demand.tail_share} for demand in found.block_sizes
    ]
    printed = found.printed
    if printed is not None:
        answer["printed"] = {
            "tokens": printed.tokens,
            "max_concurrency": printed.max_concurrency,
            "blocks": printed.blocks,
            "starts": printed.starts,
            "request_bytes": printed.request_blocks * layout.block_bytes * found.gpus,
        }
    return answer


def _load(question: PlanQuestion, found: Plan, rate: float | None) -> dict[str, Any]:
    """What a rate comes to: requests at a time, and the share of the pool that they hold."""
    most = found.policies["paged"].running
    if rate is None or not found.full_at or most is None:
        return {"load": None}
    running = None
    if rate <= found.full_at:
        assert question.latency is not None
        running = running_at(question.latency, question.lengths, rate, most)
    share = running / most if running is not None else None
    return {"load": {"rate": rate, "running": running, "share": share}}


def running_at(
    latency: Latency, pairs: Sequence[tuple[int, int]], rate: float, most: float
) -> float:
    """Requests at a time that ``rate`` a second keep running; at most ``most``, at least 1."""
    low, high = 1.0, most
    for _ in range(60):
        middle = (low + high) / 2
        found = full_rate(latency, pairs, middle)
        if found is not None and found < rate:
            low = middle
        else:
            high = middle
    return high
