"""The Triton kernels against the dense reference: formats, query heads per KV head, kinds of steps.

out = kernel(q, kv, step)       compared with the definition in double precision
one NaN slot of a request       must show in that request's output and in no other
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

import torch

from experiment.engine.attention.kernels import KERNELS, reference_kernel, triton_module
from experiment.engine.quantized import FP8, LayerKV, QuantizedKV, from_blocks, rescale
from experiment.gpucheck.kernel_cases import Case, Step, make_step, moved
from experiment.gpucheck.parts import Task, errors_fail, report
from experiment.process.wire import Wire
from experiment.text.messages import message

# fp8 is converted by the GPU itself from here on.
_FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True)
class Format:
    """Dtypes of queries and cache; ``tolerance`` is absolute and relative."""

    dtype: torch.dtype
    tolerance: float
    kv_dtype: torch.dtype | None = None


FORMATS = {
    "float16": Format(torch.float16, 2e-3),
    "bfloat16": Format(torch.bfloat16, 2e-2),
    "float32": Format(torch.float32, 1e-4),
    "int8": Format(torch.float32, 1e-4, torch.int8),
    "fp8": Format(torch.float32, 1e-4, FP8),
    "int8-float16": Format(torch.float16, 2e-3, torch.int8),
    "fp8-float16": Format(torch.float16, 2e-3, FP8),
}
GROUPS = (1, 4)
Sequences = tuple[tuple[int, int], ...]
# (earlier positions, queries) of each request; small ones for the interpreter.
_SMALL: dict[str, Sequences] = {
    "decode": ((300, 1), (0, 1), (15, 1)),  # the first one in two splits
    "prefill": ((0, 18), (0, 3)),
    "mixed": ((33, 1), (10, 6), (0, 5)),
}
_LARGE: dict[str, Sequences] = {
    "decode": ((700, 1), (0, 1), (255, 1), (256, 1), (5000, 1)),  # 20 splits, two loads of partials
    "prefill": ((0, 300), (0, 17), (0, 128)),
    "mixed": ((700, 1), (90, 60), (0, 140), (255, 2)),
}
_BLOCK_SIZE, _KV_HEADS = 16, 2


def check(wire: Wire, task: Task) -> None:
    """Compare every format that the device supports."""
    check_formats(wire, torch.device(task.device), tuple(FORMATS))
    check_rescale(wire, torch.device(task.device))


def check_formats(wire: Wire, device: torch.device, names: Sequence[str]) -> None:
    """Compare these formats with the reference; a launch that fails is a failed check."""
    on_gpu = device.type == "cuda"
    sequences, dims = (_LARGE, (64, 128)) if on_gpu else (_SMALL, (16,))
    for name in names:
        fp8 = FORMATS[name].kv_dtype == FP8 and on_gpu
        if fp8 and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
            report(wire, name, None, "gpucheck.kernels.no_fp8")
            continue
        for dim in dims:
            for group in GROUPS:
                for kind, pairs in sequences.items():
                    case = Case(pairs, _BLOCK_SIZE, group * _KV_HEADS, _KV_HEADS, dim)
                    check_id = f"{name}.dim{dim}.group{group}.{kind}"
                    _compare(wire, check_id, name, make_step(case), device)
        for side in ("keys", "values"):
            _poisoned(wire, name, side, device, dims[0])


def check_rescale(wire: Wire, device: torch.device) -> None:
    """Compare rescaled int8 blocks of our kernel and PyTorch, for powers of two from 1 to 128."""
    step = moved(make_step(Case(((40, 1), (5, 3)), _BLOCK_SIZE, _KV_HEADS, _KV_HEADS, 16)), device)
    kv = from_blocks(step.kv, torch.int8)
    blocks, _ = step.inputs.touched
    assert isinstance(kv, QuantizedKV)
    assert kv.scales is not None
    old = kv.scales[:, blocks]
    times = 2.0 ** torch.arange(old.numel(), device=device).reshape(old.shape)
    ours, plain = kv.values.clone(), kv.values.clone()
    about = {"format": "int8", "group": 1, "dim": 16, **_kind("mixed")}
    with errors_fail(wire, "int8.rescale", "gpucheck.kernels.raised", **about):
        triton_module().rescale(ours, step.inputs, old, old * times)
        rescale(plain, step.inputs, old, old * times)
        differing = int((ours != plain).sum())
        report(wire, "int8.rescale", not differing, "gpucheck.kernels.rescale",
               n=differing, of=plain.numel())  # fmt: skip


def _compare(wire: Wire, check_id: str, name: str, step: Step, device: torch.device) -> None:
    form = FORMATS[name]
    about = {
        "format": name,
        "group": step.q.shape[1] // step.kv.shape[2],
        "dim": step.q.shape[2],
        **_kind(check_id.rpartition(".")[2]),
    }
    with errors_fail(wire, check_id, "gpucheck.kernels.raised", **about):
        step, kv = _prepared(step, form, device)
        ours = KERNELS["triton"](step.q, kv, step.inputs, step.scale).double()
        expected = reference_kernel(step.q, kv, step.inputs, step.scale).double()
        off = (ours - expected).abs()
        right = bool((off <= form.tolerance * (1 + expected.abs())).all())
        largest = float(off.max())
        key = "gpucheck.kernels.compared" if isfinite(largest) else "gpucheck.kernels.not_finite"
        report(wire, check_id, right, key, off=largest, tolerance=form.tolerance, **about)


def _poisoned(wire: Wire, name: str, side: str, device: torch.device, dim: int) -> None:
    """NaN in one slot of the first of two requests, in the second KV head's keys or values."""
    check_id = f"{name}.poison.{side}"
    if FORMATS[name].kv_dtype == FP8 and device.type == "cpu":
        report(wire, check_id, None, "gpucheck.kernels.no_nan")
        return
    step = make_step(Case(((69, 1), (69, 1)), _BLOCK_SIZE, _KV_HEADS, _KV_HEADS, dim))
    step.kv[int(side == "values"), step.tables[0][2], 1, 5] = float("nan")
    about = {"format": name, "group": 1, "dim": dim, **_kind("decode")}
    with errors_fail(wire, check_id, "gpucheck.kernels.raised", **about):
        step, kv = _prepared(step, FORMATS[name], device)
        spoilt = KERNELS["triton"](step.q, kv, step.inputs, step.scale).isnan().any(-1)
        shows, others = bool(spoilt[0, 1]), int(spoilt.sum()) - int(spoilt[0, 1])
        key = "gpucheck.kernels.poison_shows" if shows else "gpucheck.kernels.poison_hidden"
        report(wire, check_id, shows and not others, key, format=name, others=others,
               side=message(f"gpucheck.kernels.{side}").model_dump())  # fmt: skip


def _kind(name: str) -> dict[str, object]:
    return {"kind": message(f"gpucheck.kernels.{name}").model_dump()}


def _prepared(step: Step, form: Format, device: torch.device) -> tuple[Step, LayerKV]:
    """The step and its cache on the device, in the format."""
    there = moved(step, device, torch.float32 if form.kv_dtype else form.dtype)
    if form.kv_dtype is None:
        return there, there.kv
    kv = from_blocks(there.kv, form.kv_dtype)
    return replace(there, q=there.q.to(form.dtype)), kv
