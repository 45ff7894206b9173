"""What fits a model, a GPU and lengths of requests: the answer of ``plan``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from experiment.simulate.fit import Question, fit
from experiment.simulate.names import model_of
from experiment.simulate.setup import Memory, head_of
from experiment.simulate.trace import Loaded, TraceOptions, load
from experiment.simulate.what_if import what_if
from experiment.workload.kvsim_errors import translate_errors
from kvsim.planning.plan import Plan, make_plan
from kvsim.sizing.gpus import GPUFacts

SCHEMA_VERSION = 1


def plan(
    model: str,
    gpu: str | GPUFacts,
    requests: Sequence[tuple[int, int]] | TraceOptions | None = None,
    memory: Memory = Memory(),  # noqa: B008
    **asked: Any,
) -> dict[str, Any]:
    """Plan for a model on a GPU; plain values, as ``plan --out`` writes them.

    Args:
        model: a name of the catalogue, a config.json or its directory; ``gpu``: a name, or facts.
        requests: (prompt, new) tokens of each kind of request, or a trace; None: all of ``context``
            tokens.
        asked: further fields of :class:`experiment.simulate.fit.Question`; a ``rate`` of None is
            that of the trace, where it has one.

    Raises:
        UserError: a name, the trace or the memory does not fit, or nothing does.
    """
    question, stream = with_requests(Question(requests=None, **asked), requests, model, memory)
    fitted = fit(model, gpu, memory, question)
    answer = fitted.answer()
    limit, most = (answer["capacity"][name] for name in ("limit", "most"))
    if limit in ("ttft", "tpot") and most and memory.server.max_num_seqs is None:
        seqs = -(-most // answer["engines"])
        memory = replace(memory, server=replace(memory.server, max_num_seqs=seqs))
        fitted = fit(model, gpu, memory, question)
        answer = fitted.answer()
        answer["capacity"]["limit"] = limit
    planned, load = fitted.plan, answer.pop("load")
    with translate_errors():
        found = make_plan(planned)
    # The plan's own setting, for the lines that lead from memory to blocks.
    declared = planned.max_length is not None
    setup = replace(
        fitted.setup, caches=tuple(found.caches), budget=found.budget, block_size=found.block_size,
        max_length=found.max_length, max_length_source="declared" if declared else "longest",
    )  # fmt: skip
    # Of requests that generate nothing there is no rate.
    full = fitted.speed_at(answer["capacity"]["most"]) if question.requests is not None else None
    answer = _answer(found) | answer | {"full": asdict(full) if full else None}
    answer["what_if"] = what_if(planned, memory, answer["capacity"])
    if memory.kv_dtype == "fp8_e5m2" and found.vllm_args:
        answer["vllm_args"][answer["vllm_args"].index("--kv-cache-dtype") + 1] = memory.kv_dtype
    if memory.weights == "fp8" and found.vllm_args:
        answer["vllm_args"] += ["--quantization", "fp8"]
    answer["checkpoint"] = memory.weights if isinstance(memory.weights, str) else None
    if memory.dtype is not None and found.vllm_args:
        answer["vllm_args"] += ["--dtype", memory.dtype]
    head = head_of("plan", SCHEMA_VERSION, setup, stream)
    service = planned.service(found.max_length)
    answer["vllm"] = {
        "max_num_batched_tokens": service.max_num_batched_tokens,
        "async_scheduling": planned.async_scheduling,
        "prefix_caching": planned.prefix_caching,
    }
    head["setup"]["limits"] |= {
        "max_num_batched_tokens": service.max_num_batched_tokens,
        "max_num_seqs": answer["capacity"]["max_num_seqs"],
    }
    if found.memory:  # no slot holds a token of every layer
        block_bytes = found.layout.block_bytes * setup.gpus
        head["setup"] |= {"slots": None, "blocks": found.blocks, "block_bytes": block_bytes}
    return head | {"plan": answer, "load": load}


def with_requests(
    question: Question,
    requests: Sequence[tuple[int, int]] | TraceOptions | None,
    model: str,
    memory: Memory,
) -> tuple[Question, Loaded | None]:
    """The question with requests; those of a trace are read, and its rate where none is asked.

    Raises:
        UserError: the trace or the model does not fit.
    """
    if not isinstance(requests, TraceOptions):
        return replace(question, requests=requests), None
    most = question.max_length or model_of(model, memory.weights).max_positions
    stream = load(replace(requests, max_length=most))
    rate = question.rate
    if rate is None and stream.info.span_ns:
        rate = (stream.facts.requests - 1) / (stream.info.span_ns / 1e9)
    pairs = [(request.prompt_tokens, request.output_tokens) for request in stream]
    return replace(question, requests=pairs, rate=rate), stream


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
