"""Compare two sides: the change of each figure, and its verdict.

requests differ            nothing is comparable in that cell
machine or model differ    counts are comparable, except those determined by the model's scores
                           (tokens, beams, ends of requests); times and measured figures are not
equal, repeat by repeat    the same
background load            a change of the arm's times, but no verdict
repeats overlap            no clear difference
a time within the margin   no clear difference: within the variation of processes of one arm
fewer than three repeats   a change, but no verdict: may be chance
measured without repeats   a change, but no verdict: unknown spread
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from experiment.analysis.experiment_results import Number
from experiment.compare.figures import SETTLED
from experiment.compare.results import (
    Comparison,
    Difference,
    Figure,
    Group,
    Row,
    Side,
    Verdict,
)
from experiment.config.schema import ExperimentConfig, is_within_margin
from experiment.experiments.figures import FIGURES
from experiment.experiments.found import FEWEST
from experiment.experiments.prediction import scores_decide
from experiment.text.errors import user_error
from experiment.text.messages import Message, message

# Properties of machine and model that times depend on.
_TIMING_MACHINE = ("device", "cpu", "cores", "gpu")
_TIMING_MODEL = ("name", "architecture", "parameters", "device")
# Properties of the model that its scores depend on.
_SCORING_MODEL = (*_TIMING_MODEL, "dtype", "weights_sha256")
# Units of times that scale with the speed of a process; FIGURES lists figures in other units that
# do.
_TIMED = ("seconds", "rate")
# Requests that take longer have failed.
_LIMIT = "experiment.options.time_limit_s"
_REPEATS = "experiment.repeats"
_TOKENS = ("equal_requests", "equal_tokens")
# These make a page of 18 MB in 10 s.
MAX_FIGURES = 10_000
_CLOSE = 1e-9  # means are the same ratio of whole numbers, divided in another order


def compare_sides(left: Side, right: Side) -> Comparison:
    """Everything that can be said of two sides; ``left`` is the one before.

    Raises:
        UserError: they have more figures than a page can show.
    """
    ids = list(dict.fromkeys((*left.figures, *right.figures)))
    if len(ids) > MAX_FIGURES:
        names = f"{left.name}, {right.name}"
        raise user_error("error.compare.figures", names=names, count=len(ids), most=MAX_FIGURES)
    margin = max(map(_margin, (left, right)))
    rows = [_row(name, left, right, margin) for name in ids]
    return Comparison(
        left=left,
        right=right,
        differences=list(_differences(left, right)),
        rows=[row for row in rows if row is not None],
        notes=list(_notes(left, right)),
    )


def is_finite(value: Number) -> bool:
    """Whether a number is finite as a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def same(one: Number, other: Number) -> bool:
    """Whether two counts are equal up to rounding of means."""
    return abs(one - other) <= _CLOSE * max(1.0, abs(one), abs(other))


def check_config(side: Side) -> None:
    """Check that a comparison can use the config of a side.

    Raises:
        ValueError, TypeError: an invalid setting, or not JSON.
    """
    _margin(side)
    _decided_by_scores(side)
    _has_few_repeats(side)
    json.dumps(side.config, allow_nan=False)


def why_not_comparable(figure: Figure, left: Side, right: Side) -> Message | None:
    """Why a figure of these two sides is not comparable; None if it is."""
    mine, other = left.requests.get(figure.place), right.requests.get(figure.place)
    if mine is None or other is None:
        return message("compare.reason.no_requests")
    if mine != other:
        return message("compare.reason.requests")
    decided = figure.kind == "count" and any(_scores_decide(figure, one) for one in (left, right))
    if figure.kind == "count" and not decided:
        return None
    if figure.metric == "succeeded" and left.config.get(_LIMIT) != right.config.get(_LIMIT):
        return message("compare.reason.time_limit")
    if not left.machine or not right.machine:
        return message("compare.reason.no_machine")
    if any(left.machine.get(n) != right.machine.get(n) for n in _TIMING_MACHINE):
        return message("compare.reason.machine")
    names = _SCORING_MODEL if decided else _TIMING_MODEL
    if not _same_model(figure.place, left, right, names):
        return message("compare.reason.model")
    return None


