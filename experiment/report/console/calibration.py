"""Calibrations on the console: coefficients, and errors on held-out steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiment.report.console.simulation import SimulationConsole
from experiment.report.facts.texts import Cells
from experiment.text.messages import message
from experiment.workload.kvsim_errors import rejected_message
from kvsim.latency.roofline import BatchLatency

Data = Mapping[str, Any]
_SECONDS = "_s"


def show_calibration(data: Data, lang: str, ascii_only: bool) -> None:
    """Print the whole calibration."""
    out = SimulationConsole(lang, ascii_only)
    t = out.t
    out.section("section.calibrate")
    if "arm" in data:
        out.paragraph(t("calibrate.of_run", name=data["source"], arm=data["arm"],
                        steps=data["steps"]))  # fmt: skip
    else:
        out.paragraph(t("calibrate.of_requests", name=data["source"], requests=data["requests"]))
        for each in data["rejected"]:
            out.warn(rejected_message(each))
        pool = data["pool"]
        out.paragraph(t("calibrate.pool" if pool["blocks"] else "calibrate.pool_unlimited", **pool))
        if pool["prefix_hits"] and not pool["shared_prefix"]:
            out.warn(message("calibrate.prefix_hits", share=pool["prefix_hits"]))
    out.line(t("calibrate.sha256", sha256=data["sha256"]), "dim")
    _coefficients(out, data)
    if batches := data["latency"].get("batches"):
        least, most = map(round, BatchLatency(batches=batches).seen())
        out.paragraph(t("calibrate.batches", least=least, most=most))
    if "replay" in data:
        _replay(out, data["replay"])
    for name, errors in data["errors"].items():
        _errors(out, name, errors)
    out.line(t("calibrate.about", folds=data["folds"]), "dim")


def _coefficients(out: SimulationConsole, data: Data) -> None:
    latency, least = data["latency"], data.get("least", {})
    reached = latency.get("efficiencies", {})
    shown = {
        **latency,
        "memory_efficiency": reached.get("weights"),
        "compute_efficiency": reached.get("products"),
    }
    bounded = any(least.values())
    rows = [
        [
            out.t(f"calibrate.{name}"),
            _cost(name, shown[name]),
            *([_cost(name, least[name])] if bounded else []),
        ]
        for name in _COEFFICIENTS
        if shown.get(name) is not None
    ]
    heads = [out.t("calibrate.value"), *([out.t("calibrate.least")] if bounded else [])]
    title = out.t("calibrate.kind", kind=latency["kind"])
    out.cells(Cells("", [title, *heads], rows))


# Inputs of a roofline (model and GPU) are not shown.
_COEFFICIENTS = (
    "fixed_s", "per_prefill_token_s", "per_decode_token_s", "per_kv_token_s", "per_pair_s",
    "request_s", "memory_efficiency", "compute_efficiency", "overlap",
)  # fmt: skip


def _replay(out: SimulationConsole, replay: Data) -> None:
    t = out.t
    rows = [
        [t(f"calibrate.replay_{name}"), f"{replay[name]:+.1f} %"]
        for name in ("span", "first_token", "latency")
    ]
    out.cells(Cells("", [t("calibrate.replay"), t("calibrate.replay_error")], rows))
    out.line(t("calibrate.replay_preemptions", count=replay["preemptions"]), "dim")


def _cost(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if not name.endswith(_SECONDS):
        return f"{value:.3f}"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return "0 s" if not value else f"{value:.3g} s"


def _errors(out: SimulationConsole, name: str, errors: Data) -> None:
    t = out.t
    heads = [t(f"calibrate.error_{part}") for part in ("mean", "median", "p95", "bias")]
    rows = [[t(f"calibrate.on_{on}"), *_row(errors[on])] for on in ("held_out", "fit", "constant")]
    out.cells(Cells("", [t(f"calibrate.errors_{name}"), *heads], rows))


def _row(error: Data) -> list[str]:
    values = (error["mean_percent"], error["median_percent"], error["p95_percent"])
    return [*(f"{value:.1f} %" for value in values), f"{error['bias_percent']:+.1f} %"]
