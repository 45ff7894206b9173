"""What a benchmark's page is made of: engine.json, what is worked out of it, and its sentences.

lines[A][paged].useful_tokens_per_s    of every round that the arm finished
lines[A][slabs].factors                paged ÷ this arm, of each round that has both
rows[workload:A,arm:paged].0.reason    a row of the file itself
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from statistics import median
from typing import Any

from experiment.bench.data import BenchData
from experiment.bench.rows import Row
from experiment.bench.summary import Line, lines
from experiment.report.facts.sourced import Teller
from experiment.report.facts.texts import arm_name
from experiment.text import DASH, Translator
from experiment.text.messages import message

_VERSIONS = ("python", "torch", "transformers", "numba")
_MODEL = ("name", "dtype", "source")
_BUSY = "warnings[key:bench.busy].*.params.cores"
_ANYWHERE = "all"  # one mode of vLLM for all workloads
_BINDS, _CORES = ("auto", "nobind"), "bench.bind.cores"
# Figures of a line: shown with their spread, and by their median alone.
_SPREAD = (
    "useful_tokens_per_s", "first_token_median_s", "prefill_s", "prefill_share", "decode_step_s",
    "decode_share",
)  # fmt: skip
_MIDDLE = (
    "decode_requests", "peak_kv_bytes", "peak_allocated_bytes", "process_peak_bytes",
    "loading_peak_bytes", "mean_running", "preemptions", "recomputed_tokens",
)  # fmt: skip


def bench_document(data: BenchData) -> dict[str, Any]:
    """The file, with the medians, ratios, counts and words that the page shows of it."""
    names = workload_names(data)
    done = {name: sum(each.workload == name for each in data.rounds) for name in names}
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for line in lines(data.rows):
        found[line.workload][line.arm] = _line(line)
    taken = (data.vllm or {}).get("modes") or {}
    if data.vllm and not taken and _reached(data.vllm):
        taken = {_ANYWHERE: data.vllm}
    return data.model_dump(mode="json") | {
        "began": f"{datetime.fromisoformat(data.started):%Y-%m-%d %H:%M}",
        "lines": found,
        "references": {name: _references(data, name) for name in names},
        "limits": _limits(data),
        "threads": [_threads(row) for row in data.rows],
        "vllm_modes": {
            name: _words(bool(mode["eager"]), str(mode["bind"]))
            | {"of": sum(any(each["rates"]) for _, each in _trials(data.vllm, name))}
            for name, mode in taken.items()
        },
        "vllm_tried": _tried(data.vllm),
        "rounds_done": ", ".join(f"{name} {count}" for name, count in done.items()) or DASH,
    }


def workload_names(data: BenchData) -> list[str]:
    """Those that were run."""
    return list(dict.fromkeys(row.workload for row in data.rows))


def _line(line: Line) -> dict[str, Any]:
    known = {
        name: [value for row in line.finished if (value := getattr(row, name)) is not None]
        for name in (*_SPREAD, *_MIDDLE)
    }
    middle = {name: median(known[name]) if known[name] else None for name in _MIDDLE}
    return known | middle | {"rounds": len(line.finished), "factors": line.factors}


def _references(data: BenchData, workload: str) -> dict[str, Any]:
    """The arms that tokens were compared with, in which rounds; nothing where it was one arm."""
    rounds: dict[str, set[int]] = {}
    for row in data.rows:
        if row.workload == workload and row.status == "finished" and row.reference is not None:
            rounds.setdefault(row.reference, set()).add(row.round + 1)
    if len(rounds) < 2:
        return dict.fromkeys(rounds, "")
    return {
        arm: message("bench.in_rounds", rounds=", ".join(map(str, sorted(some)))).model_dump()
        for arm, some in rounds.items()
    }


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


def _trials(vllm: Mapping[str, Any] | None, on: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Trials of vLLM's modes by workload; older versions tried them on a short probe before."""
    told = vllm or {}
    for name, trials in ({"probe": told.get("probes", ())} | told.get("finals", {})).items():
        if on in ("", name):
            yield from ((name, each) for each in trials)


def _reached(vllm: Mapping[str, Any]) -> set[bool]:
    """Whether an eager mode gave a rate, and whether a compiled one did."""
    return {bool(each["eager"]) for _, each in _trials(vllm) if any(each["rates"])}


