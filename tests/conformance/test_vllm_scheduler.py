"""Our scheduler steps as vLLM's own does: the same chunks, blocks, preemptions and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from oracle import Oracle, first_difference, traits, unwritten_blocks_found
from scheduling import CROWD
from workloads import Workload, our_steps, random_workload

from experiment.vllm_setup import VERSION
from kvsim.planning.capacity import assumed_prompt, capacity
from kvsim.sizing.layout import LayerCache, Service, lay_out

OURS = "vllm-0.32"  # the rules of the tested version
WORKLOADS = 200


@pytest.fixture(scope="module")
def vllm(real_vllm: str) -> Iterator[Oracle]:
    assert VERSION.startswith("0.32")
    made = Oracle(real_vllm, "vllm_scheduler.py")
    yield made
    made.close()


def crowd(blocks: int) -> Workload:
    return {
        "scheduler": OURS, "blocks": blocks, "block_size": 32, "max_num_seqs": 256,
        "max_num_batched_tokens": 256, "prefix_caching": False, "watermark": 0.0,
        "admission": "full", "policy": "fcfs", "async": False, "aborts": [],
        "requests": [
            {"arrival": 0, "tokens": list(range(prompt)), "new": new, "priority": 0, "stop": 0}
            for prompt, new in CROWD
        ],
    }  # fmt: skip


def test_random_workloads_are_stepped_alike(vllm: Oracle) -> None:
    seen: Counter[str] = Counter()
    for seed in range(WORKLOADS):
        workload = random_workload(seed, OURS)
        theirs = vllm.ask(workload)
        with unwritten_blocks_found():
            assert first_difference(list(our_steps(workload)), theirs) is None, f"seed {seed}"
        seen += traits(workload, theirs)
    least = {"preempts": 0.3, "prefix hits": 0.3, "aborts": 0.1, "priorities": 0.2}
    assert {name: seen[name] for name in least if seen[name] < least[name] * WORKLOADS} == {}


def test_another_admission_is_seen(vllm: Oracle) -> None:
    """The comparison can fail."""
    workloads = [{**random_workload(seed, OURS), "admission": "full"} for seed in range(60)]
    differ = [
        first_difference(list(our_steps({**each, "admission": "first_chunk"})), vllm.ask(each))
        for each in workloads
    ]
    assert sum(each is not None for each in differ) > 5


@pytest.mark.parametrize(("blocks", "preemptions"), [(63, 5), (64, 4)])
def test_ten_requests_that_vllm_preempts(vllm: Oracle, blocks: int, preemptions: int) -> None:
    workload = crowd(blocks)
    theirs, ours = vllm.ask(workload), list(our_steps(workload))
    assert first_difference(ours, theirs) is None
    assert sum(len(step[2]) for step in theirs) == preemptions


def test_a_block_that_was_never_written_is_found_by_vllm_alone(vllm: Oracle) -> None:
    """The one rule in which ours differs: request 0 is preempted in the step that planned it."""
    # Arrival, first token, prompt, new tokens, priority.
    requests = [(0, 1000, 114, 4, 3), (1, 0, 2, 27, 2), (1, 500, 8, 4, 1), (4, 1000, 9, 10, 1)]
    workload: Workload = {
        **crowd(32), "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 12, "prefix_caching": True, "policy": "priority",
        "requests": [
            {
                "arrival": at, "tokens": list(range(first, first + prompt)), "new": new,
                "priority": priority, "stop": 0,
            }
            for at, first, prompt, new, priority in requests
        ],
    }  # fmt: skip
    theirs = vllm.ask(workload)
    assert first_difference(list(our_steps(workload)), theirs) is not None
    with unwritten_blocks_found():
        assert first_difference(list(our_steps(workload)), theirs) is None


# Windows of groups beside one with full attention, tokens of a step.
WINDOWED = [
    ((256,) * 2, 512),
    ((256,) * 6, 512),
    ((128,) * 6, 2048),
    ((1024,) * 4, 1024),
    ((), 512),
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("windows", "chunk"), WINDOWED)
def test_a_planned_number_of_long_requests_runs_at_once(
    vllm: Oracle, windows: tuple[int, ...], chunk: int, asynchronous: bool
) -> None:
    """The windows of the last one keep its chunks in flight while the others generate.

    Planned is with the others at their ends, at most as many fit as with them at their prompts.
    """
    size, length, blocks = 16, 4096, 4096
    prompt = assumed_prompt(length)
    kinds = [LayerCache("window", 256, size, span=span) for span in windows]
    layout = lay_out([LayerCache("full", 256, size), *kinds])
    assert len(layout.groups) == 1 + len(windows)
    service = Service(length, chunk, 1 + asynchronous)
    least = capacity(layout, (blocks + 1) * layout.block_bytes, 1, service, length).requests
    begun = layout.request_blocks(service.decoding, prompt)
    most = (blocks - max(0, layout.prompt_blocks(service, prompt) - begun)) // begun
    requests = [
        {"arrival": 0, "tokens": [1] * prompt, "new": length - prompt, "priority": 0, "stop": 0}
    ] * (most + 2)
    workload: Workload = {
        **crowd(blocks), "block_size": size, "max_num_batched_tokens": chunk,
        "async": asynchronous, "windows": windows, "requests": requests,
    }  # fmt: skip
    steps = vllm.ask(workload)
    generating = (sum(computed >= prompt for _, _, computed, _ in step[0]) for step in steps)
    assert least <= max(generating) <= most
