"""Calibrations on the console: coefficients, and errors on held-out steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiment.report.console.simulation import SimulationConsole
from experiment.text import DASH
from experiment.workload.kvsim_errors import rejected_message

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
        out.paragraph(t("calibrate.of_requests", name=data["source"], requests=data["requests"],
                        single=data["single_token"]))  # fmt: skip
        for each in data["rejected"]:
            out.warn(rejected_message(each))
    out.line(t("calibrate.sha256", sha256=data["sha256"]), "dim")
    _coefficients(out, data)
    for name, errors in data["errors"].items():
        _errors(out, name, errors)
    out.line(t("calibrate.about", folds=data["folds"]), "dim")


def _coefficients(out: SimulationConsole, data: Data) -> None:
    latency = data["latency"]
    rows = [
        (out.t(f"calibrate.{name}"), [_cost(name, value)])
        for name, value in latency.items()
        if f"calibrate.{name}" in _COEFFICIENTS and name != "kind"
    ]
    rows += [
        (out.t(f"calibrate.prefill_{name}"), [_cost(name, value)])
        for name, value in data.get("prefill", {}).items()
    ]
    kind = out.t(f"calibrate.kind_{latency['kind'].lower()}")
    out.figures(kind, [out.t("calibrate.value")], rows)


# Inputs of a roofline (model and GPU) are not shown.
_COEFFICIENTS = {
    "calibrate.fixed_s", "calibrate.per_prefill_token_s", "calibrate.per_decode_token_s",
    "calibrate.per_kv_token_s", "calibrate.per_pair_s", "calibrate.memory_efficiency",
    "calibrate.compute_efficiency", "calibrate.overlap",
}  # fmt: skip


def _cost(name: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or DASH
    if not name.endswith(_SECONDS):
        return f"{value:.3f}"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return "0 s" if not value else f"{value:.3g} s"


def _errors(out: SimulationConsole, name: str, errors: Data) -> None:
    t = out.t
    heads = [t(f"calibrate.error_{part}") for part in ("mean", "median", "p95", "bias")]
    rows = [
        (t(f"calibrate.on_{on}"), _row(errors[on]))
        for on in ("held_out", "forward", "fit", "constant")
        if on in errors
    ]
    out.figures(t(f"calibrate.errors_{name}"), heads, rows)
    if errors.get("forward", 0) is None:
        out.line(t("calibrate.no_forward"), "dim")


def _row(error: Data | None) -> list[str]:
    if error is None:
        return [DASH] * 4
    values = (error["mean_percent"], error["median_percent"], error["p95_percent"])
    return [*(f"{value:.1f} %" for value in values), f"{error['bias_percent']:+.1f} %"]
