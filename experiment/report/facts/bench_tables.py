"""The tables of a benchmark as cells of text, for the console, for Markdown and for its page.

What they stand on, and what keys of numbers begin in, is in :mod:`experiment.report.facts.bench`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from experiment.bench.data import BenchData
from experiment.bench.summary import OURS, Line, lines
from experiment.report.facts.bench import bench_document, workload_names
from experiment.report.facts.block_events import has_blocks
from experiment.report.facts.sourced import Teller, joined
from experiment.report.facts.texts import arm_name
from experiment.text import DASH, Translator

_SPEED = ("arm", "rate", "factor", "first_token", "rounds")
_TIMES = ("arm", "prompts", "prefill", "decode_step", "decode_requests", "decode")
_MEMORY = ("arm", "kv", "allocated", "process", "running", "preempted", "recomputed")
_ALIKE = {
    "bench.note_tokens": "equal_requests", "bench.note_first_tokens": "equal_first_tokens"
}  # fmt: skip


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
    """Three tables for each workload, vLLM's modes, and where a decode step goes."""
    k = Teller(t, bench_document(data))
    found = lines(data.rows)
    tables = [
        table(k, name, [line for line in found if line.workload == name])
        for name in workload_names(data)
        for table in (_speed, _times, _memory)
    ]
    if k.value("vllm_tried.modes"):
        tables.append(_vllm(k))
    if data.profiles:
        tables.append(_steps(k, data))
    return tables


def rows_at(line: Line) -> str:
    """Key path of an arm's rows in a workload."""
    return f"rows[workload:{line.workload},arm:{line.arm}]"


def _of(line: Line, figure: str) -> str:
    """Key path of a figure of an arm in a workload."""
    return f"lines[{line.workload}][{line.arm}].{figure}"


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
    rounds = k.number(_of(line, "rounds"), "count")
    if not line.finished:
        return [*[DASH] * (len(_SPEED) - 2), rounds]
    return [
        k.number(_of(line, "useful_tokens_per_s"), "ranged.1"),
        k.number(_of(line, "factors"), "ranged.2"),
        k.number(_of(line, "first_token_median_s"), "ranged.2:s"),
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
    kinds = {
        "prefill_s": "ranged.2:s", "prefill_share": "ranged_percent", "decode_step_s": "ranged_ms",
        "decode_requests": "fixed.0", "decode_share": "ranged_percent",
    }  # fmt: skip
    return [k.number(_of(line, figure), kind) for figure, kind in kinds.items()]


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
    return [
        k.number(_of(line, "peak_kv_bytes"), "bytes"),
        k.number(_of(line, "peak_allocated_bytes"), "bytes"),
        _process(k, line),
        k.number(_of(line, "mean_running"), "fixed.1"),
        *(
            k.number(_of(line, name), "fixed.0") if has_blocks(line.arm) else DASH
            for name in ("preemptions", "recomputed_tokens")
        ),
    ]


def _process(k: Teller, line: Line) -> str:
    """The most of its processes, and that of loading where it was more."""
    at = [_of(line, f"{name}_peak_bytes") for name in ("process", "loading")]
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
    notes, differ = [], False
    for line in mine:
        name, at = k.arm(line.arm), rows_at(line)
        notes += [k.said("bench.note_arm", arm=name, text=f"{at}.{why}") for why in _reasons(line)]
        for key, figure in _ALIKE.items():
            least = _least_alike(line, figure)
            if least is not None:
                differ = True
                row = f"{at}.{least}"
                reference = k.arm(str(line.rows[least].reference))
                told = {"equal": f"{row}.{figure}", "requests": f"{row}.requests"}
                notes.append(k.said(key, arm=name, reference=reference, **told))
    return [*notes, k.t("bench.note_no_factor")] if differ else notes


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


def _vllm(k: Teller) -> Cells:
    """Each mode of vLLM that was tried, on what, and what it reached."""
    on, tried = k.value("vllm_tried.on"), "vllm_tried.modes"
    rows = []
    for place in range(len(k.value(tried))):
        at = f"{tried}.{place}"
        rates = [k.number(f"{at}.rates[{name}]", "ranged.1") for name in on]
        rows.append([k.stored(f"{at}.mode"), k.stored(f"{at}.bind"), *rates])
    header = [k.t(f"bench.column.{name}") for name in ("mode", "bind")]
    header += [k.t("bench.column.probe") if name == "probe" else name for name in on]
    reasons = range(len(k.value("vllm_tried.reasons")))
    notes = [k.stored(f"vllm_tried.reasons.{place}") for place in reasons]
    return Cells(k.t("bench.title_vllm"), header, rows, left=(0, 1), notes=notes)
