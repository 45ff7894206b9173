"""The tables of a benchmark as cells of text, for the console and for Markdown alike.

What they stand on is in :mod:`experiment.report.bench_facts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from experiment.bench.data import BenchData
from experiment.bench.profiles import Profile
from experiment.bench.summary import Line, Spread, lines, spread
from experiment.bench.targets import OURS
from experiment.i18n import DASH, Translator, format_bytes
from experiment.messages import Message
from experiment.report.texts import arm_name

# What stands behind a value, its digits, and what it is multiplied with.
_UNITS = {"ratio": ("", 2, 1), "ms": (" ms", 1, 1), "s": (" s", 2, 1), "share": (" %", 0, 100)}
_SPEED = ("arm", "rate", "factor", "first_token", "prefill", "decode", "rounds")
_MEMORY = ("arm", "kv", "allocated", "process", "running", "preempted", "recomputed")


@dataclass(frozen=True, slots=True)
class Cells:
    """A table: ``styles`` are those of rows for a console, ``left`` the columns that are words."""

    title: str
    header: list[str]
    rows: list[list[str]]
    left: tuple[int, ...] = (0,)
    styles: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def all_tables(t: Translator, data: BenchData) -> list[Cells]:
    """A table for each workload, where a decode step goes, and the targets."""
    found = lines(data.rows)
    tables = [
        table(t, name, [line for line in found if line.workload == name])
        for name in workload_names(data)
        for table in (_speed, _memory)
    ]
    if data.vllm and data.vllm.get("probes"):
        tables.append(_vllm(t, data.vllm))
    if data.profiles:
        tables.append(_steps(t, data))
    if data.waiting:
        return [*tables, _waiting(t, data)]
    return [*tables, _targets(t, data)]


def workload_names(data: BenchData) -> list[str]:
    """Those that were run."""
    return list(dict.fromkeys(row.workload for row in data.rows))


def _speed(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    known = [row.requests for line in mine for row in line.rows if row.requests is not None]
    return Cells(
        t("bench.title_speed", name=name, n=max(known, default=None)),
        [t(f"bench.column.{column}") for column in _SPEED],
        [[arm_name(t, line.arm), *_speed_cells(line)] for line in mine],
        styles=_bold(mine),
        notes=[*_references(t, mine), *_problems(t, mine)],
    )


def _speed_cells(line: Line) -> list[str]:
    if not line.finished:
        return [*[DASH] * (len(_SPEED) - 2), "0"]
    return [
        ranged(line.spread("useful_tokens_per_s"), 1),
        DASH if line.arm == OURS else ranged(line.factor, 2),
        _number(line.spread("first_token_median_s").median, 2, " s"),
        *[_percent(line.spread(f"{kind}_share").median) for kind in ("prefill", "decode")],
        str(len(line.finished)),
    ]


def _memory(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    done = [line for line in mine if line.finished]
    rows = [row for line in done for row in line.finished]
    told = {
        "running": any(row.mean_running is None for row in rows),
        "recomputed": any(row.recomputed_tokens for row in rows),
        "process": any(row.process_peak_bytes is not None for row in rows),
    }
    return Cells(
        t("bench.title_memory", name=name),
        [t(f"bench.column.{column}") for column in _MEMORY],
        [[arm_name(t, line.arm), *_memory_cells(line)] for line in done],
        styles=_bold(done),
        notes=[t(f"bench.note_{name}") for name, holds in told.items() if holds],
    )


def _memory_cells(line: Line) -> list[str]:
    sizes = [line.spread(name).median for name in ("peak_kv_bytes", "peak_allocated_bytes")]
    return [
        *[format_bytes(size) for size in sizes],
        _process(line),
        _number(line.spread("mean_running").median, 1),
        _number(line.spread("preemptions").median, 0),
        _number(line.spread("recomputed_tokens").median, 0),
    ]


def _process(line: Line) -> str:
    """The most of its processes, and that of loading where it was more."""
    working, loading = (
        line.spread(f"{name}_peak_bytes").median for name in ("process", "loading")
    )  # fmt: skip
    more = loading is not None and (working is None or loading > working)
    return format_bytes(working) + (f" ({format_bytes(loading)})" if more else "")


def _references(t: Translator, mine: Sequence[Line]) -> list[str]:
    """Whose tokens the others' are compared with; the rounds, where it was not always one arm."""
    rounds: dict[str, set[int]] = {}
    for row in (row for line in mine for row in line.finished):
        if row.reference is not None:
            rounds.setdefault(row.reference, set()).add(row.round + 1)
    return [
        t(
            "bench.note_reference",
            reference=arm_name(t, arm),
            rounds=t("bench.in_rounds", rounds=", ".join(map(str, sorted(some))))
            if len(rounds) > 1
            else "",
        )
        for arm, some in rounds.items()
    ]


