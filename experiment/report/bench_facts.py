"""What the figures of a benchmark stand on, a sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from experiment.bench.data import BenchData
from experiment.bench.rows import Row
from experiment.bench.summary import spread
from experiment.i18n import DASH, Translator
from experiment.messages import Message
from experiment.report.bench_tables import ranged, vllm_bind, vllm_mode, workload_names
from experiment.report.texts import arm_name

_VERSIONS = ("python", "torch", "transformers", "numba")


def facts(t: Translator, data: BenchData) -> list[str]:
    """What the figures stand on, a sentence each."""
    cpu = data.machine.get("cpu", {})
    settings, model = data.settings, data.model
    told = [
        t(
            "bench.fact.machine", name=data.machine.get("device_name"),
            cores=cpu.get("usable_cores") or cpu.get("logical_cores"),
            threads=settings.get("threads"),
            date=f"{datetime.fromisoformat(data.started):%Y-%m-%d %H:%M}",
        ),
        t("bench.fact.model", **{name: model.get(name) for name in ("name", "dtype", "source")}),
        t("bench.fact.versions", **{n: data.versions.get(n) for n in _VERSIONS}),
        _limits(t, data),
        _vllm(t, data),
        t("bench.fact.load", average=data.machine.get("load_average"),
          cores=data.machine.get("others_cores")),
    ]  # fmt: skip
    told += [*_packing(t, data.rows), *_threads(t, data.rows)]
    if data.settings.get("poisoned") is False:
        told.append(t("bench.fact.no_poison"))
    told += [_left_out(t, each) for each in data.left_out]
    busy = [w.params["cores"] for w in data.warnings if w.key == "bench.busy"]
    if busy:
        told.append(t("bench.busy_arms", n=len(busy), cores=max(busy)))
    rounds = {name: sum(r.workload == name for r in data.rounds) for name in workload_names(data)}
    done = ", ".join(f"{name} {count}" for name, count in rounds.items())
    told.append(t("bench.fact.rounds", rounds=done or DASH, time=data.seconds))
    if data.status != "complete":
        told.append(t("bench.fact.broken_off"))
    return [each for each in told if each]


def _limits(t: Translator, data: BenchData) -> str:
    limits = [each.limits for each in data.rounds if each.limits]
    if not limits:
        return ""
    read = spread(each["read_bytes_per_s"] / 1e9 for each in limits)
    rate = spread(each["flops_per_s"] / 1e9 for each in limits)
    return t("bench.fact.limits", read=ranged(read, 1), rate=ranged(rate, 0))


def _vllm(t: Translator, data: BenchData) -> str:
    told = data.vllm
    if told is None:
        return ""
    tried = [probe for probe in told.get("probes", []) if any(probe["rates"])]
    if not tried:
        why = told.get("reason")
        text = t.message(Message.model_validate(why)) if why else DASH
        return t("bench.fact.vllm_why", text=text)
    mode, bind = vllm_mode(t, told["eager"]), vllm_bind(t, told["bind"])
    return t("bench.fact.vllm", mode=mode, bind=bind, n=len(tried))


def _packing(t: Translator, rows: Sequence[Row]) -> list[str]:
    """How long it took, and which arms went without."""
    seconds = spread(row.pack_s for row in rows)
    told = [t("bench.fact.packed", time=ranged(seconds, 2))] if seconds.count else []
    without = {row.arm: row.packing["reason"] for row in rows if row.packing}
    return told + [
        t("bench.fact.not_packed", arm=arm_name(t, arm),
          text=t.message(Message.model_validate(reason)))
        for arm, reason in without.items()
        if reason
    ]  # fmt: skip


def _threads(t: Translator, rows: Sequence[Row]) -> list[str]:
    """Variables of each arm's thread pools; arms that had the same stand together."""
    arms: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.variables is None:
            continue
        variables = " ".join(f"{k}={v}" for k, v in row.variables.items() if not _ours(k))
        key = (variables or DASH, ", ".join(map(str, row.cores or [])) or DASH)
        names = arms.setdefault(key, [])
        if arm_name(t, row.arm) not in names:
            names.append(arm_name(t, row.arm))
    return [
        t("bench.fact.variables", arm=", ".join(names), variables=variables, cores=cores)
        for (variables, cores), names in arms.items()
    ]


def _ours(variable: str) -> bool:
    """Variables of vLLM's that say nothing of threads."""
    return variable.startswith("VLLM_") and "THREADS" not in variable


def _left_out(t: Translator, each: Any) -> str:
    name = arm_name(t, each.arm)
    return t("bench.left_out", arm=name, workload=each.workload, text=t.message(each.reason))
