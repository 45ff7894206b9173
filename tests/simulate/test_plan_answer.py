"""The answer of ``plan``: what fits, for users, contexts, shared prefixes and other GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiment.commands.main import main
from experiment.simulate.plan import plan
from experiment.simulate.setup import Memory
from experiment.text.errors import ExitCode
from kvsim.core.blocks import BlockPool
from kvsim.core.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.sizing.gpus import custom_gpu, find_gpu

GIB = 1 << 30
MODEL = "llama-3.1-8b"
TOKEN_BYTES = 131_072


def capacity(**asked: Any) -> dict[str, Any]:
    memory = Memory(budget=4 * GIB)
    return dict(plan(MODEL, "rtx-4090", memory=memory, **asked)["plan"]["capacity"])


@pytest.mark.parametrize(("context", "prefix"), [(4095, 0), (4095, 2048), (1000, 999), (900, 300)])
def test_as_many_requests_fit_as_the_scheduler_runs(context: int, prefix: int) -> None:
    """One request computes the common beginning; in the next step all others may join it."""
    blocks = 4 * GIB // (16 * TOKEN_BYTES) - 1  # without vLLM's null block
    limits = SchedulerConfig(
        max_num_seqs=blocks, max_num_batched_tokens=blocks * context, prefix_caching=True
    )
    scheduler = Scheduler(BlockPool(blocks, 16), limits)
    common = prefix // 16
    for number in range(blocks):
        keys = [f"{number if place >= common else ''} {place}" for place in range(context // 16)]
        scheduler.add(Request(number, context, 2, lambda n, keys=keys: keys[:n]))
        if number == 0:
            scheduler.complete(scheduler.schedule())
    running = len(scheduler.schedule().chunks)
    assert capacity(context=context, shared_prefix=prefix)["middle"]["requests"] == running


def test_users_fit_perhaps_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(MODEL, "rtx-4090", context=4096)["plan"]["capacity"]
    low, high = found["low"]["requests"], found["high"]["requests"]
    assert low < high
    words = ["plan", "--model", MODEL, "--gpu", "rtx-4090", "--context", "4096", "--lang", "en"]
    said = []
    for users in (low, high, high + 1):
        assert main([*words, "--users", str(users)]) == ExitCode.OK
        out = capsys.readouterr().out
        assert len(out.splitlines()) <= 15
        said.append(next(line for line in out.splitlines() if "users" in line))
    assert len({line.split(" users ")[1][:12] for line in said}) == 3


def test_without_a_length_it_is_the_longest_that_surely_starts() -> None:
    found = plan(MODEL, "rtx-4090")["plan"]
    assert found["capacity"]["shortened"]
    assert found["capacity"]["low"]["starts"]
    assert found["max_length"] % 16 == 0
    least = found["capacity"]["low"]["kv"] // TOKEN_BYTES
    assert least - 33 <= found["max_length"] <= least
    roomy = plan("qwen2.5-0.5b", "h100")["plan"]
    assert not roomy["capacity"]["shortened"]
    assert roomy["max_length"] == 32_768


def test_a_gpu_of_ones_own_and_vllms_options() -> None:
    """With the figures of a GPU of the catalogue it is planned as that one."""
    known = find_gpu("rtx-4090")
    own = custom_gpu(known.memory_bytes, known.bandwidth, known.flops)
    one, other = (plan(MODEL, gpu, context=4096)["plan"]["budget"] for gpu in (known, own))
    assert one["kv"] == pytest.approx(other["kv"], rel=0.02)


def test_json_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "--model", MODEL, "--gpu", "rtx-4090", "--context", "4096", "--json")
    assert main([*words]) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    sizes = [data["plan"]["capacity"][name]["kv"] for name in ("low", "middle", "high")]
    assert sizes == sorted(sizes)
    assert data["plan"]["budget"]["kv"] == sizes[1]


def test_more_than_vllm_runs_at_once_is_limited_by_its_sequences() -> None:
    found = plan("gpt2", "rtx-4090", context=256)["plan"]["capacity"]
    assert found["limit"] == "sequences"
    assert found["max_num_seqs"] == 256 < found["low"]["requests"]
