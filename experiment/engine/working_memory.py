"""Keep a step's working memory in the process, and warm it up before the first request.

    by default    step ──► allocates memory ──► touches each page ──► returns it
    kept          profile run ──► the same, once        step ──► reuses it

A step over 2,048 tokens of GPT-2 writes about 70 MB in addition to weights and cache. The C library
returns large allocations to the system when freed, and each page is cleared and mapped again in the
next layer or step. vLLM runs its largest step before serving too, as a profile run.
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

# Parameters of glibc's <malloc.h>: free bytes at the end of the heap before they are returned, and
# the number of large allocations with their own mapping, which is returned when freed. (Older
# versions refuse a size threshold above 32 MiB.)
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


class WarmUp(NamedTuple):
    """What was computed before the first request, and its duration in seconds."""

    prompt_tokens: int = 0
    requests: int = 0
    seconds: float = 0.0


def keep_working_memory() -> bool:
    """Make this process keep freed memory for reuse.

    Existing mappings, such as loaded weights and an existing cache, are still returned when freed.
    False if the C library is not glibc, or refuses.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    kept = [bool(mallopt(*option)) for option in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER))]
    return all(kept)


def profile_run(engine: Engine, prompts: Sequence[int]) -> WarmUp:
    """Run prompts of the given lengths, and decode steps.

    Args:
        engine: an unused engine; afterwards all its blocks are free.
        prompts: lengths in tokens. Prompts that the engine refuses are skipped.

    Raises:
        InvalidLogitsError: the model returned NaN, or no finite logit.
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
    return WarmUp(tokens, requests, time.perf_counter() - began)