def _bold(mine: Sequence[Line]) -> list[str]:
    return ["bold" if line.arm == OURS else "" for line in mine]


def _problems(t: Translator, mine: Sequence[Line]) -> list[str]:
    """Why dashes are dashes, whose tokens differ, and what contradicts itself."""
    notes = []
    for line in mine:
        name = arm_name(t, line.arm)
        reasons = [row.reason for row in line.rows if row.reason is not None]
        reasons += [problem for row in line.rows for problem in row.problems]
        each_once = {reason.model_dump_json(): reason for reason in reasons}.values()
        notes += [t("bench.note_arm", arm=name, text=t.message(r)) for r in each_once]
        known = [row for row in line.finished if row.equal_requests is not None]
        unequal = [row for row in known if row.equal_requests != row.requests]
        if unequal:
            least = min(unequal, key=lambda row: row.equal_requests or 0)
            notes.append(
                t(
                    "bench.note_tokens", arm=name, equal=least.equal_requests,
                    requests=least.requests, reference=arm_name(t, str(least.reference)),
                )
            )  # fmt: skip
    return notes


def _steps(t: Translator, data: BenchData) -> Cells:
    keys = list(dict.fromkeys((p.workload, p.arm) for p in data.profiles))
    names = ("step", "matrix", "attention", "other", "rest")
    header = [t("bench.column.arm"), *[t(f"bench.column.step_{n}") for n in (*names, "plain")]]
    return Cells(
        t("bench.title_steps"),
        header,
        [
            [
                t("bench.in_workload", arm=arm_name(t, arm), workload=workload,
                  n=_of(data, workload, arm)[0].requests),
                *[_milliseconds(_of(data, workload, arm), f"{name}_ms") for name in names],
                _milliseconds(_of(data, workload, arm), "plain_step_ms"),
            ]
            for workload, arm in keys
        ],
        notes=[t("bench.note_steps")],
    )  # fmt: skip


def _waiting(t: Translator, data: BenchData) -> Cells:
    """Rates under each policy, and within each round their ratio to the library's default."""
    rates = {(w.workload, w.arm, w.round, w.policy): w.useful_tokens_per_s for w in data.waiting}
    keys = list(dict.fromkeys((w.workload, w.arm, w.policy) for w in data.waiting))
    rows = []
    for workload, arm, policy in keys:
        mine = {
            n: rate for (w, a, n, p), rate in rates.items() if (w, a, p) == (workload, arm, policy)
        }
        base = {n: rates.get((workload, arm, n, "default")) for n in mine}
        factors = [rate / below for n, rate in mine.items() if rate and (below := base[n])]
        cells = [ranged(spread(mine.values()), 1), ranged(spread(factors), 3)]
        rows.append([workload, arm_name(t, arm), t(f"bench.policy.{policy}"), *cells])
    names = ("workload", "arm", "policy", "rate", "to_default")
    header = [t(f"bench.column.{name}") for name in names]
    return Cells(t("bench.title_waiting"), header, rows, left=(0, 1, 2))


