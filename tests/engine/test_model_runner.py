"""The model runner: its inputs, the pool's tensors, its last layer, the memory of a step."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from tiny_engine import geometry, make_engine
from torch.utils._python_dispatch import TorchDispatchMode

from experiment.engine.kv_pool import KVPool, PoisonError
from experiment.engine.model_runner import ModelRunner
from experiment.engine.step_inputs import build_inputs
from experiment.engine.working_memory import keep_working_memory, profile_run
from experiment.gpucheck.tiny_models import tiny
from kvsim.core.step import Chunk, StepPlan
from kvsim.sizing.geometry import KVGeometry

CPU = torch.device("cpu")


def make_pool(blocks: int = 3, block_size: int = 4) -> KVPool:
    return KVPool(KVGeometry(2, 2, 8, 4), blocks, block_size, torch.float32, CPU)


def test_logits_are_those_of_the_last_token_of_each_request_that_samples() -> None:
    pool = KVPool(geometry("llama"), 8, 4, torch.float32, CPU)
    prompts = {0: [5, 6, 7], 1: list(range(10, 20)), 2: [9]}
    chunks = (
        Chunk(0, 0, 3, samples=True),
        Chunk(1, 0, 6, samples=False),
        Chunk(2, 0, 1, samples=True),
    )
    tables = {0: [3], 1: [0, 6], 2: [5]}
    inputs = build_inputs(StepPlan(0, chunks=chunks), prompts, tables, 4, CPU)
    logits = ModelRunner(tiny("llama"), pool).logits(inputs)
    assert inputs.sampled_requests == (0, 2)
    for row, request in enumerate(inputs.sampled_requests):
        with torch.inference_mode():
            plain = tiny("llama", "sdpa")(input_ids=torch.tensor([prompts[request]])).logits
        torch.testing.assert_close(logits[row], plain[0, -1], atol=1e-4, rtol=0)
    assert pool.written_slots() == 3 + 6 + 1


class Copies(TorchDispatchMode):
    """Notes how many numbers each copy to another device takes there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        given = [each for each in args if isinstance(each, torch.Tensor)]
        if given and isinstance(out, torch.Tensor) and out.device != given[0].device:
            self.seen.append(out.numel())
        return out


def test_inputs_go_to_the_device_in_one_copy() -> None:
    chunks = (Chunk(4, 2, 7, samples=True), Chunk(7, 3, 1, samples=True), Chunk(9, 0, 5, False))
    tokens = {request: list(range(9)) for request in (4, 7, 9)}
    tables = {4: [8, 3, 6], 7: [1, 0, 9], 9: [2, 5]}
    with Copies() as copies:
        inputs = build_inputs(StepPlan(0, chunks=chunks), tokens, tables, 4, torch.device("meta"))
        assert all(tensor.is_meta for tensor in (*inputs.flat, inputs.decoding))
    assert len(copies.seen) == 1


@pytest.mark.parametrize("place", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_slot_written_in_some_layers_only_is_an_engine_error(place: tuple[int, int]) -> None:
    pool = make_pool()
    layer, half = place
    pool.kv[layer, half, 1, :, 2] = 0.0
    with pytest.raises(PoisonError):
        pool.written_slots()


# Allocates, writes and frees 64 MiB four times, and counts the pages that had to be found for it:
# as the C library does by itself, then with what the engine asks of it.
_TOUCH = """
import resource
import numpy as np
from experiment.engine.working_memory import keep_working_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(64 << 20, np.uint8).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
found = [faults() for _ in range(4)]
assert keep_working_memory()
print(*found, *(faults() for _ in range(4)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_what_was_computed_in_is_there_again() -> None:
    """Left to itself the C library maps such a piece anew each time."""
    command = [sys.executable, "-c", _TOUCH]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=60)
    found = [*map(int, done.stdout.split())]
    (first, *others), (first_kept, *kept) = found[:4], found[4:]
    assert sum(others) >= 2 * first
    assert sum(kept) < first_kept / 10


def test_a_system_without_this_allocator_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_working_memory()


def test_prompts_of_one_step_are_computed_and_every_block_is_free_again() -> None:
    engine = make_engine("gpt2", 20, 4, max_num_batched_tokens=16)
    done = profile_run(engine, [5, 9, 30])
    assert (done.prompt_tokens, done.requests) == (44, 3)
    assert done.seconds > 0
    assert engine.blocks.num_free == 20
    assert not engine.scheduler.has_work
    assert engine.pool.written_slots() == 0


def test_a_prompt_that_is_refused_is_left_out() -> None:
    engine = make_engine("gpt2", 3, 4)
    done = profile_run(engine, [40, 0, 6])
    assert (done.prompt_tokens, done.requests) == (6, 1)
