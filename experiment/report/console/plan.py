"""Plans on the console: sentences, tables, arguments for vLLM."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.report.console.simulation import SimulationConsole
from experiment.report.facts.plan import (
    Data,
    answer,
    log_lines,
    plan_tables,
    predicted,
    rows_answer,
    rows_tables,
    sentences,
    serve_command,
)
from experiment.report.facts.simulation import memory_facts, trace_facts

_WIDTH = 78
_MOST_ROWS = 8


def _broken(command: Sequence[str]) -> str:
    """A command on lines that fit, as a shell reads them."""
    lines = [command[0]]
    for word in command[1:]:
        if len(lines[-1]) + len(word) < _WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}")
    return " \\\n".join(lines)


def show_rows(data: Data, lang: str, ascii_only: bool, details: bool = False) -> None:
    """Print plans next to each other; of the GPUs to choose from the first, or with details all."""
    out = SimulationConsole(lang, ascii_only)
    title, *notes = rows_answer(data)
    out.line(out.t.message(title), "bold")
    for table in rows_tables(out.t, data, None if details else _MOST_ROWS):
        out.cells(table)
    for note in notes:
        out.line(out.t.message(note), "dim")


def show_plan(data: Data, lang: str, ascii_only: bool, details: bool = False) -> None:
    """Print the answer; with ``details`` also how it came about."""
    out = SimulationConsole(lang, ascii_only)
    if "log" in data:
        for line in log_lines(data["log"]):
            out.paragraph(out.t.message(line))
        if "plan" not in data:
            return
    plan = data["plan"]
    title, *lines = answer(data)
    out.line(out.t.message(title), "bold")
    for line in lines:
        out.paragraph(out.t.message(line))
    if command := serve_command(plan):  # ready to be pasted: no line is broken by us
        out.console.print(_broken(command), soft_wrap=True, highlight=False)
    if not details:
        return
    if data["trace"] is not None:
        out.section("section.sim_trace")
        out.facts(trace_facts(data))
    out.section("section.sim_memory")
    out.facts(memory_facts(data))
    out.section("section.plan")
    for sentence in sentences(data):
        out.paragraph(out.t.message(sentence))
    for table in plan_tables(out.t, plan):
        out.cells(table)
    out.section("section.plan_vllm")
    for sentence in predicted(plan):
        out.paragraph(out.t.message(sentence))
