"""What key paths of a benchmark's page begin in: engine.json, and what is worked out from it.

rows[workload:A,arm:paged].*.useful_tokens_per_s    of every round
targets[b_vllm].median                              a target
factors[A][slabs].0                                 paged ÷ this arm, in a round that has both
to_default[A][paged][passive].0                     a policy of waiting ÷ the library's own

Those of the file itself lead there; the others begin in :func:`bench_document`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from experiment.bench.data import BenchData, Waiting
from experiment.bench.rows import Row
from experiment.bench.summary import lines
from experiment.text import DASH
from experiment.text.messages import message

_BINDS, _CORES = ("auto", "nobind"), "bench.bind.cores"


def bench_document(data: BenchData) -> dict[str, Any]:
    """The file, with the ratios, counts and words that the page shows of it."""
    names = workload_names(data)
    done = {name: sum(each.workload == name for each in data.rounds) for name in names}
    arms: dict[str, dict[str, Any]] = {name: {"finished": {}, "factors": {}} for name in names}
    for line in lines(data.rows):
        arms[line.workload]["finished"][line.arm] = len(line.finished)
        arms[line.workload]["factors"][line.arm] = line.factors
    return data.model_dump(mode="json") | {
        "began": f"{datetime.fromisoformat(data.started):%Y-%m-%d %H:%M}",
        **{part: {name: arms[name][part] for name in names} for part in ("finished", "factors")},
        "references": {name: _references(data, name) for name in names},
        "to_default": _to_default(data.waiting),
        "limits": _limits(data),
        "threads": [_threads(row) for row in data.rows],
        "vllm_ways": [_way(probe) for probe in (data.vllm or {}).get("probes", ())],
        "vllm_taken": _vllm_taken(data.vllm),
        "vllm_modes": {
            name: _way(mode) | {"runs": _runs(data.vllm, name)}
            for name, mode in vllm_modes(data.vllm).items()
        },
        "rounds_done": ", ".join(f"{name} {count}" for name, count in done.items()) or DASH,
    }


def workload_names(data: BenchData) -> list[str]:
    """Those that were run."""
    return list(dict.fromkeys(row.workload for row in data.rows))


def references(data: BenchData, workload: str) -> dict[str, set[int]]:
    """Rounds, from 1, by the arm that their tokens were compared with."""
    rounds: dict[str, set[int]] = {}
    for row in data.rows:
        if row.workload == workload and row.status == "finished" and row.reference is not None:
            rounds.setdefault(row.reference, set()).add(row.round + 1)
    return rounds


def _references(data: BenchData, workload: str) -> dict[str, Any]:
    """Which rounds; nothing where it was always one arm."""
    found = references(data, workload)
    if len(found) < 2:
        return dict.fromkeys(found, "")
    return {
        arm: message("bench.in_rounds", rounds=", ".join(map(str, sorted(some)))).model_dump()
        for arm, some in found.items()
    }


def _to_default(waiting: Sequence[Waiting]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Within each round, a policy's rate over that of the library's own."""
    rates = {(w.workload, w.arm, w.round, w.policy): w.useful_tokens_per_s for w in waiting}
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (workload, arm, number, policy), rate in rates.items():
        factors = found.setdefault(workload, {}).setdefault(arm, {}).setdefault(policy, [])
        below = rates.get((workload, arm, number, "default"))
        if rate and below:
            factors.append(rate / below)
    return found


def _threads(row: Row) -> dict[str, str]:
    """What a process was told of its thread pools; vLLM's variables that are of none left out."""
    told = [
        f"{name}={value}"
        for name, value in (row.variables or {}).items()
        if "THREADS" in name or not name.startswith("VLLM_")
    ]
    return {
        "variables": " ".join(told) or DASH,
        "cores": ", ".join(map(str, row.cores or ())) or DASH,
    }


def _limits(data: BenchData) -> dict[str, list[float]]:
    """What the machine did at best, in 10^9 of bytes read and of operations a second."""
    known = [each.limits for each in data.rounds if each.limits]
    names = {"read": "read_bytes_per_s", "rate": "flops_per_s"}
    return {name: [each[field] / 1e9 for each in known] for name, field in names.items()}


def vllm_modes(vllm: Mapping[str, Any] | None) -> Mapping[str, Mapping[str, Any]]:
    """What was taken on each workload on which both kinds were tried; else nothing."""
    modes: Mapping[str, Mapping[str, Any]] = (vllm or {}).get("modes", {})
    return modes


def vllm_on(workload: str) -> dict[str, str]:
    """Where a sentence finds what was taken on a workload."""
    at = f"vllm_modes.{workload}"
    return {"workload": f"'{workload}", "mode": f"{at}.mode", "bind": f"{at}.bind"}


def runs_on(workload: str) -> str:
    """Where it finds how often each kind was run there."""
    return f"vllm_modes.{workload}.runs"


def _vllm_taken(vllm: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """In which way it was run, of how many that gave a rate; None where none did."""
    tried = [probe for probe in (vllm or {}).get("probes", ()) if any(probe["rates"])]
    return None if vllm is None or not vllm.get("probes") else _way(vllm) | {"of": len(tried)}


def _runs(vllm: Mapping[str, Any] | None, workload: str) -> int | None:
    """How often each kind was run on a workload."""
    final = (vllm or {}).get("finals", {}).get(workload, ())
    return max((len(each["rates"]) for each in final), default=None)


def _way(told: Mapping[str, Any]) -> dict[str, Any]:
    """Eager or compiled, and how threads are bound."""
    bind = str(told["bind"])
    bound = message(f"bench.bind.{bind}") if bind in _BINDS else message(_CORES, cores=bind)
    mode = message("bench.eager" if told["eager"] else "bench.compiled")
    return {"mode": mode.model_dump(), "bind": bound.model_dump()}
