"""What a step computes in, made ready before the first request: kept by the allocator, and warm.

    left to itself    step ──► asks for memory ──► touches each page ──► gives it back
    kept and warm     profile run ──► the same, once        step ──► takes what is there

A step over 2,048 tokens of GPT-2 writes into some 70 MB beside its weights and the cache. The C
library gives large pieces back to the system as soon as they are free, and each page is cleared and
looked up anew when the next layer or step asks for it. vLLM computes its largest step before it
serves as well, and calls it a profile run.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from experiment.engine.checks import InvalidRequestError
from experiment.engine.engine import Engine
from experiment.workload.first_prompts import NEW_TOKENS
from kvsim.core.scheduler import RequestRefusedError

# Names of glibc's <malloc.h>: how much may be free at the end of the heap before it is given back,
# and how many large pieces may be mappings of their own, which are given back when they are free.
# (A threshold for their size does not do: older versions refuse one above 32 MiB.)
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


class Computed(NamedTuple):
    """What was computed before the first request, and the seconds that it took."""

    prompt_tokens: int
    requests: int
    seconds: float


def keep_working_memory() -> bool:
    """Have this process keep the memory that it frees, for what it computes next.

    What is mapped already goes back to the system as before: weights that were loaded, and a cache
    that was made. False where the C library is not glibc, and nothing is changed, or it refuses.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    kept = [bool(mallopt(*option)) for option in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER))]
    return all(kept)


def profile_run(engine: Engine, prompts: Sequence[int]) -> Computed:
    """Compute prompts of such lengths, and steps that decode.

    Args:
        engine: one that nobody else uses; afterwards all its blocks are free.
        prompts: tokens of each. One that the engine refuses is left out.

    Raises:
        InvalidLogitsError: the model returned NaN, or logits of which none is finite.
    """
    began, tokens, requests = time.perf_counter(), 0, 0
    for length in prompts:
        try:
            engine.add(requests, [0] * length, NEW_TOKENS)
        except (InvalidRequestError, RequestRefusedError):
            continue
        tokens, requests = tokens + length, requests + 1
    for _ in range(NEW_TOKENS):
        engine.step()
    engine.shutdown()
    return Computed(tokens, requests, time.perf_counter() - began)
