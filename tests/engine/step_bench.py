"""Where a decoding step's time goes on a CPU: ``make bench-step``.

The same requests run in two engines, whose steps take turns: one with the model's weights as they
are loaded, one with packed weights. Every linear layer and every layer's attention is timed from
outside; the rest is what the step takes beside. With one thread the clock is the process's CPU
time, which other programs do not lengthen (though they take caches and memory bandwidth); with
more it is time as it passes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from experiment.engine.attention.interface import ATTENTION
from experiment.engine.attention.kernels import warm_up
from experiment.engine.cpu.packed_layers import PackedLinear
from experiment.engine.cpu.packed_weights import pack_weights
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.memory.tensors import storage_bytes
from experiment.model.builtin import build_model
from experiment.model.load import load_model
from kvsim.sizing.geometry import KVGeometry

GPT2 = KVGeometry(12, 12, 64, 4)
BLOCK, BLOCKS = 16, 700
PROMPTS = {1: (60,), 4: (2, 12, 140, 2), 32: (5, 20, 60, 200) * 8}
PARTS = ("step", "matrices", "attention", "rest")
CPU = torch.device("cpu")


class Clock:
    """Sums the time spent in functions that it has wrapped."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read
        self.spent: dict[str, float] = {}

    def wrapped(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time counts as ``part``."""

        def timed(*arguments: Any, **named: Any) -> Any:
            with self.counting(part):
                return function(*arguments, **named)

        return timed

    @contextmanager
    def counting(self, part: str) -> Iterator[None]:
        """Count the time of a block as ``part``."""
        begin = self.read()
        yield
        self.spent[part] = self.spent.get(part, 0.0) + self.read() - begin

    def take(self) -> dict[str, float]:
        """Milliseconds by part since the last time, and what is in none of them."""
        spent = {name: 1e3 * self.spent.get(name, 0.0) for name in PARTS}
        spent["rest"] = spent["step"] - spent["matrices"] - spent["attention"]
        self.spent.clear()
        return spent


def engine(path: str, packed: bool, clock: Clock) -> Engine:
    """GPT-2 with every part of a step timed."""
    model = load_model(path, "float32", "cpu", ATTENTION)
    if packed:
        pack_weights(model)
    held = storage_bytes((*model.parameters(), *model.buffers()))
    print(f"{'packed' if packed else 'plain':<8}{held / 2**20:.1f} MiB of weights")
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | Conv1D | PackedLinear):
            module.forward = clock.wrapped("matrices", module.forward)
    pool = KVPool(GPT2, BLOCKS, BLOCK, torch.float32, CPU)
    runner = ModelRunner(model, pool, "numba")
    runner.kernel = clock.wrapped("attention", runner.kernel)
    return Engine(runner)


def measure(engines: dict[str, Engine], clock: Clock, requests: int, steps: int) -> None:
    """Print medians of the parts of decoding steps, and their quartiles."""
    generator = torch.Generator().manual_seed(0)
    for index, length in enumerate(PROMPTS[requests]):
        prompt = torch.randint(50257, (length,), generator=generator).tolist()
        for each in engines.values():
            each.add(1000 * requests + index, prompt, steps + 4)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for step in range(steps + 4):
        for name, each in engines.items():
            with clock.counting("step"):
                each.step()
            taken = clock.take()
            if step in range(2, steps + 2):  # neither prompts nor the end
                found[name].append(taken)
    for name, rows in found.items():
        print(f"{requests:>8}  {name:<8}", *(_spread([row[p] for row in rows]) for p in PARTS))


def _spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:>9.2f} ({low:.2f}-{high:.2f})".ljust(26)


def main() -> None:
    """Load the model twice and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    clock = Clock(time.process_time if asked.threads == 1 else time.perf_counter)
    path = str(build_model("gpt2", 0, 0.08))
    warm_up("numba", CPU, torch.float32)
    engines = {name: engine(path, name == "packed", clock) for name in ("plain", "packed")}
    print("requests  weights ", *(f"{f'{part}, ms':>9}".ljust(26) for part in PARTS))
    for requests in PROMPTS:
        measure(engines, clock, requests, asked.steps)


if __name__ == "__main__":
    main()
