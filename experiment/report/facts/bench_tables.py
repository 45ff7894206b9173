"""The tables of a benchmark as cells of text, for the console, for Markdown and for its page.

What they stand on is in :mod:`experiment.report.facts.bench`, what keys of numbers begin in is in
:mod:`experiment.report.facts.bench_keys`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from experiment.bench.data import BenchData
from experiment.bench.summary import Line, lines
from experiment.bench.targets import NO_SUCH_GPU, OTHERWISE, OURS
from experiment.report.facts.bench_keys import bench_document, vllm_modes, vllm_on, workload_names
from experiment.report.facts.block_events import has_blocks
from experiment.report.facts.sourced import Teller, joined
from experiment.report.facts.texts import arm_name
from experiment.text import DASH, Translator

# How the values of a target are written.
_UNITS = {"ratio": "fixed.2", "ms": "fixed.1:ms", "s": "fixed.2:s", "share": "whole_percent"}
_SPEED = ("arm", "rate", "factor", "first_token", "rounds")
_TIMES = ("arm", "prompts", "prefill", "decode_step", "decode_requests", "decode")
_MEMORY = ("arm", "kv", "allocated", "process", "running", "preempted", "recomputed")
_ALIKE = {
    "bench.note_tokens": "equal_requests", "bench.note_first_tokens": "equal_first_tokens"
}  # fmt: skip
# Why no target is judged, of one workload or all; the others are told with the name of theirs.
_OF_MANY = (OTHERWISE.key, NO_SUCH_GPU.key)


@dataclass(frozen=True, slots=True)
class Cells:
    """A table: ``styles`` are those of rows for a console, ``left`` the columns that are words.

    The last cell of a row that is shorter than the header takes the rest of its columns. A page
    folds what comes behind ``open_rows``, under the words ``more``;
    on paper ``printed`` says where they are.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    left: tuple[int, ...] = (0,)
    styles: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    open_rows: int = 1000
    more: str = ""
    printed: str = ""


def all_tables(t: Translator, data: BenchData) -> list[Cells]:
    """A table for each workload, where a decode step goes, and the targets."""
    k = Teller(t, bench_document(data))
    found = lines(data.rows)
    tables = [
        table(k, name, [line for line in found if line.workload == name])
        for name in workload_names(data)
        for table in (_speed, _times, _memory)
    ]
    if data.vllm and data.vllm.get("probes"):
        tables.append(_vllm(k, data.vllm))
    if data.profiles:
        tables.append(_steps(k, data))
    if data.waiting:
        return [*tables, _waiting(k, data)]
    return [*tables, _targets(k, data)]


def rows_at(line: Line) -> str:
    """Key path of an arm's rows in a workload."""
    return f"rows[workload:{line.workload},arm:{line.arm}]"


def _finished(line: Line, figure: str) -> str:
    """Key path of a figure in the rounds that the arm finished."""
    return f"rows[workload:{line.workload},arm:{line.arm},status:finished].*.{figure}"


def _speed(k: Teller, name: str, mine: Sequence[Line]) -> Cells:
    t, rows = k.t, f"rows[workload:{name}]"
    return Cells(
        k.said("bench.title_speed", name=f"{rows}.0.workload", n=f"max {rows}.*.requests"),
        [t(f"bench.column.{column}") for column in _SPEED],
        [[arm_name(t, line.arm), *_speed_cells(k, line)] for line in mine],
        styles=_bold(mine),
        notes=[*_about(t, name), *_references(k, name), *_problems(k, mine)],
    )


def _about(t: Translator, workload: str) -> list[str]:
    """What a workload of ours is for."""
    key = f"bench.about_{workload.lower()}"
    return [t(key)] if t.has(key) else []


def _over(k: Teller, mine: Sequence[Line]) -> list[str]:
    """What a share of more than the whole means, where there is one."""
    rows = [row for line in mine for row in line.finished]
    shares = [share for row in rows for share in (row.prefill_share, row.decode_share)]
    return [k.t("bench.note_over")] if any(share and share > 1 for share in shares) else []