def _vllm(t: Translator, told: dict[str, Any]) -> Cells:
    """Every way in which vLLM was tried, and which one was taken."""
    probes: list[dict[str, Any]] = told["probes"]
    rows = []
    for probe in probes:
        first, second = [*probe["rates"], None, None][:2]
        cells = [_number(first, 1), _number(second, 1)]
        rows.append([vllm_mode(t, probe["eager"]), vllm_bind(t, probe["bind"]), *cells])
    reasons = {p["reason"]["key"]: p["reason"] for p in probes if p["reason"]}.values()
    mode, bind = vllm_mode(t, told["eager"]), vllm_bind(t, told["bind"])
    notes = [t("bench.note_vllm_taken", mode=mode, bind=bind)]
    notes += [t.message(Message.model_validate(reason)) for reason in reasons]
    header = [t(f"bench.column.{name}") for name in ("mode", "bind", "first_run", "second_run")]
    return Cells(t("bench.title_vllm"), header, rows, left=(0, 1), notes=notes)


def vllm_mode(t: Translator, eager: bool) -> str:
    """Eager or compiled."""
    return t("bench.eager" if eager else "bench.compiled")


def vllm_bind(t: Translator, bind: str) -> str:
    """How its threads are bound."""
    named = t.has(f"bench.bind.{bind}")
    return t(f"bench.bind.{bind}") if named else t("bench.bind.cores", cores=bind)


def _of(data: BenchData, workload: str, arm: str) -> list[Profile]:
    return [p for p in data.profiles if (p.workload, p.arm) == (workload, arm)]


def _milliseconds(profiles: Sequence[Profile], name: str) -> str:
    return ranged(spread(getattr(p, name) for p in profiles), 1)


def _targets(t: Translator, data: BenchData) -> Cells:
    styles = {"met": "green", "not_met": "bold red"}
    return Cells(
        t("bench.title_targets"),
        [t(f"bench.column.{name}") for name in ("target", "median", "spread", "wanted", "verdict")],
        [_target(t, target) for target in data.targets],
        left=(0, 4),
        styles=[styles.get(target["verdict"], "dim") for target in data.targets],
        notes=_why_not(t, data),
    )


def _target(t: Translator, target: dict[str, Any]) -> list[str]:
    unit, digits, factor = _UNITS[target["unit"]]

    def shown(name: str) -> str:
        value = target[name]
        return _number(None if value is None else value * factor, digits, unit)

    sign = "≥ " if target["kind"] == "at_least" else "≤ "
    aim = t("bench.aim", value=shown("aim")) if target["aim"] else ""
    return [
        t(f"bench.target.{target['id']}"),
        shown("median"),
        _spread_of(t, shown("lowest"), shown("highest"), target),
        f"{sign}{shown('target')}{aim}",
        t(f"bench.verdict.{target['verdict']}"),
    ]


def _spread_of(t: Translator, low: str, high: str, target: dict[str, Any]) -> str:
    """One value has no spread; rounds without the figure are told."""
    count, rounds = len(target["values"]), target.get("rounds", len(target["values"]))
    if not count:
        return DASH
    told = str(count) if rounds <= count else t("bench.of_rounds", n=count, rounds=rounds)
    return f"{low} … {high} ({told})" if count > 1 else f"{DASH} ({told})"


def _why_not(t: Translator, data: BenchData) -> list[str]:
    same = any(target["id"] == "a_no_matrix" and target["values"] for target in data.targets)
    notes = [t("bench.note_no_matrix")] if same else []
    if any(target["verdict"] == "not_judged" for target in data.targets):
        return [*notes, t("bench.note_not_judged")]
    missing = [target for target in data.targets if target["reason"] is not None]
    return notes + [
        t("bench.note_target", target=t(f"bench.target.{target['id']}"),
          text=t.message(Message.model_validate(target["reason"])))
        for target in missing
    ]  # fmt: skip


def ranged(found: Spread, digits: int) -> str:
    """The median, with the smallest and the largest where there are several."""
    if found.median is None:
        return DASH
    middle = f"{found.median:,.{digits}f}"
    if found.count < 2:
        return middle
    return f"{middle} ({found.lowest:,.{digits}f} … {found.highest:,.{digits}f})"


def _number(value: float | None, digits: int, suffix: str = "") -> str:
    return DASH if value is None else f"{value:,.{digits}f}{suffix}"


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{value * 100:.0f} %"
