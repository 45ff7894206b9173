"""Figures of a run's arms as tables show them, on the console, on the page and in Markdown.

What happens to a request's blocks is shown of arms that have some:

    contiguous.*    who is admitted has all its memory: nothing to preempt, swap or copy    —
    every other     counted from its plans, 0 where it did not happen                       0, 1, …

The record has 0 for all of them: it counts, and a gate can hold by it.
"""

from __future__ import annotations

from experiment.analysis.experiment_results import Number
from experiment.analysis.metrics import METRICS, TABLE, Field, Metric
from experiment.analysis.results import ArmResult, Results
from experiment.report.facts.values import rate, written
from experiment.text.messages import Message, message

OF_BLOCKS = ("preemptions", "swapped_blocks", "copied_blocks")
# Heads of the table of gains, behind the arm.
GAINS: dict[str, Message] = {
    "tokens_per_s": METRICS["tokens_per_s"].label, "running": METRICS["running_mean"].label,
    "factor": message("gains.factor"), "step": message("gains.step"),
}  # fmt: skip


def has_blocks(arm: str) -> bool:
    """Whether requests of an arm have blocks that they can lose."""
    return not arm.startswith("contiguous.")


def shown(results: Results) -> list[Metric]:
    """Rows of a run's table: of what happens to blocks only what happened to any."""
    return [
        METRICS[name]
        for name in TABLE
        if name not in OF_BLOCKS or any(getattr(arm, name) for arm in results.arms)
    ]


def figure(metric: Metric, results: Results, arm: ArmResult) -> str | None:
    """A figure in its unit; None where it is unknown, and where there is nothing to count."""
    if metric.name in OF_BLOCKS and not has_blocks(arm.arm):
        return None
    value = metric.read(results, arm)
    if value is None or metric.unit == "rate":
        return rate(value)  # measured once, with one digit as ever
    return written(value, metric.unit)


def slots(metric: Metric, results: Results, arm: ArmResult) -> Number | None:
    """The slots that a number of bytes at the peak are; None of any other figure."""
    same = METRICS.get(f"{metric.name.removesuffix('_bytes')}_slots")
    return same.read(results, arm) if same else None


def path(metric: Metric) -> str:
    """Where the figure lies in an arm's result; empty where it is worked out."""
    return metric.read.path if isinstance(metric.read, Field) else ""


def why_missing(metric: Metric, arm: ArmResult) -> Message:
    """Why an arm has no such figure."""
    if arm.status == "finished" and metric.name in OF_BLOCKS and not has_blocks(arm.arm):
        return message("report.unknown.no_blocks")
    if arm.status == "finished" and metric.name == "moved_bytes" and not arm.elastic:
        return message("report.unknown.does_not_grow")
    return message(f"report.unknown.{arm.status}")
