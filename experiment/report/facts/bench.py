"""A benchmark as sentences on its conditions and tables, for console, Markdown and page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import Any

from experiment.analysis.metrics import METRICS
from experiment.bench.data import BenchData
from experiment.bench.rows import Row
from experiment.bench.summary import OURS, Line, lines
from experiment.report.facts.arm_figures import has_blocks
from experiment.report.facts.texts import Cells, arm_name
from experiment.report.facts.values import fixed, ranged
from experiment.text import DASH, Translator, format_bytes
from experiment.text.messages import Message, message

# Text of a figure of an arm.
Figure = Callable[[Line], str]
_ALIKE = {
    "bench.note_tokens": "equal_requests", "bench.note_first_tokens": "equal_first_tokens"
}  # fmt: skip


def _spread(name: str, digits: int, unit: str = "", times: int = 1) -> Figure:
    """Median, minimum and maximum of a figure over an arm's finished rounds."""

    def figure(line: Line) -> str:
        values = (getattr(row, name) for row in line.finished)
        return ranged(values, digits, unit, times) or DASH

    return figure


def _middle(line: Line, name: str) -> float | None:
    """Median of a figure over an arm's finished rounds."""
    known = [value for row in line.finished if (value := getattr(row, name)) is not None]
    return median(known) if known else None


def _mean(name: str, digits: int) -> Figure:
    return lambda line: fixed(_middle(line, name), digits) or DASH


def _size(name: str) -> Figure:
    return lambda line: format_bytes(_middle(line, name))


def _of_blocks(name: str) -> Figure:
    """A count of what only blocks can undergo."""
    count = _mean(name, 0)
    return lambda line: count(line) if has_blocks(line.arm) else DASH


def _process(line: Line) -> str:
    """Peak of the arm's processes, and that of loading if larger."""
    working, loading = (_middle(line, f"{name}_peak_bytes") for name in ("process", "loading"))
    most = _size("process_peak_bytes")(line)
    if loading is None or (working is not None and loading <= working):
        return most
    return f"{most} ({format_bytes(loading)})"


# Columns after the arm, named by metrics and others.
_SPEED: Mapping[str, Figure] = {
    "useful_tokens_per_s": _spread("useful_tokens_per_s", 1),
    "factor": lambda line: ranged(line.factors, 2) or DASH,
    "first_token_median_s": _spread("first_token_median_s", 2, " s"),
    "rounds": lambda line: f"{len(line.finished):,}",
}
_TIMES: Mapping[str, Figure] = {
    "prefill_s": _spread("prefill_s", 2, " s"),
    "prefill_share": _spread("prefill_share", 0, " %", 100),
    "decode_step_s": _spread("decode_step_s", 1, " ms", 1000),
    "decode_requests": _mean("decode_requests", 0),
    "decode_share": _spread("decode_share", 0, " %", 100),
}
_MEMORY: Mapping[str, Figure] = {
    "kv_bytes": _size("peak_kv_bytes"),
    "allocated_peak_bytes": _size("peak_allocated_bytes"),
    "process_peak": _process,
    "running_while_waiting": _mean("mean_running", 1),
    "preemptions": _of_blocks("preemptions"),
    "recomputed_tokens": _of_blocks("recomputed_tokens"),
}


def all_tables(t: Translator, data: BenchData) -> list[Cells]:
    """Three tables for each workload, vLLM's modes, and profiles of decode steps."""
    tables = _by_workload(t, data, _speed, _times, _memory)
    if any(trials(data.vllm)):
        tables.append(_modes(t, data))
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


def _table(
    t: Translator, title: str, columns: Mapping[str, Figure], mine: Sequence[Line], notes: list[str]
) -> Cells:
    """A row for each arm; heads are labels of metrics, or texts of a benchmark."""
    heads = (
        t.message(METRICS[name].label) if name in METRICS else t(f"bench.column.{name}")
        for name in columns
    )
    rows = [[arm_name(t, line.arm), *(cell(line) for cell in columns.values())] for line in mine]
    styles = ["bold" if line.arm == OURS else "" for line in mine]
    return Cells(title, [t("term.arm.name"), *heads], rows, styles=styles, notes=notes)


