"""Figures of a run's arms in tables of the console, the page and Markdown.

Preemptions, swaps and copies are shown for arms with blocks:

    contiguous.*    requests reserve all memory on admission: not applicable    —
    other arms      counted from the plans                                      0, 1, …

The record has 0 for all of them, so that gates can use them.
"""

from __future__ import annotations

from experiment.analysis.experiment_results import Number
from experiment.analysis.metrics import METRICS, SHOWN, Field, Metric
from experiment.analysis.results import ArmResult, Results
from experiment.report.facts.values import rate, written
from experiment.text.messages import Message, message

OF_BLOCKS = ("preemptions", "swapped_blocks", "copied_blocks")
# Heads of the table of gains, after the arm.
GAINS: dict[str, Message] = {
    "tokens_per_s": METRICS["tokens_per_s"].label, "running": METRICS["running_mean"].label,
    "factor": message("gains.factor"), "step": message("gains.step"),
}  # fmt: skip


def has_blocks(arm: str) -> bool:
    """Whether requests of an arm have blocks that can be preempted."""
    return not arm.startswith("contiguous.")


def visible_metrics(results: Results) -> list[Metric]:
    """Metrics of a run's table, without block events that did not occur."""
    return [
        METRICS[name]
        for name in SHOWN
        if name not in OF_BLOCKS or any(getattr(arm, name) for arm in results.arms)
    ]


def figure(metric: Metric, results: Results, arm: ArmResult) -> str | None:
    """A figure in its unit; None if unknown or not applicable."""
    if metric.name in OF_BLOCKS and not has_blocks(arm.arm):
        return None
    value = metric.read(results, arm)
    if value is None or metric.unit == "rate":
        return rate(value)  # measured once: one digit
    return written(value, metric.unit)


def slots(metric: Metric, results: Results, arm: ArmResult) -> Number | None:
    """Slots of a figure in bytes at the peak; None for other figures."""
    same = METRICS.get(f"{metric.name.removesuffix('_bytes')}_slots")
    return same.read(results, arm) if same else None


def path(metric: Metric) -> str:
    """Path of the figure in an arm's result; empty if computed."""
    return metric.read.path if isinstance(metric.read, Field) else ""


def why_missing(metric: Metric, arm: ArmResult) -> Message:
    """Reason why an arm lacks a figure."""
    if arm.status == "finished" and metric.name in OF_BLOCKS and not has_blocks(arm.arm):
        return message("report.unknown.no_blocks")
    if arm.status == "finished" and metric.name == "moved_bytes" and not arm.elastic:
        return message("report.unknown.does_not_grow")
    return message(f"report.unknown.{arm.status}")
