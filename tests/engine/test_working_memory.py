"""Memory that steps compute in: kept by the process, and computed in before the first request."""

from __future__ import annotations

import subprocess
import sys

import pytest

from experiment.engine.working_memory import keep_working_memory, profile_run
from experiment.gpucheck.tiny_models import make_engine, solo

# Allocates, writes and frees 64 MiB four times, and counts the pages that had to be found for it.
_TOUCH = """
import resource, sys
import numpy as np
from experiment.engine.working_memory import keep_working_memory
if sys.argv[1] == "kept":
    assert keep_working_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
found = []
for _ in range(4):
    before = faults()
    np.ones(64 << 20, np.uint8).sum()
    found.append(faults() - before)
print(found[0], sum(found[1:]))
"""


def faults(how: str) -> tuple[int, int]:
    command = [sys.executable, "-c", _TOUCH, how]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=60)
    first, others = map(int, done.stdout.split())
    return first, others


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_what_was_computed_in_is_there_again() -> None:
    """Left to itself the C library maps such a piece anew each time."""
    first, others = faults("left alone")
    assert others >= 2 * first
    first, others = faults("kept")
    assert others < first / 10


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


def test_what_is_generated_afterwards_is_what_would_have_been() -> None:
    engine = make_engine("gpt2", 20, 4)
    profile_run(engine, [5, 9])
    engine.add(7, [1, 2, 3, 4, 5], 6)
    while engine.scheduler.has_work:
        engine.step()
    assert engine.generated(7) == solo("gpt2", [1, 2, 3, 4, 5], 6)