def _speed_cells(k: Teller, line: Line) -> list[str]:
    rounds = k.number(f"finished[{line.workload}][{line.arm}]", "count")
    if not line.finished:
        return [*[DASH] * (len(_SPEED) - 2), rounds]
    return [
        k.number(_finished(line, "useful_tokens_per_s"), "ranged.1"),
        k.number(f"factors[{line.workload}][{line.arm}].*", "ranged.2"),
        k.number(_finished(line, "first_token_median_s"), "ranged.2:s"),
        rounds,
    ]


def _times(k: Teller, name: str, mine: Sequence[Line]) -> Cells:
    """Where the time went, prompts and decoding apart."""
    done = [line for line in mine if line.finished]
    return Cells(
        k.said("bench.title_times", name=f"rows[workload:{name}].0.workload"),
        [k.t(f"bench.column.{column}") for column in _TIMES],
        [[arm_name(k.t, line.arm), *_times_cells(k, line)] for line in done],
        styles=_bold(done),
        notes=[k.t("bench.note_times"), *_over(k, mine)] if done else [],
    )


def _times_cells(k: Teller, line: Line) -> list[str]:
    def at(figure: str) -> str:
        return _finished(line, figure)

    return [
        k.number(at("prefill_s"), "ranged.2:s"),
        k.number(at("prefill_share"), "ranged_percent"),
        k.number(at("decode_step_s"), "ranged_ms"),
        k.number(f"median {at('decode_requests')}", "fixed.0"),
        k.number(at("decode_share"), "ranged_percent"),
    ]


def _memory(k: Teller, name: str, mine: Sequence[Line]) -> Cells:
    done = [line for line in mine if line.finished]
    rows = [row for line in done for row in line.finished]
    told = {
        "running": any(row.mean_running is None for row in rows),
        "recomputed": any(row.recomputed_tokens for row in rows),
        "process": any(row.process_peak_bytes is not None for row in rows),
        "preempted": not all(has_blocks(line.arm) for line in done),
    }
    return Cells(
        k.said("bench.title_memory", name=f"rows[workload:{name}].0.workload"),
        [k.t(f"bench.column.{column}") for column in _MEMORY],
        [[arm_name(k.t, line.arm), *_memory_cells(k, line)] for line in done],
        styles=_bold(done),
        notes=[k.t(f"bench.note_{name}") for name, holds in told.items() if holds],
    )


def _memory_cells(k: Teller, line: Line) -> list[str]:
    def middle(figure: str, kind: str) -> str:
        return k.number(f"median {_finished(line, figure)}", kind)

    return [
        middle("peak_kv_bytes", "bytes"),
        middle("peak_allocated_bytes", "bytes"),
        _process(k, line),
        middle("mean_running", "fixed.1"),
        *(
            middle(name, "fixed.0") if has_blocks(line.arm) else DASH
            for name in ("preemptions", "recomputed_tokens")
        ),
    ]


def _process(k: Teller, line: Line) -> str:
    """The most of its processes, and that of loading where it was more."""
    at = [f"median {_finished(line, f'{name}_peak_bytes')}" for name in ("process", "loading")]
    working, loading = map(k.value, at)
    most = k.number(at[0], "bytes")
    if loading is None or (working is not None and loading <= working):
        return most
    return joined(most, " (", k.number(at[1], "bytes"), ")")


def _references(k: Teller, workload: str) -> list[str]:
    """Whose tokens the others' are compared with; the rounds, where it was not always one arm."""
    at = f"references[{workload}]"
    return [
        k.said("bench.note_reference", reference=k.arm(arm), rounds=f"{at}[{arm}]")
        for arm in k.value(at)
    ]


def _bold(mine: Sequence[Line]) -> list[str]:
    return ["bold" if line.arm == OURS else "" for line in mine]


def _problems(k: Teller, mine: Sequence[Line]) -> list[str]:
    """Why dashes are dashes, whose tokens differ, and what contradicts itself."""
    notes = []
    for line in mine:
        name, at = k.arm(line.arm), rows_at(line)
        notes += [k.said("bench.note_arm", arm=name, text=f"{at}.{why}") for why in _reasons(line)]
        for key, figure in _ALIKE.items():
            least = _least_alike(line, figure)
            if least is not None:
                row = f"{at}.{least}"
                reference = k.arm(str(line.rows[least].reference))
                told = {"equal": f"{row}.{figure}", "requests": f"{row}.requests"}
                notes.append(k.said(key, arm=name, reference=reference, **told))
    return notes


