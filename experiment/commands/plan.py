"""``plan``: what fits a model, a GPU and lengths of requests, in sentences, a table, arguments."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiment import __version__
from experiment.commands import simulation_options as words
from experiment.commands.parser import attribute, make_parser, parse
from experiment.events.wall_clock import wall_clock
from experiment.files.bounded_reading import check_replaceable
from experiment.files.os_errors import writing
from experiment.record.log import write_atomic
from experiment.simulate.latency_file import read_latency
from experiment.simulate.setup import Memory, Setup
from experiment.simulate.trace import Loaded, holds_texts, lengths, load
from experiment.simulate.values import number, whole
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error
from experiment.workload.kvsim_errors import translate_errors
from kvsim.latency.roofline import Latency
from kvsim.planning.plan import Plan, PlanQuestion, full_rate, make_plan
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.models import ModelFacts
from kvsim.sizing.vllm_capacity import VllmCapacity, vllm_capacity

SCHEMA_VERSION = 1


def plan(arguments: list[str], t: Translator) -> int:
    """Run the command; returns the exit code.

    Raises:
        UserError: a word does not fit, or nothing does.
    """
    options = parse(_parser(t), arguments, ())
    if words.shows_list(options, t):
        return ExitCode.OK
    check_replaceable(options.out, "plan", "--out")
    lengths_of_all = () if options.trace else ("--prompt-tokens", "--new-tokens")
    model, gpu = words.model_and_gpu(options, *lengths_of_all)
    memory = words.memory_of(options)
    rate = number("--rate", options.rate, above=0) if options.trace is None else None
    stream = _stream(options, model)
    pairs = _pairs(options) if stream is None else lengths(stream)
    question = _question(options, (model, gpu), memory, pairs)
    with translate_errors():
        found = make_plan(question)
    setup = _setup(question, memory, found, options)
    if rate is None and stream is not None and stream.info.span_ns:
        rate = (stream.facts.requests - 1) / (stream.info.span_ns / 1e9)
    data = _data(found, setup, stream) | _load(question, found, rate)
    if memory.dtype is not None and found.vllm_args:
        data["plan"]["vllm_args"] += ["--dtype", memory.dtype]
    from experiment.report.console.plan import show_plan

    show_plan(data, t.lang, options.ascii)
    if options.out:
        _write(Path(options.out), data)
    return ExitCode.OK


def _parser(t: Translator) -> argparse.ArgumentParser:
    parser = make_parser(t, "plan")
    words.add(parser, t, words.MODEL)
    words.add(parser, t, {"--prompt-tokens": "N", "--new-tokens": "N"})
    words.add(parser, t, words.TRACE)
    parser.add_argument("--skip-bad-rows", action="store_true", help=t("help.sim.skip_bad_rows"))
    parser.add_argument("--out", metavar="FILE", help=t("help.sim.plan_out"))
    return parser


def _stream(options: argparse.Namespace, model: ModelFacts) -> Loaded | None:
    given = options.prompt_tokens is not None or options.new_tokens is not None
    if options.trace and given:
        raise user_error("error.sim.plan_both")
    if not options.trace:
        for flag in (*words.TRACE, "--skip-bad-rows"):
            if flag != "--rate" and getattr(options, attribute(flag)):
                raise user_error("error.sim.unused", flag=flag, other="--trace")
        return None
    longest = whole("--max-length", options.max_length) or model.max_positions
    return load(words.trace_of(options, longest))


def _pairs(options: argparse.Namespace) -> list[tuple[int, int]]:
    prompt = whole("--prompt-tokens", options.prompt_tokens) or 1
    return [(prompt, whole("--new-tokens", options.new_tokens) or 1)]


def _question(
    options: argparse.Namespace,
    chosen: tuple[ModelFacts, GPUFacts],
    memory: Memory,
    pairs: Sequence[tuple[int, int]],
) -> PlanQuestion:
    model, gpu = chosen
    memory.geometry(model)
    latency: Latency = (
        read_latency(Path(options.latency)) if options.latency else memory.roofline(model, gpu)
    )
    return PlanQuestion(
        model,
        gpu,
        pairs,
        gpus=memory.gpus,
        block_size=whole("--block-size", options.block_size) or 16,
        max_length=whole("--max-length", options.max_length),
        budget=memory.kv(model, gpu),
        kv_dtype=memory.kv_dtype_of(model),
        latency=latency,
        capacity=vllm_capacity,
    )


def _setup(
    question: PlanQuestion, memory: Memory, found: Plan, options: argparse.Namespace
) -> Setup:
    """The plan's own setting, for the lines that lead from memory to blocks."""
    assert question.latency is not None
    return Setup(
        model=question.model,
        gpu=question.gpu,
        gpus=question.gpus,
        geometry=found.geometry,
        dtype=memory.dtype_of(question.model),
        kv_dtype=memory.kv_dtype_of(question.model),
        budget=found.budget,
        block_size=found.block_size,
        max_length=found.max_length,
        max_length_source="declared" if question.max_length else "longest",
        latency=question.latency,
        latency_source="file" if options.latency else "roofline",
    )


def _data(found: Plan, setup: Setup, stream: Loaded | None) -> dict[str, Any]:
    answer = asdict(found)
    answer["vllm_args"] = list(found.vllm_args)
    answer["block_sizes"] = [
        asdict(demand) | {"tail_share": demand.tail_share} for demand in found.block_sizes
    ]
    printed = found.printed
    if isinstance(printed, VllmCapacity):
        answer["printed"] = {
            "tokens": printed.tokens,
            "max_concurrency": printed.max_concurrency,
            "blocks": printed.blocks,
            "starts": printed.starts,
        }
    return {
        "kind": "plan",
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        **wall_clock(),
        "trace": stream.info.to_json() if stream else None,
        "facts": stream.facts.to_json() if stream else None,
        "texts": holds_texts(stream.info) if stream else False,
        "setup": setup.to_json(),
        "plan": answer,
    }


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


def _write(path: Path, data: dict[str, Any]) -> None:
    with writing(path):
        write_atomic(path, json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
