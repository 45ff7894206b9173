"""The child process that prepares a run: ``python -m experiment.prepare``.

Task: ``{"config": ..., "device": "cpu"|"cuda", "prompts": [...], "arms": [...]}``. Emits progress
and notices, then ModelPrepared, ModelDirectory and WorkloadReady. Of an experiment the task holds
``"cells"`` instead, a list of such tasks, and a CellPrepared is emitted for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiment.config import Config, expand_arms, group_of
from experiment.events import (
    CellPrepared,
    ModelDirectory,
    ModelPrepared,
    Notice,
    Progress,
    WorkloadReady,
    WorkloadRequest,
)
from experiment.kv_dtype import Capability, cache_geometry, check_kv_dtype
from experiment.launch import adapt, check_room, skipped
from experiment.messages import Message, UserError, message, user_error
from experiment.model.checks import check_model, read_model_config
from experiment.model.facts import describe
from experiment.model.load import load_tokenizer, reading_tokenizer
from experiment.model.precision import slow_on_cpu
from experiment.model.source import Source, check_files, find_model, use_plain_http
from experiment.wire import Wire, leave, serve
from experiment.workload import (
    check_prompts,
    check_stop_tokens,
    choose_prompts,
    drawn_requests,
    make_requests,
    make_workload,
    with_arrivals,
)
from kvsim.geometry import KVGeometry

# Arms that are handed all requests before they begin; none of those that there are.
ALL_AT_ONCE: tuple[str, ...] = ()
# Groups of arms that serve in order of arrival alone; Transformers' schedulers know no priorities.
IN_ORDER = ("contiguous", "transformers_paged")


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Find the model, then turn the prompts into requests.

    Raises:
        UserError: something that the person can mend.
    """
    use_plain_http()
    if "cells" in task:
        _prepare_cells(wire, task)
        return
    config, device = Config.model_validate(task["config"]), task["device"]
    prompts = task["prompts"] if "prompts" in task else choose_prompts(config)
    arms = _that_run(config, task["arms"], device)
    _check(config, prompts, arms, device)
    model, directory = prepare_model(wire, config, device)
    arms = _that_run(config, arms, device, model.head_dim)
    config, notices = adapt(config, arms, device)
    _tell(wire, notices)
    wire.emit(model)
    wire.emit(ModelDirectory(path=str(directory)))
    wire.emit(Progress(task=message("prepare.workload"), done=0, total=len(prompts)))
    requests = _requests(config, prompts, model, directory)
    wire.emit(_workload(config, requests, model, arms))


def libraries() -> None:
    """Import what counting the model's parameters needs; nothing else here takes as long."""
    import torch  # noqa: F401
    import transformers.modeling_utils  # noqa: F401


def _prepare_cells(wire: Wire, task: dict[str, Any]) -> None:
    """The workload of each cell; arms that cannot work within it are named beside it."""
    models: dict[object, tuple[ModelPrepared, Path]] = {}
    told: list[Message] = []
    device = task["device"]
    for index, cell in enumerate(task["cells"]):
        config = Config.model_validate(cell["config"])
        prompts = choose_prompts(config)
        check_prompts(prompts)
        key = (config.model, config.cache.max_length)
        if key not in models:
            models[key] = prepare_model(wire, config, device)
        model, directory = models[key]
        arms = _that_run(config, cell["arms"], device, model.head_dim)
        config, notices = adapt(config, arms, device)
        notices = [notice for notice in notices if notice not in told]
        _tell(wire, notices)
        told += notices
        requests = _requests(config, prompts, model, directory)
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
    """Arms to which the budget is too small or the device too old, and what they say to it."""
    refused = {}
    for arm in arms:
        try:
            _check_arm(config, arm)
            _check_device(config, [arm], device)
            workload = _workload(config, requests, model, [arm])
            check_room(arm, device, model, workload)
        except UserError as error:
            refused[arm] = error.text
    return refused


