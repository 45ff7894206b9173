"""Setup of the paged engine: attention kernel, CUDA graphs, warm-up.

engine.kernel ──► choose_kernel ──► KernelChosen          with the reason for a slower one
engine.cuda_graphs ──► capture ───► DecodeGraphsReady      ...     at the end: DecodeGraphsUsed
first prompts ────────► warm_up_engine ► ProfileRun         working memory is kept and warm
"""

from __future__ import annotations

from typing import Any

import torch

from experiment.arms.base import ArmRun
from experiment.arms.second_part import copies
from experiment.engine.attention.interface import UnsupportedModelError
from experiment.engine.attention.kernel_choice import choose_kernel
from experiment.engine.attention.kernels import triton_module
from experiment.engine.cuda.decode_graphs import cuda_capture
from experiment.engine.cuda.triton_support import LayerShape, reason_against
from experiment.engine.engine import Engine
from experiment.engine.model_runner import ModelRunner
from experiment.engine.working_memory import WarmUp, keep_working_memory, profile_run
from experiment.events import DecodeGraphsReady, KernelChosen, ProfileRun
from experiment.events.engine import OWN_ATTENTION
from experiment.memory.tensors import trim
from experiment.text.errors import one_line, user_error
from experiment.text.messages import Message, message
from experiment.workload.first_prompts import first_prompts
from kvsim.core.scheduler import SchedulerConfig


def resolve_kernel(run: ArmRun, shape: LayerShape | None = None) -> tuple[str, Message | None]:
    """Name of the kernel for the config, the device and the shape of a layer.

    The second value says why it is not the fastest kernel for such a device, if it is not. A model
    with its own attention uses none.

    Raises:
        UserError: Triton is requested by name and cannot run here, or not with this shape.
    """
    asked = run.task.config.engine.kernel
    if run.task.model.own_attention:
        return "torch", message("kernel.own_attention")
    if asked == "triton" and (reason := reason_against(run.device, shape)):
        raise user_error("error.triton_kernel", reason=reason.model_dump())
    return choose_kernel(asked, run.device, run.task.dtype, shape)


def announce_kernel(run: ArmRun, kernel: str, reason: Message | None) -> None:
    """Record the choice of :func:`resolve_kernel`."""
    task = run.task
    run.emit(
        KernelChosen(
            arm=task.arm,
            device=run.device.type,
            asked=task.config.engine.kernel,
            kernel=OWN_ATTENTION if task.model.own_attention else kernel,
            reason=reason,
        )
    )


def query_heads(model: Any, kv_heads: int) -> int:
    """Query heads of the model; as many as KV heads if its config does not say."""
    return int(getattr(model.config, "num_attention_heads", kv_heads))


def compile_kernel(model: torch.nn.Module, runner: ModelRunner, kernel: str) -> None:
    """Compile Triton's kernels for this model and pool, before any request.

    Triton compiles a variant for pointers that are not aligned to 16 bytes, such as scales of some
    layers. So one layer of each alignment is compiled.
    """
    if kernel == "triton":
        pool = runner.pool
        heads = query_heads(model, pool.kv.shape[3])
        dtype = next(model.parameters()).dtype
        module, layers = triton_module(), map(pool.layer, range(len(pool.kv)))
        with torch.inference_mode():
            for layer in {module.alignment_of(layer): layer for layer in layers}.values():
                module.warm_up(layer, heads, dtype)


def capture_graphs(run: ArmRun, runner: ModelRunner, kernel: str) -> None:
    """Capture decode steps according to ``engine.cuda_graphs``, and record the result.

    Raises:
        UserError: the config requires graphs and they are not possible.
    """
    asked, before = run.task.config.engine.cuda_graphs, None
    if asked == "off":
        reason: Message | None = message("graphs.off")
    elif run.device.type != "cuda":
        reason = message("graphs.no_gpu")
    elif kernel != "triton":  # the others read lengths on the host
        reason = message("graphs.kernel", kernel=kernel)
    else:
        trim()  # capturing trims too, which would distort the count
        before = _reserved(run.device)
        reason = _capture(run, runner)
    if reason is not None and asked in ("on", "compiled"):
        raise user_error("error.cuda_graphs", asked=asked, reason=reason.model_dump())
    graphs, after = runner.graphs, _reserved(run.device)
    known = graphs is not None and before is not None and after is not None
    run.emit(
        DecodeGraphsReady(
            arm=run.task.arm,
            device=run.device.type,
            asked=asked,
            sizes=list(graphs.sizes) if graphs else [],
            static_bytes=graphs.static_bytes if graphs else None,
            reserved_bytes=(after or 0) - (before or 0) if known else None,
            capture_s=graphs.capture_s if graphs else None,
            reason=reason,
        )
    )


def warm_up_engine(run: ArmRun, runner: ModelRunner, limits: SchedulerConfig) -> None:
    """Warm up with prompts like the workload's before the clock starts, and record it.

    On a CPU the working memory is kept from now on; on a GPU torch's allocator keeps it.
    """
    kept, done = run.device.type == "cpu" and keep_working_memory(), WarmUp()
    if run.has_warm_up:
        prompts = first_prompts(run.task.workload, limits.max_num_batched_tokens)
        vocabulary, length = run.task.model.vocab_size, run.task.workload.max_length
        engine = Engine(runner, limits, (), vocabulary, length)
        done = profile_run(engine, prompts)
        run.synchronize()
        runner.pool.poison(range(runner.pool.num_blocks))
    run.emit(ProfileRun(arm=run.task.arm, kept=kept, **done._asdict()))


def _reserved(device: torch.device) -> int | None:
    """Bytes that torch's allocator has reserved on a GPU; None before CUDA is initialised."""
    cuda: Any = torch.cuda  # torch has no types for some of these
    known = device.type == "cuda" and cuda.is_initialized()
    return int(cuda.memory_reserved(device)) if known else None


def _capture(run: ArmRun, runner: ModelRunner) -> Message | None:
    """Capture for the maximum number of concurrent sequences; return the reason of a failure."""
    config, workload = run.task.config.engine, run.task.workload
    limits = (config.max_num_seqs, config.max_num_batched_tokens, runner.pool.num_blocks)
    each = workload.sampling.n * workload.sampling.beam_width
    most = min(*limits, len(workload.requests) * each * copies(run.task))
    try:
        with run.paused():
            runner.capture_decoding(
                most,
                workload.max_length,
                cuda_capture(run.device),
                compiled=config.cuda_graphs == "compiled",
            )
    except (UnsupportedModelError, RuntimeError) as error:
        return message("graphs.fails", detail=one_line(error))
    return None