def _least_alike(line: Line, figure: str) -> int | None:
    """The row with the fewest requests alike; None where all are in each, or nobody knows."""
    unequal = [
        (getattr(row, figure), place)
        for place, row in enumerate(line.rows)
        if row.status == "finished" and getattr(row, figure) not in (None, row.requests)
    ]
    return min(unequal)[1] if unequal else None


def _reasons(line: Line) -> list[str]:
    """Where in an arm's rows reasons and problems stand, each text once."""
    told = [(row.reason, f"{n}.reason") for n, row in enumerate(line.rows) if row.reason]
    told += [
        (problem, f"{n}.problems.{place}")
        for n, row in enumerate(line.rows)
        for place, problem in enumerate(row.problems)
    ]
    first: dict[str, str] = {}
    for text, where in told:
        first.setdefault(text.model_dump_json(), where)
    return list(first.values())


def _steps(k: Teller, data: BenchData) -> Cells:
    t = k.t
    keys = list(dict.fromkeys((p.workload, p.arm) for p in data.profiles))
    names = ("step_ms", "matrix_ms", "attention_ms", "other_ms", "rest_ms", "plain_step_ms")
    heads = ("step", "matrix", "attention", "other", "rest", "plain")
    rows = []
    for workload, arm in keys:
        at = f"profiles[workload:{workload},arm:{arm}]"
        head = k.said(
            "bench.in_workload", arm=k.arm(arm), workload=f"{at}.0.workload", n=f"{at}.0.requests"
        )
        rows.append([head, *[k.number(f"{at}.*.{name}", "ranged.1") for name in names]])
    return Cells(
        t("bench.title_steps"),
        [t("bench.column.arm"), *[t(f"bench.column.step_{name}") for name in heads]],
        rows,
        notes=[t("bench.note_steps")],
    )


def _waiting(k: Teller, data: BenchData) -> Cells:
    """Rates under each policy, and within each round their ratio to the library's default."""
    t = k.t
    keys = list(dict.fromkeys((w.workload, w.arm, w.policy) for w in data.waiting))
    rows = []
    for workload, arm, policy in keys:
        at = f"waiting[workload:{workload},arm:{arm},policy:{policy}]"
        cells = [
            k.number(f"{at}.*.useful_tokens_per_s", "ranged.1"),
            k.number(f"to_default[{workload}][{arm}][{policy}].*", "ranged.3"),
        ]
        rows.append([workload, arm_name(t, arm), t(f"bench.policy.{policy}"), *cells])
    names = ("workload", "arm", "policy", "rate", "to_default")
    header = [t(f"bench.column.{name}") for name in names]
    return Cells(t("bench.title_waiting"), header, rows, left=(0, 1, 2))


def _vllm(k: Teller, told: dict[str, Any]) -> Cells:
    """Every way in which vLLM was tried, on what, and which one was taken."""
    rows, reasons = [], {}
    twice = any(len(probe["rates"]) > 1 for probe in told["probes"])  # as earlier versions did
    finals: dict[str, list[dict[str, Any]]] = told.get("finals", {})
    for place, probe in enumerate(told["probes"]):
        at = f"vllm.probes.{place}"
        cells = [k.number(f"{at}.rates.{run}", "fixed.1") for run in range(2 if twice else 1)]
        places = {name: _same_way(probe, tried) for name, tried in finals.items()}
        cells += [
            k.number(f"vllm.finals.{name}.{n}.rates.*", "ranged.1") for name, n in places.items()
        ]
        bind = k.stored(f"vllm_ways.{place}.bind")
        rows.append([k.stored(f"vllm_ways.{place}.mode"), bind, *cells])
        if probe["reason"]:
            reasons[probe["reason"]["key"]] = k.stored(f"{at}.reason")
        for name, n in places.items():
            if n is not None and finals[name][n]["reason"]:
                why = f"vllm.finals.{name}.{n}.reason"
                reasons[finals[name][n]["reason"]["key"]] = k.stored(why)
    names = ("mode", "bind", *(("first_run", "second_run") if twice else ("probe",)))
    header = [*(k.t(f"bench.column.{name}") for name in names), *finals]
    taken = k.said("bench.note_vllm_taken", mode="vllm_taken.mode", bind="vllm_taken.bind")
    notes = [taken] if not finals else []
    notes += [k.said("bench.note_vllm_final", **vllm_on(name)) for name in vllm_modes(told)]
    notes += reasons.values()
    return Cells(k.t("bench.title_vllm"), header, rows, left=(0, 1), notes=notes)