def _that_run(
    config: Config, names: Sequence[str], device: str, head_dim: int | None = None
) -> tuple[str, ...]:
    """Arms of these groups; one that is skipped asks nothing of the budget or of the blocks."""
    arms = expand_arms(names)
    return tuple(arm for arm in arms if skipped(arm, config, device, head_dim) is None)


def _tell(wire: Wire, notices: Iterable[Message]) -> None:
    for notice in notices:
        wire.emit(Notice(text=notice))


def _check(config: Config, prompts: Sequence[str], arms: Sequence[str], device: str) -> None:
    check_prompts(prompts)
    for arm in arms:
        _check_arm(config, arm)
    _check_device(config, arms, device)


def _check_arm(config: Config, arm: str) -> None:
    """Refuse an arm that cannot let requests arrive later, or priorities decide.

    Raises:
        UserError: requests arrive later, or some are more urgent than others and that is to count.
    """
    if arm in ALL_AT_ONCE and (config.workload.arrivals or config.workload.priorities):
        raise user_error("error.workload.all_at_once", arm=arm)
    by_priority = config.engine.policy == "priority" and len(set(config.workload.priorities)) > 1
    if group_of(arm) in IN_ORDER and by_priority:
        raise user_error("error.workload.in_order", arm=arm)


def _check_device(config: Config, arms: Sequence[str], device: str) -> None:
    capability = _capability(device) if config.cache.kv_dtype == "fp8" else None
    check_kv_dtype(config.cache.kv_dtype, arms, device, capability)


def _requests(
    config: Config, prompts: Sequence[str], model: ModelPrepared, directory: Path
) -> list[WorkloadRequest]:
    """The requests of the workload, when they arrive and how urgent they are."""
    return with_arrivals(config, _texts_or_lengths(config, prompts, model, directory))


def _texts_or_lengths(
    config: Config, prompts: Sequence[str], model: ModelPrepared, directory: Path
) -> list[WorkloadRequest]:
    """Requests of given lengths where the config gives them, of texts otherwise."""
    check_stop_tokens(config.sampling.stop_token_ids, model.vocab_size)
    tokenizer = load_tokenizer(str(directory))

    def decode(ids: list[int]) -> str:
        with reading_tokenizer(str(directory)):
            return str(tokenizer.decode(ids))

    def encode(text: str) -> list[int]:
        with reading_tokenizer(str(directory)):
            return [int(token) for token in tokenizer(text)["input_ids"]]

    if config.workload.lengths:
        return drawn_requests(config, model.vocab_size, decode)
    return make_requests(
        prompts,
        encode,
        model.vocab_size,
        config.workload.max_new_tokens,
        config.cache.max_length,
        config.sampling.n,
    )


def _workload(
    config: Config, requests: Sequence[WorkloadRequest], model: ModelPrepared, arms: Sequence[str]
) -> WorkloadReady:
    shape = KVGeometry(model.layers, model.kv_heads, model.head_dim, model.element_bytes)
    cache = cache_geometry(shape, config.cache.kv_dtype)
    return make_workload(config, requests, model.slot_bytes, arms, cache.block_bytes)


def _capability(device: str) -> Capability | None:
    if device != "cuda":
        return None
    import torch

    return torch.cuda.get_device_capability()


def prepare_model(wire: Wire, config: Config, device: str) -> tuple[ModelPrepared, Path]:
    """Find the model, refuse it or describe it. The path is the directory of its weights.

    Raises:
        UserError: no such model, a refused one, or weights that cannot be read.
    """
    name = config.model.name

    def accept(directory: Path) -> None:
        check_files(directory)
        check_model(read_model_config(directory, name), name, config.cache.max_length)

    source: Source = find_model(config, wire.emit, accept)
    model_config = read_model_config(source.directory, name)
    model = describe(source, config, model_config, device, wire.emit)
    if device == "cpu" and slow_on_cpu(model.dtype):
        wire.emit(Notice(text=message("prepare.slow_dtype", dtype=model.dtype)))
    return model, source.directory


if __name__ == "__main__":
    leave(serve("prepare", main, libraries))