def _same_model(place: str, left: Side, right: Side, names: Sequence[str]) -> bool:
    """Whether a cell has the same model on both sides, as far as both record it."""
    known = [side.models or {} for side in (left, right)]
    if None in (left.models, right.models) and any(place in models for models in known):
        return True  # an older baseline does not record the model of this cell
    one, other = (
        models.get(place, side.model) for models, side in zip(known, (left, right), strict=True)
    )
    return all(one.get(name) == other.get(name) for name in names)


def _scores_decide(figure: Figure, side: Side) -> bool:
    """Whether a count depends on the model's scores, which are rounded differently by machine."""
    if figure.metric in _TOKENS:
        return True
    if figure.metric in SETTLED or figure.metric == "unplanned_steps":
        return False
    return _decided_by_scores(side)


def _decided_by_scores(side: Side) -> bool:
    asked = side.config
    if asked.get("experiment.name") == "beam":
        return True  # its cells set the width
    return scores_decide(
        ignore_eos=asked.get("workload.ignore_eos") is not False,
        stops=asked.get("sampling.stop_token_ids") or (),
        beams=asked.get("sampling.beam_width") or 1,
    )


def _row(name: str, left: Side, right: Side, margin: float) -> Row | None:
    one, other = left.figures.get(name), right.figures.get(name)
    figure = other or one
    assert figure is not None
    if figure.kind != "count" and "baseline" in (left.kind, right.kind):
        return None  # a baseline never holds such a figure
    if (one is None or one.value is None) and (other is None or other.value is None):
        return None
    if one is None or other is None or one.value is None or other.value is None:
        missing = _missing(one, other, left, right)
        return Row(id=name, figure=figure, left=one, right=other, verdict="unknown", reason=missing)
    if why := why_not_comparable(figure, left, right):
        return Row(
            id=name, figure=figure, left=one, right=other, verdict="not_comparable", reason=why
        )
    change = (other.value - one.value) / abs(one.value) if one.value else None
    sign = {"more": 1, "less": -1, None: None}[figure.better]
    improvement = None if sign is None or change is None else change * sign
    return Row(
        id=name, figure=figure, left=one, right=other, difference=other.value - one.value,
        change=change, improvement=improvement, verdict=_judged(one, other, margin),
    )  # fmt: skip


def _missing(one: Figure | None, other: Figure | None, left: Side, right: Side) -> Message:
    """Why one of the two is unknown."""
    figure, side = (one, left) if one is None or one.value is None else (other, right)
    if figure is not None and figure.reason is not None:
        return figure.reason
    if side.kind == "baseline":
        return message("compare.reason.not_in_baseline")
    return message("compare.reason.not_here")


def _margin(side: Side) -> float:
    """Relative difference of times tolerated between processes of one arm."""
    size, margin = side.config.get("experiment.size"), side.config.get("experiment.margin")
    return ExperimentConfig.model_validate(
        {"size": size or "full", "margin": margin}
    ).process_margin


def _has_few_repeats(side: Side) -> bool:
    """Whether the config asked for fewer repeats than a verdict takes."""
    return (side.config.get(_REPEATS) or 0) < FEWEST