def _same_way(probe: dict[str, Any], tried: list[dict[str, Any]]) -> int | None:
    """Where a way of the probe stands among those of a final."""
    way = (probe["eager"], probe["bind"])
    return next((n for n, each in enumerate(tried) if (each["eager"], each["bind"]) == way), None)


def _targets(k: Teller, data: BenchData) -> Cells:
    styles = {"met": "green", "not_met": "bold red"}
    names = ("target", "median", "spread", "wanted", "verdict")
    return Cells(
        k.t("bench.title_targets"),
        [k.t(f"bench.column.{name}") for name in names],
        [_target(k, target) for target in data.targets],
        left=(0, 4),
        styles=[styles.get(target["verdict"], "dim") for target in data.targets],
        notes=_why_not(k, data),
    )


def _target(k: Teller, target: dict[str, Any]) -> list[str]:
    at, kind = f"targets[{target['id']}]", _UNITS[target["unit"]]
    sign = "≥ " if target["kind"] == "at_least" else "≤ "
    aim = k.said("bench.aim", value=f"#{kind} {at}.aim") if target["aim"] else ""
    return [
        k.t(f"bench.target.{target['id']}"),
        k.number(f"{at}.median", kind),
        _spread_of(k, target, at, kind),
        joined(sign, k.number(f"{at}.target", kind), aim),
        k.t(f"bench.verdict.{target['verdict']}"),
    ]


def _spread_of(k: Teller, target: dict[str, Any], at: str, kind: str) -> str:
    """One value has no spread; rounds without the figure are told."""
    count, rounds = len(target["values"]), target.get("rounds", len(target["values"]))
    if not count:
        return DASH
    many = f"length {at}.values"
    told = (
        k.number(many, "count")
        if rounds <= count
        else k.said("bench.of_rounds", n=many, rounds=f"{at}.rounds")
    )
    if count == 1:
        return joined(DASH, " (", told, ")")
    low, high = (k.number(f"{at}.{end}", kind) for end in ("lowest", "highest"))
    return joined(low, " … ", high, " (", told, ")")


def _why_not(k: Teller, data: BenchData) -> list[str]:
    same = any(target["id"] == "a_no_matrix" and target["values"] for target in data.targets)
    notes = [k.t("bench.note_no_matrix")] if same else []
    of_many = dict.fromkeys(why for target in data.targets if (why := _why_none(target)))
    notes += [k.t(key) for key in of_many]
    return notes + [note for target in data.targets for note in _of_target(k, target)]


def _why_none(target: dict[str, Any]) -> str | None:
    """Why many targets have no verdict; files of before this was said knew one reason."""
    if target["verdict"] != "not_judged":
        return None
    if "unjudged" not in target:
        return OTHERWISE.key
    key = (target["unjudged"] or {}).get("key")
    return key if key in _OF_MANY else None


def _of_target(k: Teller, target: dict[str, Any]) -> list[str]:
    """Why rounds lack its figure, and why it alone is not judged."""
    at, told = f"targets[{target['id']}]", {"target": f"@bench.target.{target['id']}"}
    notes, why = [], target.get("unjudged")
    if target["reason"] is not None and not target["values"]:
        notes.append(k.said("bench.note_target", **told, text=f"{at}.reason"))
    elif target["reason"] is not None:
        few = target["verdict"] == "not_judged" and why is None
        rounds = {"n": f"length {at}.values", "rounds": f"{at}.rounds"}
        key = "bench.note_target_few" if few else "bench.note_target_some"
        notes.append(k.said(key, **told, **rounds, text=f"{at}.reason"))
    if why is not None and why["key"] not in _OF_MANY:
        notes.append(k.said("bench.note_target_open", **told, text=f"{at}.unjudged"))
    return notes
