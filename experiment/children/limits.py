"""Measure peak rates of the machine: ``python -m experiment.children.limits``.

    decode    reads every weight and all K and V for one token each  ─► memory bandwidth
    prefill   multiplies hundreds of rows with every weight          ─► matrix rate

The task is ``{"directory": ..., "device": ..., "dtype": ..., "threads": ...}``, with the arms'
threads; the result is one MachineLimits event. Each rate is the best of several methods and tries,
because background load can only reduce it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from experiment.events import MachineLimits
from experiment.process.wire import Wire, exit_process, serve

if TYPE_CHECKING:
    import torch

# Much larger than any cache, and small compared with the machine's memory.
_READ_BYTES = {"cpu": 256 << 20, "cuda": 4 << 30}
_SIDE = {"cpu": 1536, "cuda": 8192}
_ROW = 1024
_TRIES = 7


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Run the task."""
    import torch

    if task["threads"]:
        torch.set_num_threads(task["threads"])
    device, dtype = torch.device(task["device"]), getattr(torch, task["dtype"])
    with torch.inference_mode():
        event = MachineLimits(
            threads=torch.get_num_threads(),
            read_bytes_per_s=read_rate(device, dtype, task.get("bytes")),
            flops_per_s=matrix_rate(device, dtype, task.get("side")),
            **model_size(task["directory"]),
        )
    wire.emit(event)


def libraries() -> None:
    """Import the libraries of the measurements."""
    import torch  # noqa: F401
    import transformers.modeling_utils  # noqa: F401


def read_rate(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """Measure bytes per second, by a matrix-vector product and by a sum; the faster one counts."""
    import torch

    size = size or _read_bytes(device)
    matrix = torch.ones(size // dtype.itemsize // _ROW, _ROW, dtype=dtype, device=device)
    vector = torch.ones(_ROW, dtype=dtype, device=device)
    ways = (lambda: matrix @ vector, matrix.sum)
    return matrix.nbytes / min(_best_s(way, device) for way in ways)


def _read_bytes(device: torch.device) -> int:
    """Bytes to read; on a GPU at most a quarter of its free memory."""
    import torch

    most = _READ_BYTES[device.type]
    return min(most, torch.cuda.mem_get_info(device)[0] // 4) if device.type == "cuda" else most


def matrix_rate(device: torch.device, dtype: torch.dtype, side: int | None = None) -> float:
    """Measure FLOP/s of a product of two square matrices; the faster method counts.

    On a CPU torch has two libraries for it: that of ``@``, and oneDNN with a packed weight.
    """
    import torch

    side = side or _SIDE[device.type]
    a = torch.ones(side, side, dtype=dtype, device=device)
    ways: list[Callable[[], Any]] = [lambda: a @ a]
    if device.type == "cpu" and (packed := _packed_product(a)):
        ways.append(packed)
    return 2 * side**3 / min(_best_s(way, device) for way in ways)


def _packed_product(a: torch.Tensor) -> Callable[[], Any] | None:
    """The product of a square matrix with itself by oneDNN; None if torch lacks it."""
    import torch

    from experiment.engine.cpu.packed_layers import PackedLinear
    from experiment.engine.cpu.panels import pack

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        product = PackedLinear(pack(a), None, *a.shape)
        product(a)
    except (AttributeError, RuntimeError):  # torch's private operations
        return None
    return lambda: product(a)


def model_size(directory: str) -> dict[str, int]:
    """Numbers of weights that a token is multiplied with, as in :class:`MachineLimits`.

    Built on ``meta``. The embedding is not a product unless it is tied to the output projection.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    head = model.get_output_embeddings()

    def parameters(part: torch.nn.Module) -> int:
        layers = (m for m in part.modules() if isinstance(m, torch.nn.Linear | Conv1D))
        return sum(layer.weight.numel() for layer in layers if layer is not head)

    text = config.get_text_config()
    count, heads = text.num_hidden_layers, text.num_attention_heads
    dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    stacks = (m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count)
    stack = next(stacks, None)
    keys_and_values = text.hidden_size * 2 * kv_heads * dim
    sampled = parameters(stack[-1]) - keys_and_values if stack else 0
    return {
        "matrix_parameters": parameters(model), "output_parameters": head.weight.numel(),
        "attention_width": count * heads * dim, "sampled_parameters": sampled,
    }  # fmt: skip


def _best_s(work: Callable[[], Any], device: torch.device) -> float:
    import torch

    times = []
    for _ in range(_TRIES):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    exit_process(serve("limits", main, libraries))
