"""Sentences on the conditions of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from experiment.bench.data import BenchData
from experiment.bench.rows import Row
from experiment.report.facts.texts import arm_name
from experiment.report.facts.values import ranged
from experiment.text import DASH, Translator
from experiment.text.messages import Message, message

_BUSY = "bench.busy"
_BINDS, _CORES = ("auto", "nobind"), "bench.bind.cores"


def workload_names(data: BenchData) -> list[str]:
    """Workloads that were run."""
    return list(dict.fromkeys(row.workload for row in data.rows))


def facts(t: Translator, data: BenchData) -> list[str]:
    """Conditions of the figures, a sentence each."""
    return [*basis(t, data), *conditions(t, data)]


def basis(t: Translator, data: BenchData) -> list[str]:
    """The main conditions: machine, model, rounds, background load."""
    cpu = data.machine.get("cpu") or {}
    cores = cpu.get("usable_cores")
    texts = [
        t(
            "bench.fact.machine", name=data.machine.get("device_name"),
            threads=data.settings.get("threads"),
            date=f"{datetime.fromisoformat(data.started):%Y-%m-%d %H:%M}",
            cores=cores if cores else cpu.get("logical_cores"),
        ),
        t("bench.fact.model", **{n: data.model.get(n) for n in ("name", "dtype", "source")}),
        t(
            "bench.fact.versions",
            **{n: data.versions.get(n) for n in ("python", "torch", "transformers", "numba")},
        ),
        t("bench.fact.rounds", rounds=_rounds(data), time=data.seconds),
    ]  # fmt: skip
    busy = [each.params["cores"] for each in data.warnings if each.key == _BUSY]
    if busy:
        texts.append(t("bench.busy_arms", n=len(busy), cores=max(busy)))
    if data.status != "complete":
        texts.append(t("bench.fact.broken_off"))
    return texts


def _rounds(data: BenchData) -> str:
    """Number of rounds of each workload."""
    done = [f"{name} {sum(each.workload == name for each in data.rounds)}"
            for name in workload_names(data)]  # fmt: skip
    return ", ".join(done) or DASH


def conditions(t: Translator, data: BenchData) -> list[str]:
    """Other conditions: settings, versions, excluded arms."""
    texts = []
    known = [each.limits for each in data.rounds if each.limits]
    if known:
        texts.append(
            t(
                "bench.fact.limits",
                read=ranged((each["read_bytes_per_s"] / 1e9 for each in known), 1),
                rate=ranged((each["flops_per_s"] / 1e9 for each in known), 0),
            )
        )
    load = {"average": data.machine.get("load_average"), "cores": data.machine.get("others_cores")}
    texts += [
        *_vllm(t, data), t("bench.fact.load", **load), *_packing(t, data), *_variables(t, data)
    ]  # fmt: skip
    if data.settings.get("poisoned") is False:
        texts.append(t("bench.fact.no_poison"))
    for each in data.left_out:
        text, arm = t.message(each.reason), arm_name(t, each.arm)
        texts.append(t("bench.left_out", arm=arm, workload=each.workload, text=text))
    return texts


def trials(vllm: Mapping[str, Any] | None, on: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Trials of vLLM's modes by workload; older versions also used a short probe."""
    recorded = vllm or {}
    for name, some in ({"probe": recorded.get("probes", ())} | recorded.get("finals", {})).items():
        if on in ("", name):
            yield from ((name, each) for each in some)


def _reached(vllm: Mapping[str, Any]) -> set[bool]:
    """Kinds of mode with a rate: True for eager, False for compiled."""
    return {bool(each["eager"]) for _, each in trials(vllm) if any(each["rates"])}


def mode_words(t: Translator, mode: Mapping[str, Any]) -> dict[str, str]:
    """Texts of a mode of vLLM: ``mode`` and ``bind``."""
    bind = str(mode["bind"])
    bound = t(f"bench.bind.{bind}") if bind in _BINDS else t(_CORES, cores=bind)
    return {"mode": t("bench.eager" if mode["eager"] else "bench.compiled"), "bind": bound}


def _vllm(t: Translator, data: BenchData) -> list[str]:
    """The chosen modes, and why only one kind was compared."""
    vllm = data.vllm
    if not vllm:
        return []
    taken = vllm.get("modes") or {}
    texts = [
        t(
            "bench.fact.vllm_on", **mode_words(t, mode), workload=name,
            n=sum(any(each["rates"]) for _, each in trials(vllm, name)),
        )
        for name, mode in taken.items()
    ]  # fmt: skip
    if not taken and _reached(vllm):  # one mode for all workloads
        texts.append(t("bench.fact.vllm", **mode_words(t, vllm)))
    if len(_reached(vllm)) == 1:
        texts.append(t("bench.fact.vllm_one_mode"))
    if vllm.get("reason"):
        why = t.message(Message.model_validate(vllm["reason"]))
        texts.append(t("bench.fact.vllm_why", text=why))
    return texts


def _packing(t: Translator, data: BenchData) -> list[str]:
    """Duration of packing, and arms without packed weights."""
    seconds = ranged((row.pack_s for row in data.rows), 2)
    texts = [] if seconds is None else [t("bench.fact.packed", time=seconds)]
    last = {row.arm: row.packing for row in data.rows if row.packing}
    return texts + [
        t.message(message("bench.fact.not_packed", arm=arm_name(t, arm), text=packing["reason"]))
        for arm, packing in last.items()
        if packing.get("reason")
    ]


def _variables(t: Translator, data: BenchData) -> list[str]:
    """Thread variables of the arms, grouped by equal values."""
    arms: dict[tuple[str, str], dict[str, None]] = {}
    for row in data.rows:
        if row.variables is not None:
            arms.setdefault(_threads(row), {})[arm_name(t, row.arm)] = None
    return [
        t("bench.fact.variables", arm=", ".join(names), variables=variables, cores=cores)
        for (variables, cores), names in arms.items()
    ]


def _threads(row: Row) -> tuple[str, str]:
    """Thread variables and cores of a process, without other variables of vLLM."""
    texts = [
        f"{name}={value}"
        for name, value in (row.variables or {}).items()
        if "THREADS" in name or not name.startswith("VLLM_")
    ]
    return " ".join(texts) or DASH, ", ".join(map(str, row.cores or ())) or DASH
