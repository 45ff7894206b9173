"""The paged cache in another precision beside the model's own: bytes, speed, error, tokens."""

from __future__ import annotations

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.experiments.base import Experiment, contiguous, other_engines, varied
from experiment.experiments.found import Found, detail, fact, judged, sentences, timed, untested
from experiment.text.messages import Message, arm_message

_NAME = "quantised"
_OWN = "auto"
# Which arm a finding is of that compares an arm with itself in another precision.
_PAGED = {"arm": arm_message("paged").model_dump()}


def _findings(found: Found) -> list[Finding]:
    own = next((cell for cell in found.cells if cell.values["kv_dtype"] == _OWN), None)
    others = [cell for cell in found.cells if cell is not own and cell.arm("paged")]
    if own is None or not others:
        why = _without(found)
        return [untested(name, why) for name in ("bytes", "error", "tokens", "speed")]
    return [
        finding
        for other in others
        for finding in (
            _bytes(found, own, other),
            _error(found, other),
            _tokens(own, other),
            _speed(found, own, other),
            *_slabs(found, own, other),
        )
    ]


def _without(found: Found) -> Message | None:
    """Where the precisions that were asked for have no two to compare."""
    asked = found.config.experiment.values
    return None if _OWN in asked and len(asked) > 1 else detail(_NAME, "precisions")


def _bytes(found: Found, own: CellResult, other: CellResult) -> Finding:
    """Fewer bytes for each block, so more blocks and more requests in the same budget."""
    cells = {"own": own, "other": other}
    figures = {
        f"{cell}_{figure}": found.value(cells[cell], "paged", figure)
        for cell in cells
        for figure in ("block_bytes", "blocks", "running_mean", "preemptions")
    }
    small, plain = figures["other_block_bytes"], figures["own_block_bytes"]
    if small is None or plain is None:
        return untested("bytes")
    blocks = {name: figures[name] for name in figures if "block" in name}
    ran = {name: figures[name] for name in figures if name not in blocks}
    below = detail(_NAME, "bytes_ran", requests=other.requests, **_PAGED, **ran)
    told = {"kv_dtype": other.values["kv_dtype"], "share": small / plain, **blocks}
    return judged(_NAME, "bytes", small < plain, below, **told)


def _error(found: Found, other: CellResult) -> Finding:
    names = ("attention_error", "logit_error", "same_token", "error_positions")
    figures = {name: found.value(other, "paged", name) for name in names}
    share, positions = figures.pop("same_token"), figures["error_positions"]
    if share is None or positions is None or None in figures.values():
        return untested("error")
    figures["same"] = round(share * positions)
    return fact(_NAME, "error", "measured", kv_dtype=other.values["kv_dtype"], **_PAGED, **figures)


def _tokens(own: CellResult, other: CellResult) -> Finding:
    """How many requests generate the same text; one other token, and all behind it may differ."""
    one, two = own.arm("paged"), other.arm("paged")
    if one is None or two is None or not one.outputs:
        return untested("tokens")
    equal = sum(a == b for a, b in zip(one.outputs, two.outputs, strict=False))
    figures = {
        "equal": equal, "requests": len(one.outputs), "kv_dtype": other.values["kv_dtype"],
        **_PAGED,
    }  # fmt: skip
    why = None if equal == len(one.outputs) else detail(_NAME, "tokens_why")
    return judged(_NAME, "tokens", equal == len(one.outputs), why, **figures)


def _speed(found: Found, own: CellResult, other: CellResult) -> Finding:
    faster = found.compared((other, "paged", "tokens_per_s"), (own, "paged", "tokens_per_s"))
    below = _why_faster(found, own, other) if faster and faster.clear else None
    return timed(_NAME, "speed", faster, {"kv_dtype": other.values["kv_dtype"], **_PAGED}, below)


def _why_faster(found: Found, own: CellResult, other: CellResult) -> Message | None:
    """Where it is faster though a step takes longer, more ran at a time: that is what gains."""
    step = found.compared((other, "paged", "step_s"), (own, "paged", "step_s"))
    figures = {
        f"{name}_{figure}": found.value(cell, "paged", figure)
        for name, cell in (("own", own), ("other", other))
        for figure in ("running_mean", "steps", "preemptions")
    }
    if step is None or not step.clear or step.factor <= 1 or None in figures.values():
        return None
    told = {"kv_dtype": other.values["kv_dtype"], **step.told, **figures}
    why = detail(_NAME, "speed_step", **told)
    less = found.value(own, "paged", "preemptions")
    fits = detail(_NAME, "speed_fits") if less else None
    return sentences([why, fits])


def _slabs(found: Found, own: CellResult, other: CellResult) -> list[Finding]:
    """What the same precision brings without paging, where slabs ran."""
    seen = {
        f"{name}_{arm}": found.value(cell, arm, "running_mean")
        for name, cell in (("own", own), ("other", other))
        for arm in ("slabs", "paged")
    }
    if None in seen.values():
        return []
    return [fact(_NAME, "slabs", "ran", kv_dtype=other.values["kv_dtype"], **seen)]


QUANTISED = Experiment(
    name=_NAME,
    cells=varied("kv_dtype", "cache.kv_dtype"),
    figures=(
        "block_bytes", "blocks", "running_mean", "running_peak", "preemptions", "attention_error",
        "logit_error", "same_token", "error_positions", "steps", "step_s", "tokens_per_s",
    ),
    charts=("running_mean", "tokens_per_s"),
    findings=_findings,
    values="names",
    without={
        **contiguous("own_precision"),
        **other_engines("own_precision"),
    },
)  # fmt: skip
