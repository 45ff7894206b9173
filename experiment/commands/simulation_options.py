"""Options of the simulator's commands, and what is made of them."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from experiment.commands.parser import Option, attribute, fields, refuse_given
from experiment.commands.values import choice, known, number, rate, several, size, whole
from experiment.simulate.names import LISTS, check_given, gpu_of, model_of
from experiment.simulate.setup import Limits, Memory
from experiment.simulate.trace import TraceOptions, read_options
from experiment.text.errors import user_error
from kvsim.sizing.models import QUANTISED
from kvsim.sizing.overhead import OLDEST, TESTED, ServerOptions, Version
from kvsim.sweep.grid import MAX_REQUESTS
from kvsim.traces.formats import FORMATS
from kvsim.traces.parse import UNITS


def _weights(flag: str, text: str) -> int | str:
    """Bytes, or a kind of quantisation."""
    return text if text in QUANTISED else size(flag, text)


def _budget(flag: str, text: str) -> int | None:
    return None if text == "auto" else size(flag, text)


def _version(flag: str, text: str) -> Version:
    numbers = text.removeprefix("v").split(".")[:2]
    if len(numbers) != 2 or not all(part.isdecimal() and len(part) < 5 for part in numbers):
        raise user_error("error.not_like", config_key=flag, value=text[:40], example="0.33")
    major, minor = map(int, numbers)
    if (major, minor) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise user_error("error.limit_ge", config_key=flag, value=text[:40], limit=oldest)
    return major, minor


_COUNT = partial(whole, least=0)
PARALLEL = partial(whole, most=4096)
LIST: dict[str, Option] = {"--list": ("WHAT", partial(known, kind="list", names=LISTS))}
TRACE: dict[str, Option] = {
    "--trace": "FILE|PRESET",
    "--format": ("NAME", partial(known, kind="format", names=FORMATS, see="--list formats")),
    "--unit": ("s|ms|us|ns", partial(choice, choices=tuple(UNITS))),
    "--hash-block-size": ("N", whole),
    "--turns": ("first|all", partial(choice, choices=("first", "all"))),
    "--output-tokens": ("N", whole),
    "--head": ("N", whole),
    "--tile": ("N", whole),
    "--rate": ("R|Fx", rate),
    "--requests": ("N", partial(whole, most=MAX_REQUESTS)),
    "--cv": ("X", partial(number, most=1000)),
    "--seed": ("N", _COUNT),
}
MODEL: dict[str, Option] = {
    "--model": "NAME",
    "--gpu": "NAME",
    "--gpus": ("N", whole),
    "--dtype": ("TYPE", partial(choice, choices=("float16", "bfloat16", "float32"))),
    "--weights": ("SIZE|fp8|int8|w4|nvfp4", _weights),
    "--kv-dtype": (
        "auto|fp8", partial(choice, choices=("auto", "fp8", "fp8_e4m3", "fp8_e5m2")),
    ),
    "--kv-budget": ("SIZE|auto", _budget),
    "--gpu-memory-utilization": ("X", partial(number, above=0, most=1)),
    "--vllm-version": ("X.Y", _version),
    "--overhead": ("SIZE", partial(size, least=0)),
    "--max-length": ("N", whole),
    "--block-size": ("N", whole),
    "--latency": "FILE",
    **LIST,
}  # fmt: skip
LIMITS: dict[str, Option] = {
    "--max-num-seqs": ("N", whole),
    "--max-num-batched-tokens": ("N", whole),
    "--long-prefill-token-threshold": ("N", _COUNT),
    "--watermark-blocks": ("N", _COUNT),
    "--preemption": ("recompute|swap", partial(choice, choices=("recompute", "swap"))),
    "--swap-space": ("SIZE", partial(size, least=0)),
    "--samples": ("N", whole),
    "--beams": ("N", whole),
    "--branching": ("X", partial(number, most=1)),
}
SWEEPS: dict[str, Option] = {
    "--block-sizes": ("N,...", partial(several, read=whole)),
    "--budgets": ("SIZE,...", partial(several, read=size)),
    "--sample-counts": ("N,...", partial(several, read=whole)),
    "--capacities": ("N,...", partial(several, read=whole)),
}


def check_needed(options: argparse.Namespace, *needed: str) -> None:
    """Check that the model and all options in ``needed`` were given.

    Raises:
        UserError: unknown name, or missing options, which are all listed.
    """
    if options.model:
        model_of(options.model, options.weights)
    if options.gpu:
        gpu_of(options.gpu)
    flags = ("--model", *needed)
    check_given({flag: getattr(options, attribute(flag)) for flag in flags})


def sizes_of(options: argparse.Namespace) -> dict[str, Any]:
    """Maximum length, block size, and file of step times."""
    return {
        "max_length": options.max_length,
        "block_size": options.block_size,
        "latency": Path(options.latency) if options.latency else None,
    }


def trace_of(options: argparse.Namespace) -> TraceOptions:
    """Options of the trace."""
    per_second, factor = options.rate or (None, None)
    read = {
        "format": options.format,
        "unit": options.unit,
        "block_size": options.hash_block_size,
        "policy": "skip" if options.skip_bad_rows else "strict",
        "output_tokens": options.output_tokens,
        "turns": options.turns or "first",
    }
    return TraceOptions(
        source=options.trace,
        read=read_options(read),
        rate=per_second,
        factor=factor,
        **fields(options, "--requests", "--cv", "--seed", "--head", "--tile"),
    )


def memory_of(options: argparse.Namespace) -> Memory:
    """Options of memory.

    Raises:
        UserError: two of them contradict each other.
    """
    if options.kv_budget is not None:
        flags = ("--gpu-memory-utilization", "--overhead")
        refuse_given(options, flags, beside="--kv-budget")
    return Memory(
        budget=options.kv_budget,
        weights=options.weights,
        gpus=gpus_of(options),
        utilisation=options.gpu_memory_utilization,
        server=server_of(options),
        overhead=options.overhead,
        dtype=options.dtype,
        kv_dtype="fp8" if options.kv_dtype == "fp8_e4m3" else options.kv_dtype,
    )


def gpus_of(options: argparse.Namespace) -> int:
    """GPUs of one engine: of --gpus, or the product of tensor- and pipeline-parallel sizes.

    Raises:
        UserError: the sizes do not divide the GPUs, or give another number.
    """
    tensor, stages, engines = (
        getattr(options, f"{kind}_parallel_size", None) for kind in ("tensor", "pipeline", "data")
    )
    gpus: int | None = options.gpus
    stages, engines = stages or 1, engines or 1
    if gpus is None:
        return (tensor or 1) * stages
    if gpus % (stages * engines) or (tensor and gpus != tensor * stages * engines):
        sizes = " × ".join(str(each) for each in (tensor or "?", stages, engines))
        raise user_error("error.sim.parallel", gpus=gpus, sizes=sizes)
    return gpus // engines


def server_of(options: argparse.Namespace) -> ServerOptions:
    """What of vLLM's options decides how much memory it needs beside the cache.

    Raises:
        UserError: an option without effect.
    """
    flags = ("--max-num-batched-tokens", "--max-num-seqs", "--enforce-eager", "--max-loras",
             "--language-model-only", "--max-lora-rank")  # fmt: skip
    found = fields(options, *flags)
    if "max_loras" not in found:
        refuse_given(options, ("--max-lora-rank",), without="--max-loras")
    return ServerOptions(
        version=options.vllm_version or TESTED,
        pipeline_parallel=getattr(options, "pipeline_parallel_size", None) or 1,
        data_parallel=getattr(options, "data_parallel_size", None) or 1,
        expert_parallel=getattr(options, "enable_expert_parallel", False),
        **found,
    )


def limits_of(options: argparse.Namespace) -> Limits:
    """Limits of the scheduler.

    Raises:
        UserError: preemption and swap space do not fit each other.
    """
    flags = ("--max-num-seqs", "--max-num-batched-tokens", "--long-prefill-token-threshold",
             "--watermark-blocks", "--preemption")  # fmt: skip
    limits = Limits(swap_bytes=options.swap_space or 0, **fields(options, *flags))
    if limits.preemption == "swap" and not limits.swap_bytes:
        raise user_error("error.needs_flag", flag="--preemption swap", other="--swap-space")
    if limits.preemption != "swap" and limits.swap_bytes:
        raise user_error("error.needs_flag", flag="--swap-space", other="--preemption swap")
    return limits
