"""Child process that prepares a run: ``python -m experiment.children.prepare``.

Task: ``{"config": ..., "device": "cpu"|"cuda", "prompts": [...], "arms": [...]}``. Emits progress
and notices, then ModelPrepared, ModelDirectory and WorkloadReady. For an experiment the task has
``"cells"`` instead, a list of such tasks, and a CellPrepared is emitted for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from experiment.arms.launch import adapt_block_size, check_capacity, skip_reason
from experiment.config.kv_dtype import cache_geometry, check_kv_dtype
from experiment.config.schema import Config, expand_arms, group_of
from experiment.events import (
    CellPrepared,
    ModelDirectory,
    ModelPrepared,
    Notice,
    Progress,
    WorkloadReady,
    WorkloadRequest,
)
from experiment.files.parse_memory import memory_limit
from experiment.model.checks import (
    REPEATED_HEADS,
    check_model,
    model_geometry,
    read_model_config,
    read_object,
)
from experiment.model.facts import (
    ELEMENT_BYTES,
    build_empty,
    describe,
    resolve_dtype,
    slow_on_cpu,
)
from experiment.model.families import with_advice
from experiment.model.load import (
    EAGER,
    as_text,
    optional_tokenizer,
    reading_tokenizer,
)
from experiment.model.source import Source, check_files, find_model, use_plain_http
from experiment.process.wire import Wire, exit_process, serve
from experiment.text.errors import UserError, user_error
from experiment.text.messages import Message, message
from experiment.workload.requests import (
    check_prompts,
    check_stop_tokens,
    choose_prompts,
    make_requests,
    make_workload,
    random_requests,
    with_arrivals,
)
from kvsim.sizing.geometry import KVGeometry

# Groups of arms that serve in order of arrival alone; Transformers' schedulers know no priorities.
IN_ORDER = ("contiguous", "transformers_paged")


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Find the model, then convert the prompts to requests.

    Raises:
        UserError: an error that the user can fix.
    """
    use_plain_http()
    if "cells" in task:
        _prepare_cells(wire, task)
        return
    config, device = Config.model_validate(task["config"]), task["device"]
    prompts = task["prompts"] if "prompts" in task else choose_prompts(config)
    arms = _active_arms(config, task["arms"], device)
    check_prompts(prompts)
    check_arms(config, arms, device)
    model, directory = prepare_model(wire, config, device)
    arms = _active_arms(config, arms, device, model.head_dim)
    config, notices = adapt_block_size(config, arms, device)
    for notice in notices:
        wire.emit(Notice(text=notice))
    wire.emit(model)
    wire.emit(ModelDirectory(path=str(directory)))
    wire.emit(Progress(task=message("prepare.workload"), done=0, total=len(prompts)))
    requests = _requests(config, prompts, model, _tokenizer(wire, config, directory))
    wire.emit(_workload(config, requests, model, arms))


def libraries() -> None:
    """Import the libraries of the probe, which take longest."""
    import experiment.engine.model_runner  # noqa: F401


def _prepare_cells(wire: Wire, task: dict[str, Any]) -> None:
    """Prepare the workload of each cell; arms that cannot run in it are refused."""
    models: dict[object, tuple[ModelPrepared, Path, Any | None]] = {}
    emitted: list[Message] = []
    device = task["device"]
    for index, cell in enumerate(task["cells"]):
        config = Config.model_validate(cell["config"])
        prompts = choose_prompts(config)
        check_prompts(prompts)
        key = (config.model, config.cache.max_length, bool(config.workload.lengths))
        if key not in models:
            model, directory = prepare_model(wire, config, device)
            models[key] = (model, directory, _tokenizer(wire, config, directory))
        model, directory, tokenizer = models[key]
        arms = _active_arms(config, cell["arms"], device, model.head_dim)
        config, notices = adapt_block_size(config, arms, device)
        for notice in notices:
            if notice not in emitted:
                wire.emit(Notice(text=notice))
        emitted += notices
        requests = _requests(config, prompts, model, tokenizer)
        wire.emit(
            CellPrepared(
                index=index,
                path=str(directory),
                model=model,
                workload=_workload(config, requests, model, [a for a in arms if a == "vllm"]),
                refused=_refused(config, requests, model, arms, device),
            )
        )
        wire.emit(
            Progress(task=message("prepare.workload"), done=index + 1, total=len(task["cells"]))
        )


def _refused(
    config: Config,
    requests: Sequence[WorkloadRequest],
    model: ModelPrepared,
    arms: Sequence[str],
    device: str,
) -> dict[str, Message]:
    """Arms for which the budget is too small or the device unsuitable, with the reason."""
    refused = {}
    for arm in arms:
        try:
            check_arms(config, [arm], device)
            workload = _workload(config, requests, model, [arm])
            check_capacity(arm, device, model, workload)
        except UserError as error:
            refused[arm] = error.text
    return refused


def _active_arms(
    config: Config, names: Sequence[str], device: str, head_dim: int | None = None
) -> tuple[str, ...]:
    """Arms of these groups without skipped ones, which do not affect the budget or blocks."""
    arms = expand_arms(names)
    return tuple(arm for arm in arms if skip_reason(arm, config, device, head_dim) is None)


