"""vLLM in the faster of its two modes: both are run once on a short workload, before the rounds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from experiment.bench.plan import with_eager, with_run
from experiment.bench.rounds import Ground, run_round
from experiment.bench.workloads import Lengths, Workload, ready
from experiment.config import Config
from experiment.launch import VLLM, Prepared, find_vllm, has_compiler
from experiment.messages import Message, message

# Some of B's prompts, and long enough that the steps of decoding decide.
_REQUESTS, _NEW = 8, 24


def _short(_: random.Random) -> Lengths:
    return [(prompt, _NEW) for prompt in (5, 20, 60, 100)] * (_REQUESTS // 4)


PROBE = Workload("probe", _short, 128)


def faster_mode(runs: Path, ground: Ground, config: Config, say: Any) -> dict[str, Any]:
    """``eager`` is the mode to take, with tokens per second of both, None where not measured.

    Without a C++ compiler nothing can be compiled on a CPU, so nothing is measured.
    """
    told: dict[str, Any] = {"eager": True, "eager_rate": None, "compiled_rate": None}
    found = find_vllm(config)
    if isinstance(found, Message):
        return told | {"reason": found.model_dump(mode="json")}
    if ground.environment.device == "cpu" and not has_compiler():
        return told | {"reason": message("note.vllm_eager").model_dump(mode="json")}
    say(message("bench.vllm_probe"))
    made = ready(PROBE, ground.prepared.model, config.cache.block_size, config.run.seed)
    prepared = Prepared(ground.prepared.directory, ground.prepared.model, made)
    here = Ground(ground.environment, prepared, ground.listener, ground.starting)
    for name, eager in (("eager", True), ("compiled", False)):
        asked = with_eager(with_run(config, [VLLM], PROBE.max_length), eager)
        result = run_round(runs / f"vllm-{name}", here, asked, "probe", 0, [VLLM], limits=False)
        if result.interrupted:
            raise KeyboardInterrupt
        row = next((row for row in result.rows if row.arm == VLLM), None)
        told[f"{name}_rate"] = row.useful_tokens_per_s if row else None
        if row is not None and row.reason is not None:
            told["reason"] = row.reason.model_dump(mode="json")
            if row.status == "skipped":
                return told
    compiled, eager_rate = told["compiled_rate"], told["eager_rate"]
    return told | {"eager": compiled is None or (eager_rate or 0) >= compiled}
