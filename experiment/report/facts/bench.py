"""What the figures of a benchmark stand on, a sentence each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiment.bench.data import BenchData
from experiment.bench.vllm_trials import reached, tried
from experiment.report.facts.bench_keys import bench_document, runs_on, vllm_modes, vllm_on
from experiment.report.facts.sourced import Teller
from experiment.report.facts.texts import arm_name
from experiment.text import Translator

_VERSIONS = ("python", "torch", "transformers", "numba")
_MODEL = ("name", "dtype", "source")
_BUSY = "warnings[key:bench.busy].*.params.cores"


def facts(t: Translator, data: BenchData) -> list[str]:
    """What the figures stand on, a sentence each."""
    return [*basis(t, data), *conditions(t, data)]


def basis(t: Translator, data: BenchData) -> list[str]:
    """What nobody should read the figures without: machine, model, rounds, what disturbed them."""
    k = Teller(t, bench_document(data))
    told = [
        _machine(k),
        k.said("bench.fact.model", **{name: f"model.{name}" for name in _MODEL}),
        k.said("bench.fact.versions", **{name: f"versions.{name}" for name in _VERSIONS}),
        k.said("bench.fact.rounds", rounds="rounds_done", time="seconds"),
    ]
    if k.value(f"length {_BUSY}"):
        told.append(k.said("bench.busy_arms", n=f"length {_BUSY}", cores=f"max {_BUSY}"))
    if data.status != "complete":
        told.append(t("bench.fact.broken_off"))
    return told


def conditions(t: Translator, data: BenchData) -> list[str]:
    """What else was set, found and left out."""
    k = Teller(t, bench_document(data))
    told = [
        *_limits(k),
        *_vllm(k, data),
        k.said("bench.fact.load", average="machine.load_average", cores="machine.others_cores"),
        *_packing(k, data),
        *_threads(k, data),
    ]
    if data.settings.get("poisoned") is False:
        told.append(t("bench.fact.no_poison"))
    for place, each in enumerate(data.left_out):
        at = f"left_out.{place}"
        arm, workload = k.arm(each.arm), f"{at}.workload"
        told.append(k.said("bench.left_out", arm=arm, workload=workload, text=f"{at}.reason"))
    return told


def _machine(k: Teller) -> str:
    cores = [f"machine.cpu.{name}_cores" for name in ("usable", "logical")]
    return k.said(
        "bench.fact.machine", name="machine.device_name", threads="settings.threads", date="began",
        cores=cores[0] if k.value(cores[0]) else cores[1],
    )  # fmt: skip


def _limits(k: Teller) -> list[str]:
    if not k.value("limits.read"):
        return []
    return [k.said("bench.fact.limits", read="#ranged.1 limits.read", rate="#ranged.0 limits.rate")]


def _vllm(k: Teller, data: BenchData) -> list[str]:
    """The mode that was taken and how it was found; why no other one was tried, or none runs."""
    if data.vllm is None:
        return []
    taken = bool(k.value("vllm_taken.of"))
    told_why = data.vllm.get("reason") or not taken
    why = [k.said("bench.fact.vllm_why", text="vllm.reason")] if told_why else []
    if not taken:
        return why
    if modes := vllm_modes(data.vllm):
        return [
            *(k.said("bench.fact.vllm_final", **vllm_on(name), n=runs_on(name)) for name in modes),
            *why,
        ]
    at, text = "vllm_taken", _found_how(data.vllm)
    return [k.said(text, mode=f"{at}.mode", bind=f"{at}.bind", n=f"{at}.of"), *why]


def _found_how(vllm: Mapping[str, Any]) -> str:
    """The sentence on a mode that no final decided."""
    if len(reached(vllm["probes"])) > 1:  # as earlier versions did
        return "bench.fact.vllm"
    if vllm.get("asked", "auto") != "auto":
        return "bench.fact.vllm_asked"
    return f"bench.fact.vllm_{'alone' if len(tried(vllm['probes'])) == 1 else 'only'}"


def _packing(k: Teller, data: BenchData) -> list[str]:
    """How long it took, and which arms went without."""
    seconds = "#ranged.2 rows.*.pack_s"
    any_known = any(row.pack_s is not None for row in data.rows)
    told = [k.said("bench.fact.packed", time=seconds)] if any_known else []
    last = {row.arm: place for place, row in enumerate(data.rows) if row.packing}
    return told + [
        k.said("bench.fact.not_packed", arm=k.arm(arm), text=f"rows.{place}.packing.reason")
        for arm, place in last.items()
        if k.value(f"rows.{place}.packing.reason")
    ]


def _threads(k: Teller, data: BenchData) -> list[str]:
    """Variables of each arm's thread pools; arms that had the same stand together."""
    arms: dict[int, list[str]] = {}
    settings = [(each["variables"], each["cores"]) for each in k.value("threads")]
    for place, row in enumerate(data.rows):
        if row.variables is None:
            continue
        names = arms.setdefault(settings.index(settings[place]), [])
        if arm_name(k.t, row.arm) not in names:
            names.append(arm_name(k.t, row.arm))
    return [
        k.said(
            "bench.fact.variables", arm=f"'{', '.join(names)}",
            variables=f"threads.{place}.variables", cores=f"threads.{place}.cores",
        )
        for place, names in arms.items()
    ]  # fmt: skip