def _judged(one: Figure, other: Figure, margin: float) -> Verdict:
    before, after = one.value, other.value
    assert before is not None
    assert after is not None
    if one.kind == "count":
        return "same" if same(before, after) else _direction(one, before, after)
    if before == after:
        # An unchanged value needs no repeats; equal repeats are required for "same".
        return "same" if sorted(one.values) == sorted(other.values) else "unclear"
    if one.busy or other.busy:
        return "busy"
    if one.kind == "measured" and not (one.values and other.values):
        return "once"  # more repeats would change nothing
    if one.span is None or other.span is None or min(map(len, (one.values, other.values))) < FEWEST:
        return "single"
    (low, high), (other_low, other_high) = one.span, other.span
    if low <= other_high and other_low <= high:
        return "unclear"
    more = _stretched(one)
    if more is not None and is_within_margin(before + more, after + more, margin):
        return "unclear"
    return _direction(one, before, after)


def _stretched(figure: Figure) -> Number | None:
    """Offset that makes a time proportional to the speed of a process; None: not proportional."""
    if figure.kind != "time":
        return None
    if figure.unit in _TIMED:
        return 0
    known = FIGURES.get(figure.metric)
    return known.stretched if known else None


def _direction(figure: Figure, before: Number, after: Number) -> Verdict:
    if figure.better is None:
        return "differs"
    return "better" if (after > before) == (figure.better == "more") else "worse"


def _differences(left: Side, right: Side) -> Iterator[Difference]:
    """Differences between the sides; with a baseline only of properties that both record."""
    pairs: tuple[tuple[Group, Mapping[str, object], Mapping[str, object]], ...] = (
        ("machine", left.machine, right.machine),
        ("versions", left.versions, right.versions),
        ("model", _all_models(left), _all_models(right)),
        ("config", left.config, right.config),
    )
    partial = "baseline" in (left.kind, right.kind)
    for group, one, other in pairs:
        if not one or not other:
            continue
        for name in dict.fromkeys((*one, *other)):
            if group == "config" and any(_is_unresolved(side, name) for side in (left, right)):
                continue
            in_both = name in one and name in other
            if (in_both or not partial) and one.get(name) != other.get(name):
                yield Difference(group=group, name=name, left=one.get(name), right=other.get(name))


def _is_unresolved(side: Side, name: str) -> bool:
    """Whether the log ended before it says what ``auto`` came to."""
    is_auto = side.config.get(name) == "auto" and name != "cache.kv_dtype"  # there a value
    return is_auto and side.status != "complete"


def _all_models(side: Side) -> dict[str, object]:
    """Properties of the model; for a cell with another one prefixed by the cell."""
    others = {
        f"{place} {name}": value for place, model in (side.models or {}).items()
        for name, value in model.items()
    }  # fmt: skip
    return {**side.model, **others}


def _notes(left: Side, right: Side) -> Iterator[Message]:
    if left.kind == right.kind and (left.wall_ns, left.command) == (right.wall_ns, right.command):
        yield message("compare.note.same_run")
    for side in (left, right):
        if side.status != "complete":
            yield message("compare.note.incomplete", name=side.name)
        if side.damaged_lines:
            yield message("compare.note.damaged", name=side.name, n=side.damaged_lines)
        if side.changed_files:
            files = ", ".join(side.changed_files)
            yield message("compare.note.changed", name=side.name, files=files)
        if side.busy:
            yield message("compare.note.busy", name=side.name)
    if not set(left.figures) & set(right.figures):
        yield message("compare.note.nothing_shared")
    elif left.kind == right.kind == "run":
        yield from _repeat_notes(left, right)


def _repeat_notes(left: Side, right: Side) -> Iterator[Message]:
    """Why times get no verdict: an ordinary run has no repeats, an experiment too few."""
    few = [
        (side, figure)
        for side in (left, right)
        for figure in side.figures.values()
        if figure.kind == "time" and figure.value is not None and len(figure.values) < FEWEST
    ]
    if any(not figure.place for _, figure in few):
        yield message("compare.note.single")
    # More repeats are of no use where enough were asked for.
    asked = {_has_few_repeats(side) for side, figure in few if figure.place}
    if True in asked:
        yield message("compare.note.few_repeats", least=FEWEST)
    if False in asked:
        yield message("compare.note.few_measured", least=FEWEST)
