"""Decode speed as a share of the memory bandwidth measured by the same process.

    bytes of a step   all weights + keys and values of batch × context
    share             bytes of a step ÷ seconds of a step ÷ bandwidth

The pool is filled without a prefill, and steps are planned directly, so that only a decode step
with its sampling is timed, replayed from a CUDA graph. Settings that do not fit are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from experiment.children.limits import read_rate
from experiment.engine.attention.interface import ATTENTION
from experiment.engine.cuda.decode_graphs import Capture, cuda_capture
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.events import ArmSkipped
from experiment.gpucheck.decode_steps import Setting, timed
from experiment.gpucheck.parts import Task, report
from experiment.gpucheck.result import NO_TIME
from experiment.gpucheck.speed_transformers import (
    continuous_step_s,
    static_step_s,
)
from experiment.model.builtin import RECIPES
from experiment.model.load import set_gpu_kernels
from experiment.process.wire import Wire, is_out_of_memory
from experiment.text.errors import one_line
from experiment.text.messages import Message, message
from kvsim.core.step import Chunk, StepPlan
from kvsim.sizing.geometry import KVGeometry, geometry_from_config

MODEL = "llama-1b-random"
BATCHES, CONTEXTS = (1, 8, 64), (512, 4096, 16384)
_BLOCK_SIZE = 16
# Size of the matrix that is read if the GPU has room for it: far larger than any cache.
_READ_BYTES = 4 << 30
# Maximum share of free memory to use; the rest is for activations and graphs.
_MOST_MEMORY = 0.8
# Estimated seconds of a mode's first setting, which compiles; later ones use the last duration.
_FIRST_S = {
    "paged": 5.0, "paged_compiled": 30.0, "static": 10.0, "continuous": 10.0, "compiled": 60.0,
}  # fmt: skip
OURS = ("paged", "paged_compiled")
COMPARISONS: dict[str, Callable[[Any, Setting], float]] = {
    "static": static_step_s, "continuous": continuous_step_s,
    "compiled": partial(static_step_s, compiled=True),
}  # fmt: skip


def check(wire: Wire, task: Task) -> None:
    """Measure all settings on our engine, then on Transformers as time allows."""
    device, dtype = torch.device(task.device), torch.float16
    with torch.no_grad():
        free, _ = torch.cuda.mem_get_info(device)
        rate = read_rate(device, dtype, min(_READ_BYTES, free // 2))
        report(wire, "bandwidth", None, "gpucheck.speed.bandwidth", rate=rate)
        torch.cuda.empty_cache()
        try:
            model = make_model(device, dtype)
        except RuntimeError as error:
            if not is_out_of_memory(repr(error)):
                raise
            wire.emit(
                ArmSkipped(arm="speed", reason=message("gpucheck.speed.no_model", model=MODEL))
            )
            return
        measured = Measured(wire, model, rate, task.deadline, cuda_capture(device))
        every = [Setting(batch, context) for context in CONTEXTS for batch in BATCHES]
        for name in OURS:
            step_s = partial(measured.paged_step_s, compiled=name == "paged_compiled")
            for setting in every:  # the shortest contexts first
                measured.add(name, setting, step_s)
        for name, compared in COMPARISONS.items():
            for setting in every:
                measured.add(name, setting, partial(compared, model))
        if measured.nothing is not None:
            wire.emit(ArmSkipped(arm="speed", reason=measured.nothing))


def make_model(device: torch.device, dtype: torch.dtype) -> Any:
    """Create the built-in model of a billion parameters with random weights on the device."""
    config = RECIPES[MODEL]()
    config.max_position_embeddings = CONTEXTS[-1] + _BLOCK_SIZE
    set_gpu_kernels()
    with device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
    return model.eval().requires_grad_(False)


class Measured:
    """Steps of one model on one device, reported as they are measured.

    Args:
        rate: memory bandwidth of the device in bytes per second.
        deadline: seconds on the monotonic clock; settings that may end later are skipped.
        capture: captures the graph of a step.
    """

    def __init__(
        self, wire: Wire, model: Any, rate: float, deadline: float, capture: Capture
    ) -> None:
        self._wire, self._model, self._rate, self._deadline = wire, model, rate, deadline
        self._capture = capture
        self._took: dict[str, float] = {}  # seconds of the last setting of each mode
        # Why no step of our engine was measured; None once one was, or failed.
        self.nothing: Message | None = NO_TIME
        self._device: torch.device = model.device
        itemsize = model.dtype.itemsize
        self.geometry: KVGeometry = geometry_from_config(model.config.to_dict(), itemsize)
        self._weights = sum(weight.nbytes for weight in model.parameters())

    def add(self, name: str, setting: Setting, step_s: Callable[[Setting], float]) -> None:
        """Measure one setting, or report why it was skipped."""
        check_id = f"{name}.{setting.id}"
        about = {
            "mode": message(f"gpucheck.speed.mode_{name}").model_dump(),
            "batch": setting.batch, "context": setting.context,
        }  # fmt: skip
        began = time.monotonic()
        took = self._took.get(name)
        # At the deadline the whole part fails, so a setting may take twice as long as expected.
        if began + 2 * (_FIRST_S[name] if took is None else took) > self._deadline:
            report(self._wire, check_id, None, "gpucheck.speed.no_time", **about)
            return
        kept = setting.batch * setting.context * self.geometry.bytes_per_token
        if not self._fits(kept):
            report(self._wire, check_id, None, "gpucheck.speed.no_memory", size=kept, **about)
            return
        if name in OURS:
            self.nothing = None
        try:
            seconds = step_s(setting)
        except Exception as error:  # any error of a compiler or the driver
            if is_out_of_memory(repr(error)):
                report(self._wire, check_id, None, "gpucheck.speed.no_memory", size=kept, **about)
                return
            # A failed comparison is not a failure of our engine.
            passed, text = False if name in OURS else None, one_line(error)
            report(self._wire, check_id, passed, "gpucheck.speed.raised", error=text, **about)
            return
        finally:
            self._took[name] = time.monotonic() - began
        share = (self._weights + kept) / seconds / self._rate
        report(self._wire, check_id, True if name in OURS else None, "gpucheck.speed.step",
               step=seconds, tokens=setting.batch / seconds, share=share, **about)  # fmt: skip

    def paged_step_s(self, setting: Setting, *, compiled: bool = False) -> float:
        """Seconds of a decode step of our engine, replayed from a graph."""
        each = setting.context // _BLOCK_SIZE + 1
        pool = KVPool(
            self.geometry, setting.batch * each, _BLOCK_SIZE, self._model.dtype, self._device
        )
        pool.kv.fill_(0.01)
        self._model.set_attn_implementation(ATTENTION)
        runner = ModelRunner(self._model, pool, "triton")
        graphs = runner.capture_decoding(
            setting.batch, setting.context + 1, self._capture, compiled=compiled
        )
        requests = range(setting.batch)
        plan = StepPlan(0, chunks=tuple(Chunk(r, setting.context, 1, True) for r in requests))
        tokens = {r: [0] * (setting.context + 1) for r in requests}
        tables = {r: list(range(r * each, (r + 1) * each)) for r in requests}
        return timed(lambda: runner.logits(graphs.fill(plan, tokens, tables)).argmax(-1).tolist())

    def _fits(self, size: int) -> bool:
        if self._device.type != "cuda":
            return True
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        return size <= _MOST_MEMORY * free
