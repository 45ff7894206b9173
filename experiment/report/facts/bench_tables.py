"""Tables of a benchmark as cells of text, for console, Markdown and page.

Their conditions are in :mod:`experiment.report.facts.bench`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from experiment.analysis.metrics import METRICS
from experiment.bench.data import BenchData
from experiment.bench.rows import Row
from experiment.bench.summary import OURS, Line, lines
from experiment.report.facts.arm_figures import has_blocks
from experiment.report.facts.bench import mode_words, trials, workload_names
from experiment.report.facts.page_text import Cells
from experiment.report.facts.texts import arm_name
from experiment.report.facts.values import fixed, ranged
from experiment.text import DASH, Translator, format_bytes
from experiment.text.messages import Message

# Columns after the arm: metrics and others.
_SPEED = ("useful_tokens_per_s", "factor", "first_token_median_s", "rounds")
_TIMES = ("prefill_s", "prefill_share", "decode_step_s", "decode_requests", "decode_share")
_MEMORY = (
    "kv_bytes", "allocated_peak_bytes", "process_peak", "running_while_waiting", "preemptions",
    "recomputed_tokens",
)  # fmt: skip
_ALIKE = {
    "bench.note_tokens": "equal_requests", "bench.note_first_tokens": "equal_first_tokens"
}  # fmt: skip


def all_tables(t: Translator, data: BenchData) -> list[Cells]:
    """Three tables for each workload, vLLM's modes, and profiles of decode steps."""
    tables = _by_workload(t, data, _speed, _times, _memory)
    if any(trials(data.vllm)):
        tables.append(_vllm(t, data))
    if data.profiles:
        tables.append(_steps(t, data))
    return tables


def speed_tables(t: Translator, data: BenchData) -> list[Cells]:
    """Table of rates, factors and first tokens of each workload."""
    return _by_workload(t, data, _speed)


def _by_workload(
    t: Translator, data: BenchData, *tables: Callable[[Translator, str, Sequence[Line]], Cells]
) -> list[Cells]:
    all_lines = lines(data.rows)
    return [
        table(t, name, [line for line in all_lines if line.workload == name])
        for name in workload_names(data)
        for table in tables
    ]


