"""Facts about the prepared model, as an event."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiment.config.schema import Config
from experiment.events import Event, ModelPrepared, Progress
from experiment.machine.cpuinfo import parse_cpuinfo
from experiment.model.builtin import recorded_sha256
from experiment.model.checks import max_positions, model_geometry, read_object
from experiment.model.source import Source, weight_files
from experiment.model.tensors import check_tensors, weights_sha256
from experiment.text.errors import one_line, user_error
from experiment.text.messages import message
from kvsim.base.files import file_sha256

if TYPE_CHECKING:
    from torch import nn

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Flags of /proc/cpuinfo, on x86 and on ARM.
_FLAGS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def resolve_dtype(dtype: str, device: str) -> str:
    """Name of the torch dtype: what was asked for, or what ``auto`` means on ``device``."""
    if dtype != "auto":
        return dtype
    return "float16" if device == "cuda" else "float32"


def slow_on_cpu(dtype: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has no instructions for ``dtype``; False where that is not known."""
    try:
        _, flags = parse_cpuinfo(cpuinfo.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return False
    return bool(flags) and dtype in _FLAGS and not _FLAGS[dtype] & flags


_REPORT_EVERY = 1 << 26  # bytes


def describe(
    source: Source,
    run: Config,
    model: Any,
    built: nn.Module,
    device: str,
    emit: Callable[[Event], None],
) -> ModelPrepared:
    """Describe the model of the run.

    Args:
        source: where the weights are.
        run: the config.
        model: the Transformers config of the weights.
        built: the model of that config, from :func:`build_empty`.
        device: ``cpu`` or ``cuda``.
        emit: receives progress while the weights are read.

    Raises:
        UserError: the weights are unreadable or do not fit the model.
    """
    values = model.get_text_config().to_dict()
    files = weight_files(source.directory)
    check_tensors(files, source.directory, built)
    dtype = resolve_dtype(run.model.dtype, device)
    geometry = model_geometry(model, ELEMENT_BYTES[dtype])
    random = source.kind == "random"
    return ModelPrepared(
        name=run.model.name,
        source=source.kind,
        architecture=(model.architectures or [model.model_type])[0],
        parameters=sum(parameter.numel() for parameter in built.parameters()),  # shared ones once
        weights_sha256=_digest(source, files, emit),
        config_sha256=file_sha256(source.directory / "config.json"),
        dtype=dtype,
        device=device,
        layers=geometry.layers,
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        element_bytes=geometry.element_bytes,
        # A model without a limit gets that of the run.
        max_positions=max_positions(values) or run.cache.max_length,
        vocab_size=values["vocab_size"],
        eos_token_id=eos_token_id(source.directory, values, run.model.name),
        random_seed=run.run.seed if random else None,
        random_init_range=run.model.init_range if random else None,
        notes=[message("model.random_text")] if random else [],
    )


def build_empty(config: Any, name: str, attention: str) -> nn.Module:
    """Build the model of a Transformers config on torch's device ``meta``: names and shapes only.

    Args:
        config: the config.
        name: what the person called the model.
        attention: a name that Transformers' attention interface knows; a model that picks its
            attention from a table of its own may refuse it.

    Raises:
        UserError: the config describes no model that can be built.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            built: nn.Module = AutoModelForCausalLM.from_config(
                config, attn_implementation=attention, trust_remote_code=False
            )
    except MemoryError:
        raise
    except Exception as error:  # whatever the author of a kind of model chose
        raise user_error("error.model.unbuildable", model=name, detail=one_line(error)) from error
    return built.eval()


def eos_token_id(
    directory: Path, values: dict[str, Any], name: str
) -> int | tuple[int, ...] | None:
    """Token that ends a text, several if the model has several, None without one.

    Raises:
        UserError: ``generation_config.json`` exists and is unreadable.
    """
    found: Any = values.get("eos_token_id")
    path = directory / "generation_config.json"
    if path.exists():
        found = read_object(path, name).get("eos_token_id", found)
    ids = found if isinstance(found, list) else [found]
    ids = sorted({each for each in ids if isinstance(each, int) and each >= 0})
    return tuple(ids) if len(ids) > 1 else ids[0] if ids else None


def _digest(source: Source, files: list[Path], emit: Callable[[Event], None]) -> str:
    if source.kind == "random":  # its manifest has just been verified
        return recorded_sha256(source.directory)
    total = sum(file.stat().st_size for file in files)
    done, reported = 0, 0

    def advance(count: int) -> None:
        nonlocal done, reported
        done += count
        if done - reported >= _REPORT_EVERY or done == total:
            reported = done
            emit(Progress(task=message("prepare.digest"), done=done, total=total))

    return weights_sha256(files, advance)
