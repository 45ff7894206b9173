"""Holds our scheduler against vLLM's on random workloads: ``make vllm-conformance``.

    python tests/conformance/campaign.py --count 20000 0.31.0 0.32.0 0.33.0

Prints a row of docs/conformance.md for each version, and what differs as JSON. Exit code 1: some
workload differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

from oracle import Oracle, first_difference, shrunk, sources, traits, unwritten_blocks_found
from workloads import Step, Workload, our_steps, random_workload

from experiment.arms.launch import find_vllm

CACHE = Path(".venv-vllm/sources")
_BATCH = 250
# One workload in ten is scheduled asynchronously too.
_ASYNC_EACH = 10
# Starting vLLM takes longer than a batch; it ends with the process that asks it.
_oracle = cache(Oracle)
_SHARES = ("preempts", "prefix hits", "aborts", "priorities", "chunked prefill")


def main(arguments: list[str]) -> int:
    """Compare; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare schedulers with those of vLLM.")
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    python = interpreter()
    seeds = range(options.first, options.first + options.count)
    parts = [seeds[at : at + _BATCH] for at in range(0, len(seeds), _BATCH)]
    failed = False
    for version in options.versions:
        began = time.monotonic()
        compare = partial(compare_seeds, python, sources(version, CACHE), version)
        with ProcessPoolExecutor(options.workers) as pool:
            found = list(pool.map(compare, parts))
        seen = sum((each[0] for each in found), Counter[str]())
        different = [workload for each in found for workload in each[1]]
        failed |= bool(different)
        print(report(version, options.count, seen, len(different), time.monotonic() - began))
        for workload in different[:5]:
            print(json.dumps(workload))
    return int(failed)


def interpreter() -> str:
    """vLLM's interpreter; the sources of other versions have a directory then."""
    python = find_vllm()
    if not isinstance(python, str):
        sys.exit("vLLM is not there: run make vllm")
    CACHE.mkdir(parents=True, exist_ok=True)
    return python


def compare_seeds(
    python: str, unpacked: Path | None, version: str, seeds: Sequence[int]
) -> tuple[Counter[str], list[Workload]]:
    """Count what the workloads show; return those that differ, made small."""
    vllm = _oracle(python, "vllm_scheduler.py", unpacked)
    seen: Counter[str] = Counter()
    different = []

    def differs(workload: Workload) -> bool:
        with unwritten_blocks_found():
            ours = list(our_steps(workload))
        return first_difference(ours, vllm.ask(workload)) is not None

    for seed in seeds:
        workload = random_workload(seed, "vllm-0.32" if version < "0.33" else "vllm-0.33")
        theirs, ours = vllm.ask(workload), list(our_steps(workload))
        seen += traits(workload, theirs)
        if first_difference(ours, theirs) is not None:
            if differs(workload):
                different.append(shrunk(workload, differs))
            else:
                seen["unwritten"] += 1
        if not seed % _ASYNC_EACH:
            seen += sums(theirs, "synchronous")
            seen += sums(vllm.ask({**workload, "async": True}), "asynchronous")
    return seen, different


def sums(steps: Sequence[Step], name: str) -> Counter[str]:
    """Steps, preemptions and blocks in use, summed over the steps."""
    return Counter(
        {
            f"{name} steps": sum(bool(step[0]) for step in steps),
            f"{name} preemptions": sum(len(step[2]) for step in steps),
            f"{name} blocks": sum(step[1] for step in steps),
        }
    )


def report(version: str, count: int, seen: Counter[str], different: int, seconds: float) -> str:
    """A row of the table, and what asynchronous scheduling changes."""
    shares = " | ".join(f"{100 * seen[name] / count:.0f} %" for name in _SHARES)
    rise = {
        name: f"{100 * (seen[f'asynchronous {name}'] / seen[f'synchronous {name}'] - 1):+.1f} %"
        for name in ("steps", "preemptions", "blocks")
        if seen[f"synchronous {name}"]
    }
    return (
        f"| {version} | `{commit()}` | {count - different:,} of {count:,} | {seen['steps']:,} "
        f"| {seen['preemptions']:,} | {shares} | {seen['unwritten']} |  "
        f"{seconds:.0f} s; asynchronous: {rise}"
    )


def commit() -> str:
    """The commit that is compared."""
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, encoding="utf-8"
    )
    return asked.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