def _speed(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    requests = max(row.requests or 0 for line in mine for row in line.rows) or None
    return Cells(
        t("bench.title_speed", name=name, n=requests),
        _heads(t, _SPEED),
        [[arm_name(t, line.arm), *_speed_cells(line)] for line in mine],
        styles=_bold(mine),
        notes=[*_about(t, name), *_references(t, mine), *_problems(t, mine)],
    )


def _heads(t: Translator, columns: Sequence[str]) -> list[str]:
    """Heads of the arm and of each column: a metric's label or a benchmark's text."""
    heads = (
        t.message(METRICS[name].label) if name in METRICS else t(f"bench.column.{name}")
        for name in columns
    )
    return [t("console.arm"), *heads]


def _about(t: Translator, workload: str) -> list[str]:
    """Purpose of a standard workload."""
    key = f"bench.about_{workload.lower()}"
    return [t(key)] if t.has(key) else []


def _over(t: Translator, mine: Sequence[Line]) -> list[str]:
    """Note on shares above 100 %, if there are any."""
    rows = [row for line in mine for row in line.finished]
    shares = [share for row in rows for share in (row.prefill_share, row.decode_share)]
    return [t("bench.note_over")] if any(share and share > 1 for share in shares) else []


def _spread(line: Line, name: str, digits: int, unit: str = "", times: int = 1) -> str:
    """Median, minimum and maximum of a figure over an arm's finished rounds."""
    return ranged((getattr(row, name) for row in line.finished), digits, unit, times) or DASH


def _middle(line: Line, name: str) -> float | None:
    """Median of a figure over an arm's finished rounds."""
    known = [value for row in line.finished if (value := getattr(row, name)) is not None]
    return median(known) if known else None


def _size(line: Line, name: str) -> str:
    return format_bytes(_middle(line, name))


def _speed_cells(line: Line) -> list[str]:
    return [
        _spread(line, "useful_tokens_per_s", 1),
        ranged(line.factors, 2) or DASH,
        _spread(line, "first_token_median_s", 2, " s"),
        f"{len(line.finished):,}",
    ]


def _times(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    """Table of times, with prefill and decode separately."""
    done = [line for line in mine if line.finished]
    return Cells(
        t("bench.title_times", name=name),
        _heads(t, _TIMES),
        [[arm_name(t, line.arm), *_times_cells(line)] for line in done],
        styles=_bold(done),
        notes=[t("bench.note_times"), *_over(t, mine)] if done else [],
    )


def _times_cells(line: Line) -> list[str]:
    return [
        _spread(line, "prefill_s", 2, " s"),
        _spread(line, "prefill_share", 0, " %", 100),
        _spread(line, "decode_step_s", 1, " ms", 1000),
        fixed(_middle(line, "decode_requests"), 0) or DASH,
        _spread(line, "decode_share", 0, " %", 100),
    ]


def _memory(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    done = [line for line in mine if line.finished]
    rows = [row for line in done for row in line.finished]
    notes = {
        "recomputed": any(row.recomputed_tokens for row in rows),
        "process": any(row.process_peak_bytes is not None for row in rows),
        "preempted": not all(has_blocks(line.arm) for line in done),
    }
    return Cells(
        t("bench.title_memory", name=name),
        _heads(t, _MEMORY),
        [[arm_name(t, line.arm), *_memory_cells(line)] for line in done],
        styles=_bold(done),
        notes=[t(f"bench.note_{name}") for name, holds in notes.items() if holds],
    )


def _memory_cells(line: Line) -> list[str]:
    return [
        _size(line, "peak_kv_bytes"),
        _size(line, "peak_allocated_bytes"),
        _process(line),
        fixed(_middle(line, "mean_running"), 1) or DASH,
        *(
            fixed(_middle(line, name) if has_blocks(line.arm) else None, 0) or DASH
            for name in ("preemptions", "recomputed_tokens")
        ),
    ]


def _process(line: Line) -> str:
    """Peak of the arm's processes, and that of loading if larger."""
    working, loading = (_middle(line, f"{name}_peak_bytes") for name in ("process", "loading"))
    most = _size(line, "process_peak_bytes")
    if loading is None or (working is not None and loading <= working):
        return most
    return f"{most} ({_size(line, 'loading_peak_bytes')})"


def _references(t: Translator, mine: Sequence[Line]) -> list[str]:
    """The reference arm of token comparisons; with rounds if it varied."""
    rounds: dict[str, set[int]] = {}
    for row in sorted((row for line in mine for row in line.finished), key=lambda row: row.round):
        if row.reference is not None:
            rounds.setdefault(row.reference, set()).add(row.round + 1)
    return [
        t(
            "bench.note_reference", reference=arm_name(t, arm),
            rounds=t("bench.in_rounds", rounds=", ".join(map(str, sorted(some))))
            if len(rounds) > 1 else "",
        )
        for arm, some in rounds.items()
    ]  # fmt: skip


def _bold(mine: Sequence[Line]) -> list[str]:
    return ["bold" if line.arm == OURS else "" for line in mine]


def _problems(t: Translator, mine: Sequence[Line]) -> list[str]:
    """Reasons for dashes, arms with different tokens, and contradictions."""
    notes, differ = [], False
    for line in mine:
        name = arm_name(t, line.arm)
        notes += [t("console.problem", arm=name, text=why) for why in _reasons(t, line)]
        for key, figure in _ALIKE.items():
            row = _least_alike(line, figure)
            if row is not None:
                differ = True
                counts = {"equal": getattr(row, figure), "requests": row.requests}
                notes.append(t(key, arm=name, reference=arm_name(t, str(row.reference)), **counts))
    return [*notes, t("bench.note_no_factor")] if differ else notes


def _least_alike(line: Line, figure: str) -> Row | None:
    """The row with the fewest equal requests; None if all are equal or unknown."""
    unequal = [row for row in line.finished if getattr(row, figure) not in (None, row.requests)]
    return min(unequal, key=lambda row: getattr(row, figure), default=None)


def _reasons(t: Translator, line: Line) -> list[str]:
    """Distinct reasons and problems of an arm's rows."""
    reasons = [row.reason for row in line.rows if row.reason]
    reasons += [problem for row in line.rows for problem in row.problems]
    first: dict[str, Message] = {}
    for text in reasons:
        first.setdefault(text.model_dump_json(), text)
    return [t.message(text) for text in first.values()]


def _steps(t: Translator, data: BenchData) -> Cells:
    names = ("step_ms", "matrix_ms", "attention_ms", "other_ms", "rest_ms", "plain_step_ms")
    heads = ("step", "matrix", "attention", "other", "rest", "plain")
    rows = []
    for workload, arm in dict.fromkeys((p.workload, p.arm) for p in data.profiles):
        mine = [one for one in data.profiles if (one.workload, one.arm) == (workload, arm)]
        rows.append(
            [
                t("bench.in_workload", arm=arm_name(t, arm), workload=workload, n=mine[0].requests),
                *[ranged((getattr(one, name) for one in mine), 1) or DASH for name in names],
            ]
        )
    return Cells(
        t("bench.title_steps"),
        [t("console.arm"), *[t(f"bench.column.step_{name}") for name in heads]],
        rows,
        notes=[t("bench.note_steps")],
    )


def _vllm(t: Translator, data: BenchData) -> Cells:
    """Table of the trials of vLLM's modes, with workloads and rates."""
    rates: dict[tuple[str, str], dict[str, list[float]]] = {}
    reasons: dict[str, str] = {}
    for name, each in trials(data.vllm):
        words = mode_words(t, each)
        rates.setdefault((words["mode"], words["bind"]), {})[name] = each["rates"]
        if each["reason"]:
            why = Message.model_validate(each["reason"])
            reasons[why.key] = t.message(why)
    on = list(dict.fromkeys(name for name, _ in trials(data.vllm)))
    header = [t(f"bench.column.{name}") for name in ("mode", "bind")]
    header += [t("bench.column.probe") if name == "probe" else name for name in on]
    rows = [
        [*words, *[ranged(some.get(name, ()), 1) or DASH for name in on]]
        for words, some in rates.items()
    ]
    return Cells(t("bench.title_vllm"), header, rows, left=(0, 1), notes=list(reasons.values()))
