"""Options of the simulator's commands, and their conversion."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

from experiment.commands.parser import attribute
from experiment.commands.values import choice, number, rate, size, whole
from experiment.simulate.names import (
    check_given,
    format_of,
    gpu_of,
    listing,
    model_notes,
    model_of,
)
from experiment.simulate.setup import Limits, Memory
from experiment.simulate.trace import TraceOptions, read_options
from experiment.text import Translator
from experiment.text.errors import user_error
from kvsim.sizing.models import QUANTISED
from kvsim.sizing.overhead import OLDEST, TESTED, ServerOptions, Version
from kvsim.sweep.grid import MAX_REQUESTS
from kvsim.traces.parse import UNITS

TRACE = {
    "--trace": "FILE|PRESET",
    "--format": "NAME",
    "--unit": "s|ms|us|ns",
    "--hash-block-size": "N",
    "--turns": "first|all",
    "--output-tokens": "N",
    "--head": "N",
    "--tile": "N",
    "--rate": "R|Fx",
    "--requests": "N",
    "--cv": "X",
    "--seed": "N",
}
MODEL = {
    "--model": "NAME",
    "--gpu": "NAME",
    "--gpus": "N",
    "--dtype": "TYPE",
    "--weights": "SIZE|fp8|int8|w4|nvfp4",
    "--kv-dtype": "auto|fp8",
    "--kv-budget": "SIZE|auto",
    "--gpu-memory-utilization": "X",
    "--vllm-version": "X.Y",
    "--overhead": "SIZE",
    "--max-length": "N",
    "--block-size": "N",
    "--latency": "FILE",
    "--list": "WHAT",
}
LIMITS = {
    "--max-num-seqs": "N",
    "--max-num-batched-tokens": "N",
    "--long-prefill-token-threshold": "N",
    "--watermark-blocks": "N",
    "--preemption": "recompute|swap",
    "--swap-space": "SIZE",
    "--samples": "N",
    "--beams": "N",
    "--branching": "X",
}
SWEEPS = {
    "--block-sizes": "N,...",
    "--budgets": "SIZE,...",
    "--sample-counts": "N,...",
    "--capacities": "N,...",
}
MAX_CV = 1000.0
KV_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
DTYPES = ("float16", "bfloat16", "float32")


def shows_list(options: argparse.Namespace, t: Translator) -> bool:
    """Print the list of ``--list``; return whether it was given.

    Raises:
        UserError: unknown list.
    """
    if options.list is None:
        return False
    from experiment.report.console.simulation import show_list

    notes = model_notes() if options.list == "models" else []
    show_list(options.list, listing(options.list), notes, t.lang, options.ascii)
    return True


def check_needed(options: argparse.Namespace, *needed: str, gpu_needed: bool = True) -> None:
    """Check that model, GPU and all options in ``needed`` were given.

    Raises:
        UserError: unknown name, or missing options, which are all listed.
    """
    if options.model:
        model_of(options.model, _weights(options.weights))
    if options.gpu:
        gpu_of(options.gpu)
    flags = ("--model", *(("--gpu",) if gpu_needed else ()), *needed)
    check_given({flag: getattr(options, attribute(flag)) for flag in flags})


def _weights(text: str | None) -> int | str | None:
    """Bytes, or a kind of quantisation."""
    return text if text in QUANTISED else size("--weights", text)


def sizes_of(options: argparse.Namespace) -> dict[str, Any]:
    """Maximum length, block size, and file of step times.

    Raises:
        UserError: a value does not fit.
    """
    return {
        "max_length": whole("--max-length", options.max_length),
        "block_size": whole("--block-size", options.block_size),
        "latency": Path(options.latency) if options.latency else None,
    }


def trace_of(options: argparse.Namespace) -> TraceOptions:
    """Options of the trace.

    Raises:
        UserError: a value does not fit.
    """
    per_second, factor = rate("--rate", options.rate)
    turns = cast("Literal['first', 'all'] | None", choice("--turns", options.turns, _TURNS))
    read = {
        "format": format_of(options.format),
        "unit": choice("--unit", options.unit, tuple(UNITS)),
        "block_size": whole("--hash-block-size", options.hash_block_size),
        "policy": "skip" if options.skip_bad_rows else "strict",
        "output_tokens": whole("--output-tokens", options.output_tokens),
        "turns": turns or "first",
    }
    return TraceOptions(
        source=options.trace,
        read=read_options(read),
        requests=whole("--requests", options.requests, most=MAX_REQUESTS),
        cv=number("--cv", options.cv, most=MAX_CV),
        seed=whole("--seed", options.seed, 0) or 0,
        rate=per_second,
        factor=factor,
        head=whole("--head", options.head),
        tile=whole("--tile", options.tile),
    )


_TURNS: Sequence[str] = ("first", "all")


def memory_of(options: argparse.Namespace) -> Memory:
    """Options of memory.

    Raises:
        UserError: a value does not fit.
    """
    utilisation = number(
        "--gpu-memory-utilization", options.gpu_memory_utilization, above=0, most=1
    )
    budget = None if options.kv_budget == "auto" else size("--kv-budget", options.kv_budget)
    kv_dtype = choice("--kv-dtype", options.kv_dtype, KV_DTYPES)
    for flag in ("--gpu-memory-utilization", "--overhead"):
        if budget is not None and getattr(options, attribute(flag)) is not None:
            raise user_error("error.sim.unused_beside", flag=flag, other="--kv-budget")
    return Memory(
        budget=budget,
        weights=_weights(options.weights),
        gpus=gpus_of(options),
        utilisation=utilisation,
        server=server_of(options),
        overhead=size("--overhead", options.overhead, 0),
        dtype=choice("--dtype", options.dtype, DTYPES),
        kv_dtype="fp8" if kv_dtype == "fp8_e4m3" else kv_dtype,
    )


def gpus_of(options: argparse.Namespace) -> int:
    """GPUs of one engine: of --gpus, or the product of tensor- and pipeline-parallel sizes.

    Raises:
        UserError: the sizes do not divide the GPUs, or give another number.
    """
    gpus = whole("--gpus", options.gpus)
    tensor, pipeline, data = (_parallel(options, name) for name in ("tensor", "pipeline", "data"))
    stages, engines = pipeline or 1, data or 1
    if gpus is None:
        return (tensor or 1) * stages
    if gpus % (stages * engines) or (tensor and gpus != tensor * stages * engines):
        sizes = " × ".join(str(each) for each in (tensor or "?", stages, engines))
        raise user_error("error.sim.parallel", gpus=gpus, sizes=sizes)
    return gpus // engines


def _parallel(options: argparse.Namespace, name: str) -> int | None:
    flag = f"--{name}-parallel-size"
    return whole(flag, getattr(options, attribute(flag), None), most=4096)


def server_of(options: argparse.Namespace) -> ServerOptions:
    """What of vLLM's options decides how much memory it needs beside the cache.

    Raises:
        UserError: a value does not fit.
    """
    loras, rank = (getattr(options, name, None) for name in ("max_loras", "max_lora_rank"))
    if rank and not loras:
        raise user_error("error.sim.unused", flag="--max-lora-rank", other="--max-loras")
    return ServerOptions(
        version=_version(options.vllm_version),
        max_num_batched_tokens=whole("--max-num-batched-tokens", options.max_num_batched_tokens),
        max_num_seqs=whole("--max-num-seqs", options.max_num_seqs),
        enforce_eager=getattr(options, "enforce_eager", False),
        language_model_only=getattr(options, "language_model_only", False),
        pipeline_parallel=_parallel(options, "pipeline") or 1,
        data_parallel=_parallel(options, "data") or 1,
        expert_parallel=getattr(options, "enable_expert_parallel", False),
        max_loras=whole("--max-loras", loras, most=4096) or 0,
        max_lora_rank=whole("--max-lora-rank", rank, most=1024) or 16,
    )


def _version(text: str | None) -> Version:
    if text is None:
        return TESTED
    numbers = text.removeprefix("v").split(".")[:2]
    if len(numbers) != 2 or not all(part.isdecimal() and len(part) < 5 for part in numbers):
        raise user_error("error.sim.vllm_version", value=text[:40])
    major, minor = map(int, numbers)
    if (major, minor) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise user_error("error.sim.old_vllm", value=text[:40], oldest=oldest)
    return major, minor


def limits_of(options: argparse.Namespace) -> Limits:
    """Limits of the scheduler.

    Raises:
        UserError: a value does not fit.
    """
    kind = choice("--preemption", options.preemption, ("recompute", "swap")) or "recompute"
    swap = size("--swap-space", options.swap_space, 0) or 0
    if kind == "swap" and not swap:
        raise user_error("error.sim.no_swap_space")
    if kind != "swap" and swap:
        raise user_error("error.sim.unused", flag="--swap-space", other="--preemption swap")
    return Limits(
        max_num_seqs=whole("--max-num-seqs", options.max_num_seqs) or 256,
        max_num_batched_tokens=whole("--max-num-batched-tokens", options.max_num_batched_tokens)
        or 2048,
        long_prefill_token_threshold=whole(
            "--long-prefill-token-threshold", options.long_prefill_token_threshold, 0
        )
        or 0,
        watermark_blocks=whole("--watermark-blocks", options.watermark_blocks, 0) or 0,
        preemption=cast("Literal['recompute', 'swap']", kind),
        swap_bytes=swap,
    )
