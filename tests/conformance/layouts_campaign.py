"""Holds the layout of every catalogue model against vLLM's: ``make vllm-layouts``.

    python tests/conformance/layouts_campaign.py 0.32.0 0.33.0

Each model on 1, 2, 4 and 8 tensor-parallel ranks, with blocks of 16, 32 and 64, caches in 16 and 8
bits, four maximum lengths and two sizes of memory; on one rank also without asynchronous scheduling
and without prefix caching. vLLM's own classes say what each layer keeps. Prints a row of
docs/conformance.md for each version, then what differs, and writes answers for the first setting
of each model to ``layouts.jsonl``. Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

from campaign import CACHE, commit, interpreter
from oracle import Oracle, sources

from experiment.simulate.vllm_check import language_model
from kvsim.sizing.fields import UnsupportedGeometryError
from kvsim.sizing.layers import Serving, layer_caches
from kvsim.sizing.layout import Layout, LayoutError, Service, lay_out
from kvsim.sizing.models import MODELS

RANKS, BLOCKS, DTYPES = (1, 2, 4, 8), (16, 32, 64), ("auto", "fp8")
LENGTHS, MEMORIES = (2048, 8192, 32_768, 131_072), (4 << 30, 64 << 30)
BATCHED = 2048
FIGURES = ("kinds", "groups", "blocks", "tokens")
RECORDED = Path(__file__).with_name("layouts.jsonl")
_PLACE = re.compile(r"/\S+|0x\w+")
_oracle = cache(Oracle)
Ask = Mapping[str, Any]


def main(arguments: list[str]) -> int:
    """Compare; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare layouts with those of vLLM.")
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    python = interpreter()
    failed, recorded = False, []
    for version in options.versions:
        began = time.monotonic()
        compare = partial(compare_model, python, sources(version, CACHE))
        with ProcessPoolExecutor(options.workers) as pool:
            found = dict(zip(options.models, pool.map(compare, options.models), strict=True))
        seen = sum((counts for counts, *_ in found.values()), Counter[str]())
        recorded += [
            {"vllm": version, "model": name, "limits": first}
            for name, (_, _, _, first) in found.items()
            if first
        ]
        failed |= bool(seen["different"])
        built = sum(counts["equal"] > 0 for counts, *_ in found.values())
        print(
            f"| {version} | `{commit()}` | {built} of {len(found)} | {seen['equal']:,} "
            f"| {seen['refused']:,} | {seen['different']} | {time.monotonic() - began:.0f} s"
        )
        for name, (_, different, why, _) in found.items():
            for ask, ours, theirs in different[:2]:
                print(name, json.dumps(ask), json.dumps(ours), json.dumps(theirs))
            if why:
                print(f"{name}: {why}")
    if options.models == list(MODELS):
        lines = (json.dumps(each) + "\n" for each in recorded)
        RECORDED.write_text("".join(lines), encoding="utf-8")
    return int(failed)


def compare_model(
    python: str, unpacked: Any, name: str
) -> tuple[Counter[str], list[tuple[Any, Any, Any]], str, list[Any]]:
    """Count equal answers and equal refusals.

    Returns:
        The counts, what differs, why vLLM builds nothing, and its first answers as
        [maximum length, bytes, figures].
    """
    vllm = _oracle(python, "vllm_layouts.py", unpacked)
    seen: Counter[str] = Counter()
    different, why, first = [], "", list[Any]()
    for number, ask in enumerate(asks(name)):
        answered = vllm.ask(ask)
        if "failed" in answered:
            why = _PLACE.sub("…", answered["failed"])[:160]
            seen["not built"] += 1
            continue
        if number == 0:
            first = [
                [*limits, *(plain(one).get(key) for key in FIGURES)]
                for limits, one in zip(ask["limits"], answered["limits"], strict=True)
            ]
        for place, ours in enumerate(our_answers(ask)):
            theirs = plain(answered["limits"][place])
            kind = "different" if ours != theirs else "refused" if "refused" in ours else "equal"
            seen[kind] += 1
            if kind == "different":
                about = {**ask, "limits": ask["limits"][place], "config": name}
                different.append((about, ours, theirs))
    return seen, different, "" if seen["equal"] else why, first


def asks(name: str) -> Iterator[Ask]:
    """Every setting of a model that vLLM takes."""
    positions = MODELS[name].max_positions or max(LENGTHS)
    lengths = [length for length in LENGTHS if length <= positions] or [positions]
    limits = [(length, memory) for length in lengths for memory in MEMORIES]
    plain_ask = {
        "config": language_model(MODELS[name].config),
        "max_length": lengths[0], "bytes": MEMORIES[0], "batched": BATCHED, "limits": limits,
        "block_size": 16, "async": True, "caching": True,
    }  # fmt: skip
    for ranks in RANKS:
        for block_size in BLOCKS:
            for kv in DTYPES:
                yield {**plain_ask, "ranks": ranks, "block_size": block_size, "kv": kv}
    for name_off in ("async", "caching"):
        yield {**plain_ask, name_off: False}


def our_answers(ask: Ask) -> Iterator[dict[str, Any]]:
    """Our answer for each of the limits."""
    serving = Serving(
        ask["block_size"], kv_bytes=1 if ask.get("kv") == "fp8" else 2,
        tensor_parallel=ask.get("ranks", 1), prefix_caching=ask["caching"],
    )  # fmt: skip
    try:
        layout = lay_out(layer_caches(ask["config"], serving))
    except (LayoutError, UnsupportedGeometryError):
        yield from [{"refused": True}] * len(ask["limits"])
        return
    for length, memory in ask["limits"]:
        service = Service(length, ask["batched"], 2 if ask["async"] else 1)
        found = layout.capacity(memory, service)
        if not found.starts:
            yield {"refused": True}
            continue
        yield {
            "kinds": kinds_of(layout),
            "groups": sorted(len(group.layers) for group in layout.groups),
            "blocks": found.blocks, "tokens": found.tokens, "concurrency": found.max_concurrency,
        }  # fmt: skip


def kinds_of(layout: Layout) -> list[list[Any]]:
    """[kind, block size, number of layers] of each kind and block size; states have none."""
    caches = (cache for group in layout.groups for cache in group.cache)
    found = Counter((c.kind, 0 if c.kind == "state" else c.block_size) for c in caches)
    return sorted([kind, size, count] for (kind, size), count in found.items())


def plain(theirs: dict[str, Any]) -> dict[str, Any]:
    """Sizes of groups instead of layers; a refusal without its words."""
    if "refused" in theirs:
        return {"refused": True}
    return {**theirs, "groups": sorted(map(len, theirs["groups"]))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
