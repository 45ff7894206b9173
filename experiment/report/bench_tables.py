"""The tables of a benchmark as cells of text, for the console and for Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from experiment.bench.data import BenchData
from experiment.bench.rows import Profile
from experiment.bench.summary import Line, Spread, lines, spread
from experiment.bench.targets import OURS
from experiment.i18n import DASH, Translator, format_bytes
from experiment.messages import Message
from experiment.report.texts import arm_name

_UNITS = {"ratio": ("", 2), "ms": (" ms", 1), "s": (" s", 2)}
_SPEED = ("arm", "rate", "factor", "first_token", "prefill", "decode", "rounds")
_MEMORY = ("arm", "kv", "allocated", "running", "preempted", "recomputed")


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
        for name in _names(data)
        for table in (_speed, _memory)
    ]
    if data.profiles:
        tables.append(_steps(t, data))
    if data.waiting:
        return [*tables, _waiting(t, data)]
    return [*tables, _targets(t, data)]


def facts(t: Translator, data: BenchData) -> list[str]:
    """What the figures stand on, a sentence each."""
    cpu = data.machine.get("cpu", {})
    settings, model = data.settings, data.model
    told = [
        t(
            "bench.fact.machine", name=data.machine.get("device_name"),
            cores=cpu.get("usable_cores") or cpu.get("logical_cores"),
            threads=settings.get("threads"), date=data.started,
        ),
        t("bench.fact.model", **{name: model.get(name) for name in ("name", "dtype", "source")}),
        t("bench.fact.versions", **{n: data.versions.get(n) for n in _VERSIONS}),
        _limits(t, data),
        _vllm(t, data),
        t("bench.fact.load", average=data.machine.get("load_average"),
          cores=data.machine.get("others_cores")),
    ]  # fmt: skip
    told += [_left_out(t, each) for each in data.left_out]
    busy = [w.params["cores"] for w in data.warnings if w.key == "bench.busy"]
    if busy:
        told.append(t("bench.busy_arms", n=len(busy), cores=max(busy)))
    rounds = {name: sum(r.workload == name for r in data.rounds) for name in _names(data)}
    done = ", ".join(f"{name} {count}" for name, count in rounds.items())
    told.append(t("bench.fact.rounds", rounds=done or DASH, time=data.seconds))
    return [each for each in told if each]


_VERSIONS = ("python", "torch", "transformers", "numba")


def _names(data: BenchData) -> list[str]:
    return list(dict.fromkeys(row.workload for row in data.rows))


def _speed(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    requests = max((row.requests or 0 for line in mine for row in line.rows), default=0)
    return Cells(
        t("bench.title_speed", name=name, n=requests),
        [t(f"bench.column.{column}") for column in _SPEED],
        [[arm_name(t, line.arm), *_speed_cells(line)] for line in mine],
        styles=_bold(mine),
        notes=_problems(t, mine),
    )


def _speed_cells(line: Line) -> list[str]:
    if not line.finished:
        return [*[DASH] * (len(_SPEED) - 2), "0"]
    return [
        _ranged(line.spread("useful_tokens_per_s"), 1),
        DASH if line.arm == OURS else _ranged(line.factor, 2),
        _number(line.spread("first_token_median_s").median, 2, " s"),
        *[_percent(line.spread(f"{kind}_share").median) for kind in ("prefill", "decode")],
        str(len(line.finished)),
    ]


def _memory(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    done = [line for line in mine if line.finished]
    nobody = any(row.mean_running is None for line in done for row in line.finished)
    return Cells(
        t("bench.title_memory", name=name),
        [t(f"bench.column.{column}") for column in _MEMORY],
        [[arm_name(t, line.arm), *_memory_cells(line)] for line in done],
        styles=_bold(done),
        notes=[t("bench.note_running")] if nobody else [],
    )


def _memory_cells(line: Line) -> list[str]:
    sizes = [line.spread(name).median for name in ("peak_kv_bytes", "peak_allocated_bytes")]
    return [
        *[format_bytes(size) for size in sizes],
        _number(line.spread("mean_running").median, 1),
        _number(line.spread("preemptions").median, 0),
        _number(line.spread("recomputed_tokens").median, 0),
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
        unequal = [r for r in line.finished if r.equal_requests != r.requests]
        if unequal:
            least = min(row.equal_requests or 0 for row in unequal)
            notes.append(
                t("bench.note_tokens", arm=name, equal=least, requests=unequal[0].requests)
            )
    return notes


def _steps(t: Translator, data: BenchData) -> Cells:
    keys = list(dict.fromkeys((p.workload, p.arm) for p in data.profiles))
    names = ("step", "matrix", "attention", "other", "rest")
    return Cells(
        t("bench.title_steps"),
        [t("bench.column.arm"), *[t(f"bench.column.step_{name}") for name in names]],
        [
            [
                t("bench.in_workload", arm=arm_name(t, arm), workload=workload,
                  n=_of(data, workload, arm)[0].requests),
                *[_milliseconds(_of(data, workload, arm), name) for name in names],
            ]
            for workload, arm in keys
        ],
        notes=[t("bench.note_steps")],
    )  # fmt: skip


def _waiting(t: Translator, data: BenchData) -> Cells:
    """Rates under each policy, and within each round their ratio to the library's default."""
    rates = {(w.workload, w.round, w.policy): w.useful_tokens_per_s for w in data.waiting}
    keys = list(dict.fromkeys((w.workload, w.policy) for w in data.waiting))
    rows = []
    for workload, policy in keys:
        mine = {n: rate for (w, n, p), rate in rates.items() if (w, p) == (workload, policy)}
        base = {n: rates.get((workload, n, "default")) for n in mine}
        factors = [rate / below for n, rate in mine.items() if rate and (below := base[n])]
        cells = [_ranged(spread(mine.values()), 1), _ranged(spread(factors), 3)]
        rows.append([workload, t(f"bench.policy.{policy}"), *cells])
    header = [t(f"bench.column.{name}") for name in ("workload", "policy", "rate", "to_default")]
    return Cells(t("bench.title_waiting"), header, rows, left=(0, 1))