def check_arms(config: Config, arms: Sequence[str], device: str) -> None:
    """Refuse arms that do not support the workload's priorities or the dtype of the cache.

    Raises:
        UserError: naming the first of them.
    """
    by_priority = config.engine.policy == "priority" and len(set(config.workload.priorities)) > 1
    for arm in arms:
        if group_of(arm) in IN_ORDER and by_priority:
            raise user_error("error.workload.in_order", arm=arm)
    capability = None
    if config.cache.kv_dtype == "fp8" and device == "cuda":
        import torch

        capability = torch.cuda.get_device_capability()
    check_kv_dtype(config.cache.kv_dtype, arms, device, capability)


def _tokenizer(wire: Wire, config: Config, directory: Path) -> Any | None:
    """The model's tokenizer; None if there is none and token ids are sampled.

    Raises:
        UserError: there is none, and the prompts are texts.
    """
    name = config.model.name
    with memory_limit(directory):
        tokenizer = optional_tokenizer(str(directory))
    if tokenizer is None and not config.workload.lengths:
        raise user_error("error.model.no_tokenizer", path=name)
    if tokenizer is None:
        wire.emit(Notice(text=message("prepare.no_tokenizer", path=name)))
    return tokenizer


def _requests(
    config: Config, prompts: Sequence[str], model: ModelPrepared, tokenizer: Any | None
) -> list[WorkloadRequest]:
    """Requests of the workload with arrivals and priorities.

    Their lengths are those of the config, otherwise those of the texts.
    """
    check_stop_tokens(config.sampling.stop_token_ids, model.vocab_size)
    if config.workload.lengths:
        drawn = random_requests(config, model.vocab_size, lambda ids: as_text(tokenizer, ids))
        return with_arrivals(config, drawn)
    assert tokenizer is not None

    def encode(text: str) -> list[int]:
        with reading_tokenizer(tokenizer.name_or_path):
            return [int(token) for token in tokenizer(text)["input_ids"]]

    made = make_requests(
        prompts,
        encode,
        model.vocab_size,
        config.workload.max_new_tokens,
        config.cache.max_length,
        config.sampling.n,
    )
    return with_arrivals(config, made)


def _workload(
    config: Config, requests: Sequence[WorkloadRequest], model: ModelPrepared, arms: Sequence[str]
) -> WorkloadReady:
    shape = KVGeometry(model.layers, model.kv_heads, model.head_dim, model.element_bytes)
    cache = cache_geometry(shape, config.cache.kv_dtype)
    return make_workload(config, requests, model.slot_bytes, arms, cache.block_bytes)


def prepare_model(wire: Wire, config: Config, device: str) -> tuple[ModelPrepared, Path]:
    """Find, check and describe the model; the path is the directory of its weights.

    Raises:
        UserError: no such model, a refused one, or unreadable weights.
    """
    name = config.model.name
    accepted: list[tuple[Any, Any]] = []

    def accept(directory: Path) -> None:
        accepted.append(accepted_model(directory, name, config.cache.max_length))

    source: Source = find_model(config, wire.emit, accept)
    from experiment.engine.model_runner import has_own_attention

    model_config, built = accepted[-1]
    _check_memory(built, name, resolve_dtype(config.model.dtype, device), device)
    model = describe(source, config, model_config, built, device, wire.emit)
    model = model.model_copy(update={"own_attention": has_own_attention(built)})
    settings = {"engine.kernel": config.engine.kernel, "cache.kv_dtype": config.cache.kv_dtype}
    for key, value in settings.items():
        if model.own_attention and value != "auto":  # it would say how our attention computes
            raise user_error("error.model.own_attention", model=name, config_key=key, value=value)
    if device == "cpu" and slow_on_cpu(model.dtype):
        wire.emit(Notice(text=message("prepare.slow_dtype", dtype=model.dtype)))
    return model, source.directory


def _check_memory(built: Any, name: str, dtype: str, device: str) -> None:
    """Refuse weights that the device cannot hold, before any is read.

    Raises:
        UserError: with the bytes that they need and those that there are.
    """
    import torch

    needed = sum(parameter.numel() for parameter in built.parameters()) * ELEMENT_BYTES[dtype]
    if device == "cpu":
        free = psutil.virtual_memory().available
    elif torch.cuda.is_available():
        free = torch.cuda.get_device_properties(0).total_memory
    else:
        return
    if needed > free:
        raise user_error("error.model.no_memory", model=name, needed=needed, free=free)


def accepted_model(directory: Path, name: str, max_length: int) -> tuple[Any, Any]:
    """Check the model of a directory; return its Transformers config and the model on ``meta``.

    Raises:
        UserError: the model cannot be run, or its files exceed the memory limit.
    """
    check_files(directory)
    with memory_limit(directory):
        try:
            model_config = read_model_config(directory, name)
            check_model(model_config, name, max_length)
            return model_config, _probed(model_config, name)
        except UserError as error:
            raise with_advice(error, read_object(directory / "config.json", name)) from error


def _probed(model_config: Any, name: str) -> Any:
    """The model of a config without its weights; with its own attention where it takes no other.

    Raises:
        UserError: it cannot be built, or the paged engine cannot run it.
    """
    from experiment.engine.attention.interface import ATTENTION, UnsupportedModelError
    from experiment.engine.model_runner import probe

    geometry = model_geometry(model_config, element_bytes=1)
    own = model_config.get_text_config().model_type in REPEATED_HEADS
    for attention in (EAGER,) if own else (ATTENTION, EAGER):
        try:
            built = build_empty(model_config, name, attention)
            probe(built, geometry)
            return built
        except UnsupportedModelError as error:
            refusal = error.refusal(name)
        except UserError as error:
            refusal = error
    raise refusal


if __name__ == "__main__":
    exit_process(serve("prepare", main, libraries))
