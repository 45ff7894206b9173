"""Holds planned KV caches against those of public start-up logs of vLLM: ``make plan-check``.

``public_logs.jsonl`` has settings and the bytes of the cache that vLLM printed for one GPU. A
setting that a log does not say is vLLM's default; ``version_assumed``: by the form of its lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvsim.sizing.budget import kv_budget
from kvsim.sizing.gpus import find_gpu
from kvsim.sizing.models import find_model
from kvsim.sizing.overhead import TESTED, ServerOptions

LOGS = Path(__file__).with_name("public_logs.jsonl")
GIB = 1 << 30


@dataclass(frozen=True)
class Checked:
    """A log beside its plan, GiB of one GPU."""

    log: Mapping[str, Any]
    low: float
    middle: float
    high: float

    @property
    def observed(self) -> float:
        """What vLLM printed."""
        return float(self.log["kv_gib"])

    @property
    def contains(self) -> bool:
        """Whether the range contains it."""
        return self.low <= self.observed <= self.high

    @property
    def width(self) -> float:
        """Of the range over its middle."""
        return (self.high - self.low) / self.middle

    @property
    def error(self) -> float:
        """Of the middle."""
        return self.middle / self.observed - 1


def checked() -> Iterator[Checked]:
    """Every log."""
    for line in LOGS.read_text(encoding="utf-8").splitlines():
        log = json.loads(line)
        model = find_model(log["model"])
        if "weights" in log:
            model = model.quantised(log["weights"])
        major, minor = map(int, log.get("vllm", f"{TESTED[0]}.{TESTED[1]}").split("."))
        options = ServerOptions(
            (major, minor), log.get("max_num_batched_tokens"), log.get("max_num_seqs"),
            log.get("eager", False), max_loras=log.get("max_loras", 0),
        )  # fmt: skip
        gpus = log["gpus"]
        budget = kv_budget(
            model, find_gpu(log["gpu"]), gpus, log.get("utilisation"),
            options=options, max_length=log.get("max_length"),
        )  # fmt: skip
        assert budget.low is not None
        assert budget.high is not None
        yield Checked(log, *(size / gpus / GIB for size in (budget.low, budget.kv, budget.high)))


def main() -> None:
    """Print the table."""
    rows = list(checked())
    print("| vLLM | model | GPU | planned GiB | observed | error | width | |\n" + "|---" * 8 + "|")
    for row in rows:
        log, mark = row.log, "" if row.contains else "outside"
        weights = f" {log['weights']}" if "weights" in log else ""
        print(
            f"| {log.get('vllm', '')} | {log['model']}{weights} | {log['gpus']} x {log['gpu']} "
            f"| {row.low:.2f} {row.middle:.2f} {row.high:.2f} | {row.observed:.2f} "
            f"| {row.error:+.1%} | {row.width:.0%} | {mark} |"
        )
    contained = sum(row.contains for row in rows)
    print(
        f"\n{contained} of {len(rows)} within the range; median width "
        f"{median(row.width for row in rows):.1%}, median error "
        f"{median(abs(row.error) for row in rows):.1%}"
    )


if __name__ == "__main__":
    main()