def _of(data: BenchData, workload: str, arm: str) -> list[Profile]:
    return [p for p in data.profiles if (p.workload, p.arm) == (workload, arm)]


def _milliseconds(profiles: Sequence[Profile], name: str) -> str:
    return _ranged(spread(getattr(p, f"{name}_ms") for p in profiles), 1)


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
    unit, digits = _UNITS[target["unit"]]
    low, high = (_number(target[name], digits, unit) for name in ("lowest", "highest"))
    wanted = _number(target["target"], digits, unit)
    sign = "≥ " if target["kind"] == "at_least" else "≤ "
    aim = t("bench.aim", value=_number(target["aim"], digits, unit)) if target["aim"] else ""
    return [
        t(f"bench.target.{target['id']}"),
        _number(target["median"], digits, unit),
        _spread_of(low, high, len(target["values"])),
        f"{sign}{wanted}{aim}",
        t(f"bench.verdict.{target['verdict']}"),
    ]


def _spread_of(low: str, high: str, count: int) -> str:
    """One value has no spread."""
    if not count:
        return DASH
    return f"{low} … {high} ({count})" if count > 1 else f"{DASH} (1)"


def _why_not(t: Translator, data: BenchData) -> list[str]:
    if all(target["verdict"] != "not_judged" for target in data.targets):
        missing = [target for target in data.targets if target["reason"] is not None]
    else:
        return [t("bench.note_not_judged")]
    return [
        t("bench.note_target", target=t(f"bench.target.{target['id']}"),
          text=t.message(Message.model_validate(target["reason"])))
        for target in missing
    ]  # fmt: skip


def _limits(t: Translator, data: BenchData) -> str:
    limits = [each.limits for each in data.rounds if each.limits]
    if not limits:
        return ""
    read = spread(each["read_bytes_per_s"] / 1e9 for each in limits)
    rate = spread(each["flops_per_s"] / 1e9 for each in limits)
    return t("bench.fact.limits", read=_ranged(read, 1), rate=_ranged(rate, 0))


def _vllm(t: Translator, data: BenchData) -> str:
    told = data.vllm
    if told is None:
        return ""
    if told.get("reason") and told["eager_rate"] is None:
        return t("bench.fact.vllm_why", text=t.message(Message.model_validate(told["reason"])))
    mode = t("bench.eager" if told["eager"] else "bench.compiled")
    return t("bench.fact.vllm", mode=mode, eager=told["eager_rate"], compiled=told["compiled_rate"])


def _left_out(t: Translator, each: Any) -> str:
    name = arm_name(t, each.arm)
    return t("bench.left_out", arm=name, workload=each.workload, text=t.message(each.reason))


def _ranged(found: Spread, digits: int) -> str:
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
