"""The child process that prepares a run: ``python -m experiment.prepare``.

Task: ``{"config": ..., "device": "cpu"|"cuda", "prompts": [...], "arms": [...]}``. Emits progress
and notices, then ModelPrepared, ModelDirectory and WorkloadReady.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from experiment.config import Config, expand_arms
from experiment.events import ModelDirectory, ModelPrepared, Notice, Progress
from experiment.kv_dtype import Capability, cache_geometry, check_kv_dtype
from experiment.messages import message
from experiment.model.checks import check_model, read_model_config
from experiment.model.facts import describe
from experiment.model.load import load_tokenizer
from experiment.model.precision import slow_on_cpu
from experiment.model.source import Source, find_model, use_plain_http
from experiment.wire import Wire, serve
from experiment.workload import (
    check_prompts,
    check_stop_tokens,
    choose_prompts,
    make_requests,
    make_workload,
)
from kvsim.geometry import KVGeometry


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Find the model, then turn the prompts into requests.

    Raises:
        UserError: something that the person can mend.
    """
    use_plain_http()
    config = Config.model_validate(task["config"])
    prompts = task["prompts"] if "prompts" in task else choose_prompts(config)
    arms = expand_arms(task["arms"])
    check_prompts(prompts)
    capability = _capability(task["device"]) if config.cache.kv_dtype == "fp8" else None
    check_kv_dtype(config.cache.kv_dtype, arms, task["device"], capability)
    wire.emit(Progress(task=message("prepare.libraries"), done=0))
    model, directory = prepare_model(wire, config, task["device"])
    wire.emit(model)
    wire.emit(ModelDirectory(path=str(directory)))
    wire.emit(Progress(task=message("prepare.workload"), done=0, total=len(prompts)))
    tokenizer = load_tokenizer(str(directory))
    requests = make_requests(
        prompts,
        lambda text: tokenizer(text)["input_ids"],
        model.vocab_size,
        config.workload.max_new_tokens,
        config.cache.max_length,
        config.sampling.n,
    )
    check_stop_tokens(config.sampling.stop_token_ids, model.vocab_size)
    shape = KVGeometry(model.layers, model.kv_heads, model.head_dim, model.element_bytes)
    cache = cache_geometry(shape, config.cache.kv_dtype)
    wire.emit(make_workload(config, requests, model.slot_bytes, arms, cache.block_bytes))


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
        check_model(read_model_config(directory, name), name, config.cache.max_length)

    source: Source = find_model(config, wire.emit, accept)
    model_config = read_model_config(source.directory, name)
    model = describe(source, config, model_config, device, wire.emit)
    if device == "cpu" and slow_on_cpu(model.dtype):
        wire.emit(Notice(text=message("prepare.slow_dtype", dtype=model.dtype)))
    return model, source.directory


if __name__ == "__main__":
    sys.exit(serve("prepare", main))