def _tried(vllm: Mapping[str, Any] | None) -> dict[str, Any]:
    """Each mode with its rates by workload, and why some have none."""
    modes: dict[tuple[bool, str], dict[str, Any]] = {}
    reasons: dict[str, Any] = {}
    for name, each in _trials(vllm):
        way = bool(each["eager"]), str(each["bind"])
        modes.setdefault(way, _words(*way) | {"rates": {}})["rates"][name] = each["rates"]
        if each["reason"]:
            reasons[each["reason"]["key"]] = each["reason"]
    names = dict.fromkeys(name for name, _ in _trials(vllm))
    return {"on": list(names), "modes": list(modes.values()), "reasons": list(reasons.values())}


def _words(eager: bool, bind: str) -> dict[str, Any]:
    """A mode of vLLM as texts."""
    bound = message(f"bench.bind.{bind}") if bind in _BINDS else message(_CORES, cores=bind)
    mode = message("bench.eager" if eager else "bench.compiled")
    return {"mode": mode.model_dump(), "bind": bound.model_dump()}


def facts(t: Translator, data: BenchData) -> list[str]:
    """What the figures stand on, a sentence each."""
    return [*basis(t, data), *conditions(t, data)]


def basis(t: Translator, data: BenchData) -> list[str]:
    """What nobody should read the figures without: machine, model, rounds, what disturbed them."""
    k = Teller(t, bench_document(data))
    cores = [f"machine.cpu.{name}_cores" for name in ("usable", "logical")]
    told = [
        k.said(
            "bench.fact.machine", name="machine.device_name", threads="settings.threads",
            date="began", cores=cores[0] if k.value(cores[0]) else cores[1],
        ),
        k.said("bench.fact.model", **{name: f"model.{name}" for name in _MODEL}),
        k.said("bench.fact.versions", **{name: f"versions.{name}" for name in _VERSIONS}),
        k.said("bench.fact.rounds", rounds="rounds_done", time="seconds"),
    ]  # fmt: skip
    if k.value(f"length {_BUSY}"):
        told.append(k.said("bench.busy_arms", n=f"length {_BUSY}", cores=f"max {_BUSY}"))
    if data.status != "complete":
        told.append(t("bench.fact.broken_off"))
    return told


def conditions(t: Translator, data: BenchData) -> list[str]:
    """What else was set, found and left out."""
    k = Teller(t, bench_document(data))
    told = []
    if k.value("limits.read"):
        rates = {"read": "#ranged.1 limits.read", "rate": "#ranged.0 limits.rate"}
        told.append(k.said("bench.fact.limits", **rates))
    told += [
        *_vllm(k, data),
        k.said("bench.fact.load", average="machine.load_average", cores="machine.others_cores"),
        *_packing(k, data),
        *_variables(k, data),
    ]
    if data.settings.get("poisoned") is False:
        told.append(t("bench.fact.no_poison"))
    for place, each in enumerate(data.left_out):
        at = f"left_out.{place}"
        arm, workload = k.arm(each.arm), f"{at}.workload"
        told.append(k.said("bench.left_out", arm=arm, workload=workload, text=f"{at}.reason"))
    return told


def _vllm(k: Teller, data: BenchData) -> list[str]:
    """The modes that were taken; that only one kind was compared, and why."""
    told = []
    for name in k.value("vllm_modes"):
        at = f"vllm_modes.{name}"
        mode = {"mode": f"{at}.mode", "bind": f"{at}.bind"}
        if name == _ANYWHERE:
            told.append(k.said("bench.fact.vllm", **mode))
        else:
            on = {"workload": f"'{name}", "n": f"{at}.of"}
            told.append(k.said("bench.fact.vllm_on", **mode, **on))
    if data.vllm and len(_reached(data.vllm)) == 1:
        told.append(k.t("bench.fact.vllm_one_mode"))
    if data.vllm and data.vllm.get("reason"):
        told.append(k.said("bench.fact.vllm_why", text="vllm.reason"))
    return told


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


def _variables(k: Teller, data: BenchData) -> list[str]:
    """Variables of each arm's thread pools; arms that had the same stand together."""
    arms: dict[int, dict[str, None]] = {}
    settings = k.value("threads")
    for place, row in enumerate(data.rows):
        if row.variables is not None:
            first = settings.index(settings[place])
            arms.setdefault(first, {})[arm_name(k.t, row.arm)] = None
    return [
        k.said(
            "bench.fact.variables", arm=f"'{', '.join(names)}",
            variables=f"threads.{place}.variables", cores=f"threads.{place}.cores",
        )
        for place, names in arms.items()
    ]  # fmt: skip
