"""What is known of the prepared model, as the event that every report starts from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiment.config import Config
from experiment.events import Event, ModelPrepared, Progress
from experiment.messages import Message, message, user_error
from experiment.model.builtin import recorded_sha256
from experiment.model.checks import max_positions
from experiment.model.digest import weights_sha256
from experiment.model.load import one_line
from experiment.model.precision import ELEMENT_BYTES, resolve_dtype
from experiment.model.source import Source, weight_files
from kvsim.geometry import geometry_from_config

_REPORT_EVERY = 1 << 26  # bytes


def describe(
    source: Source, run: Config, model: Any, device: str, emit: Callable[[Event], None]
) -> ModelPrepared:
    """Put together what the run's model is.

    Args:
        source: where the weights are.
        run: the run.
        model: the Transformers config of the weights.
        device: ``cpu`` or ``cuda``.
        emit: is sent progress while the weights are read.

    Raises:
        UserError: the weights cannot be read.
    """
    values = model.to_dict()
    dtype = resolve_dtype(run.model.dtype, device)
    geometry = geometry_from_config(values, ELEMENT_BYTES[dtype])
    random = source.kind == "random"
    return ModelPrepared(
        name=run.model.name,
        source=source.kind,
        architecture=(model.architectures or [model.model_type])[0],
        parameters=count_parameters(model),
        weights_sha256=_digest(source, emit),
        dtype=dtype,
        device=device,
        layers=geometry.layers,
        kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        element_bytes=geometry.element_bytes,
        # Without a limit of its own a model has that of the run.
        max_positions=max_positions(values) or run.cache.max_length,
        vocab_size=values["vocab_size"],
        eos_token_id=eos_token_id(source.directory, values),
        random_seed=run.run.seed if random else None,
        random_init_range=run.model.init_range if random else None,
        notes=_notes(random),
    )


def count_parameters(model: Any) -> int:
    """Count the parameters of a Transformers config's model, shared ones once."""
    import torch
    from transformers import AutoModelForCausalLM

    # Built without memory: the files of the weights may hold masks and shared tensors as well.
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(model)
    return sum(parameter.numel() for parameter in built.parameters())


def eos_token_id(directory: Path, values: dict[str, Any]) -> int | None:
    """Find the token that ends a text: the first where there are several, None without one."""
    found: Any = values.get("eos_token_id")
    try:
        text = (directory / "generation_config.json").read_text(encoding="utf-8")
        found = json.loads(text).get("eos_token_id", found)
    except (OSError, ValueError, AttributeError):
        pass
    if isinstance(found, list):
        found = found[0] if found else None
    return found if isinstance(found, int) else None


def _digest(source: Source, emit: Callable[[Event], None]) -> str:
    files = weight_files(source.directory)
    _check_readable(files)
    if source.kind == "random":  # its manifest was checked against the bytes a moment ago
        return recorded_sha256(source.directory)
    total = sum(file.stat().st_size for file in files)
    done, said = 0, 0

    def advance(count: int) -> None:
        nonlocal done, said
        done += count
        if done - said >= _REPORT_EVERY or done == total:
            said = done
            emit(Progress(task=message("prepare.digest"), done=done, total=total))

    return weights_sha256(files, advance)


def _check_readable(files: list[Path]) -> None:
    from safetensors import SafetensorError, safe_open

    for file in files:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise user_error(
                "error.model.unreadable", path=str(file), detail=one_line(error)
            ) from error


def _notes(random: bool) -> list[Message]:
    return [message("model.random_text")] if random else []