def _speed(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    requests = max(row.requests or 0 for line in mine for row in line.rows) or None
    about = f"bench.about_{name.lower()}"  # of a standard workload
    notes = [t(about)] if t.has(about) else []
    notes += [*_references(t, mine), *_problems(t, mine)]
    return _table(t, t("bench.title_speed", name=name, n=requests), _SPEED, mine, notes)


def _times(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    """Table of times, with prefill and decode separately."""
    done = [line for line in mine if line.finished]
    rows = [row for line in done for row in line.finished]
    shares = (share for row in rows for share in (row.prefill_share, row.decode_share))
    notes = [t("bench.note_times")] if done else []
    notes += [t("bench.note_over")] if any(share and share > 1 for share in shares) else []
    return _table(t, t("bench.title_times", name=name), _TIMES, done, notes)


def _memory(t: Translator, name: str, mine: Sequence[Line]) -> Cells:
    done = [line for line in mine if line.finished]
    rows = [row for line in done for row in line.finished]
    notes = {
        "recomputed": any(row.recomputed_tokens for row in rows),
        "process": any(row.process_peak_bytes is not None for row in rows),
        "preempted": not all(has_blocks(line.arm) for line in done),
    }
    shown = [t(f"bench.note_{note}") for note, holds in notes.items() if holds]
    return _table(t, t("bench.title_memory", name=name), _MEMORY, done, shown)


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


def _problems(t: Translator, mine: Sequence[Line]) -> list[str]:
    """Reasons for dashes, arms with different tokens, and contradictions."""
    notes, differ = [], False
    for line in mine:
        name = arm_name(t, line.arm)
        whys = [row.reason for row in line.rows if row.reason]
        whys += [problem for row in line.rows for problem in row.problems]
        told = dict.fromkeys(map(t.message, whys))
        notes += [t("console.problem", arm=name, text=why) for why in told]
        for key, figure in _ALIKE.items():
            unequal = [
                row for row in line.finished if getattr(row, figure) not in (None, row.requests)
            ]
            if unequal:  # the row with the fewest equal requests
                differ = True
                row = min(unequal, key=lambda row: getattr(row, figure))
                counts = {"equal": getattr(row, figure), "requests": row.requests}
                notes.append(t(key, arm=name, reference=arm_name(t, str(row.reference)), **counts))
    return [*notes, t("bench.note_no_factor")] if differ else notes


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
        [t("term.arm.name"), *[t(f"bench.column.step_{name}") for name in heads]],
        rows,
        notes=[t("bench.note_steps")],
    )


def _modes(t: Translator, data: BenchData) -> Cells:
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


def workload_names(data: BenchData) -> list[str]:
    """Workloads that were run."""
    return list(dict.fromkeys(row.workload for row in data.rows))


def facts(t: Translator, data: BenchData) -> list[str]:
    """Conditions of the figures, a sentence each."""
    return [*basis(t, data), *conditions(t, data)]


def basis(t: Translator, data: BenchData) -> list[str]:
    """The main conditions: machine, model, rounds, background load."""
    cpu = data.machine.get("cpu") or {}
    done = [f"{name} {sum(each.workload == name for each in data.rounds)}"
            for name in workload_names(data)]  # fmt: skip
    texts = [
        t(
            "bench.fact.machine", name=data.machine.get("device_name"),
            threads=data.settings.get("threads"),
            date=f"{datetime.fromisoformat(data.started):%Y-%m-%d %H:%M}",
            cores=cpu.get("usable_cores") or cpu.get("logical_cores"),
        ),
        t("bench.fact.model", **{n: data.model.get(n) for n in ("name", "dtype", "source")}),
        t(
            "bench.fact.versions",
            **{n: data.versions.get(n) for n in ("python", "torch", "transformers", "numba")},
        ),
        t("bench.fact.rounds", rounds=", ".join(done) or DASH, time=data.seconds),
    ]  # fmt: skip
    busy = [each.params["cores"] for each in data.warnings if each.key == "bench.busy"]
    if busy:
        texts.append(t("bench.busy_arms", n=len(busy), cores=max(busy)))
    if data.status != "complete":
        texts.append(t("bench.fact.broken_off"))
    return texts


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
    bound = (
        t(f"bench.bind.{bind}") if bind in ("auto", "nobind") else t("bench.bind.cores", cores=bind)
    )
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
