"""A quantized paged cache compared with the model's dtype: bytes, speed, error, tokens."""

from __future__ import annotations

from experiment.analysis.experiment_results import CellResult, Compared, Finding
from experiment.experiments.base import Experiment, contiguous, other_engines, varied
from experiment.experiments.findings import (
    fact,
    judged,
    same,
    same_outputs,
    tally,
    timed,
    untested,
    versus,
    why,
)
from experiment.experiments.found import Found
from experiment.experiments.labels import same_in
from experiment.text.messages import Message

_OWN = "auto"


def _findings(found: Found) -> list[Finding]:
    own = next((cell for cell in found.cells if cell.values["kv_dtype"] == _OWN), None)
    others = [cell for cell in found.cells if cell is not own and cell.arm("paged")]
    if own is None or not others:
        reason = _without(found)
        return [untested(name, reason) for name in ("bytes", "error", "tokens", "speed")]
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
    """The reason if there are no two dtypes to compare."""
    values = found.config.experiment.values
    if _OWN in values and len(values) > 1:
        return None
    return why("needs", option="experiment.values", values=f"{_OWN}, int8")


def _rows(
    found: Found, own: CellResult, other: CellResult, *figures: str, arm: str = "paged"
) -> list[Compared | None]:
    """Figures with the other dtype, each over that with the model's dtype."""
    return [versus(found, (other, arm, name), (own, arm, name)) for name in figures]


def _bytes(found: Found, own: CellResult, other: CellResult) -> Finding:
    """Whether the same budget holds more blocks, because they need fewer bytes."""
    names = ("blocks", "block_bytes", "running_mean", "preemptions")
    row, *others = _rows(found, own, other, *names)
    shown = row is not None and (row.estimate or 0) > 1
    return judged("bytes", row, shown, *others, against=why("opposite"))


def _error(found: Found, other: CellResult) -> Finding:
    names = ("attention_error", "logit_error", "same_token", "error_positions")
    known = None not in [found.value(other, "paged", name) for name in names]
    return fact("error", tally(found, other, "paged", *names) if known else None)


def _tokens(own: CellResult, other: CellResult) -> Finding:
    """Number of requests with the same tokens; after one differing token all may differ."""
    return same("tokens", same_outputs([(other.arm("paged"), own.arm("paged"))]))


def _speed(found: Found, own: CellResult, other: CellResult) -> Finding:
    """Throughput; if it is higher in spite of longer steps, the gain is from concurrency."""
    one, base = ((cell, "paged", "tokens_per_s") for cell in (other, own))
    names = ("step_s", "running_mean", "steps", "preemptions")
    return timed(found, "speed", one, base, *_rows(found, own, other, *names))


def _slabs(found: Found, own: CellResult, other: CellResult) -> list[Finding]:
    """Effect of the same dtype without paging; empty if slabs did not run."""
    slabs, paged = (
        _rows(found, own, other, "running_mean", arm=arm)[0] for arm in ("slabs", "paged")
    )
    if slabs is None or paged is None:
        return []
    return [fact("slabs", slabs, paged, title=same_in("slabs"))]


QUANTISED = Experiment(
    name="quantised",
    cells=varied("kv_dtype", "cache.kv_dtype"),
    figures=(
        "block_bytes", "blocks", "running_mean", "running_peak", "preemptions", "attention_error",
        "logit_error", "same_token", "error_positions", "steps", "step_s", "tokens_per_s",
    ),
    charts=("blocks", "running_mean", "tokens_per_s"),
    findings=_findings,
    values="names",
    without={**contiguous("own_precision"), **other_engines("own_precision")},
)  # fmt: skip
