"""Plans on the console: sentences, tables, arguments for vLLM."""

from __future__ import annotations

from experiment.report.console.simulation import SimulationConsole
from experiment.report.facts.plan import Data, plan_tables, predicted, sentences, serve_command
from experiment.report.facts.simulation import memory_facts, trace_facts


def show_plan(data: Data, lang: str, ascii_only: bool) -> None:
    """Print the whole plan."""
    out = SimulationConsole(lang, ascii_only)
    plan = data["plan"]
    if data["trace"] is not None:
        out.section("section.sim_trace")
        out.facts(trace_facts(data))
    out.section("section.sim_memory")
    out.facts(memory_facts(data))
    out.section("section.plan")
    for sentence in sentences(data):
        out.paragraph(out.t.message(sentence))
    for table in plan_tables(out.t, plan):
        first, *heads = table.header
        out.figures(first or table.title, heads, ((row[0], row[1:]) for row in table.rows))
        for note in table.notes:
            out.line(note, "dim")
    out.section("section.plan_vllm")
    if command := serve_command(plan):  # without line breaks, so that it can be pasted
        out.console.print(" \\\n  ".join(command), soft_wrap=True)
    for sentence in predicted(plan):
        out.paragraph(out.t.message(sentence))
