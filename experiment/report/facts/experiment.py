"""Names and values of an experiment as messages, the same on the console and in the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiment.analysis.experiment_results import (
    GIVEN,
    CellResult,
    ExperimentResult,
    FigureInfo,
    FigureValue,
    Finding,
)
from experiment.analysis.finding_text import listed, param
from experiment.config.arms import ARMS
from experiment.experiments.findings import note
from experiment.experiments.labels import axis_label as axis_label
from experiment.experiments.labels import value_label as value_label
from experiment.experiments.registry import figure_name
from experiment.report.facts.texts import Words
from experiment.report.facts.values import written
from experiment.text.messages import Message, arm_message, message

Values = Mapping[str, int | float | str]
# What names of figures begin with that are of an arena beside the paged arm.
ARENAS = ("first_fit", "buddy")
# Findings of several experiments.
_SHARED = ("outputs", "paper")
_CLOCK = message("experiments.reason.clock")
# Between names that may hold a comma.
_BETWEEN = "experiments.found.then"


@dataclass(frozen=True, slots=True)
class Entry:
    """A figure as it is written: the value, if there is one, and what stands below it.

    ``wrong``: it is a count, and not the one that was foretold.
    """

    main: str | None
    below: Message | None = None
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """A figure over all cells: a row for each cell, an entry for each arm of ``result.arms``.

    ``cells``: places of the rows' cells. A cell in which no arm has a value has no row; why is said
    elsewhere (:func:`gaps`, :func:`ended`).
    """

    info: FigureInfo
    rows: list[tuple[Words, list[Entry]]]
    cells: list[int]


def varied(cells: Sequence[Values]) -> list[Message]:
    """What cells are called by, a line for each axis: each value once."""
    return [
        message(
            "experiments.varies",
            name=axis_label(axis).model_dump(),
            values=listed(value_label(axis, one) for one in dict.fromkeys(c[axis] for c in cells)),
        )
        for axis in (cells[0] if cells else ())
    ]


def finding_title(name: str, finding: Finding) -> Message:
    """What a finding is called."""
    return finding.title or note("found" if finding.id in _SHARED else name, finding.id)


def anchors(findings: Sequence[Finding]) -> list[str]:
    """A name for each within the page; an id that comes again has its number behind it."""
    seen: Counter[str] = Counter()
    names = []
    for each in findings:
        seen[each.id] += 1
        again = seen[each.id]
        names.append(f"finding-{each.id}" + (f"-{again}" if again > 1 else ""))
    return names


def arena_of(figure: str) -> str | None:
    """Of a figure of an arena that was tried beside an arm: the arena; None of any other."""
    return next((arena for arena in ARENAS if figure.startswith(f"{arena}_")), None)


def arena_name(arena: str) -> Message:
    """Name of an arena, where an arm's would stand."""
    return message(f"experiments.arena.{arena}")


def cell_label(values: Values) -> Words:
    """All that a cell is called by, in one."""
    labels = [value_label(axis, value) for axis, value in values.items()]
    if len(labels) == 1:
        return labels[0]
    first, *others = labels
    label: Words = first
    for other in others:
        label = message("experiments.pair", one=param(label), other=param(other))
    return label


def cell_axis(values: Values) -> Message:
    """The name of what :func:`cell_label` writes."""
    first, *others = (axis_label(name) for name in values)
    label = first
    for other in others:
        label = message("experiments.pair", one=param(label), other=param(other))
    return label


def cell_name(values: Values) -> Message:
    """What stands before a :func:`cell_label`: words behind the first value name themselves."""
    first, *others = values
    named = all(isinstance(values[name], str) for name in others)
    return axis_label(first) if named else cell_axis(values)


def groups(result: ExperimentResult) -> list[Group]:
    """Every figure that any arm has."""
    made = [_group(result, info) for info in result.figures]
    return [group for group in made if group.rows]


def _group(result: ExperimentResult, info: FigureInfo) -> Group:
    rows = {
        place: (cell_label(cell.values), [_of_arm(cell, arm, info) for arm in result.arms])
        for place, cell in enumerate(result.cells)
    }
    kept = {place: row for place, row in rows.items() if any(e.main for e in row[1])}
    return Group(info, list(kept.values()), list(kept))


def _of_arm(cell: CellResult, name: str, info: FigureInfo) -> Entry:
    arm = next((arm for arm in cell.arms if arm.arm == name), None)
    return entry(info, arm.figures.get(info.figure) if arm else None)


def entry(info: FigureInfo, value: FigureValue | None) -> Entry:
    """A figure as it is written."""
    if value is None or value.value is None:
        return Entry(None)
    main = written(value.value, info.unit)
    if info.kind == "time":
        if value.low is None or value.high is None:
            return Entry(main)
        span = {"low": written(value.low, info.unit), "high": written(value.high, info.unit)}
        return Entry(main, message("experiments.span", **span))
    if value.foretold is None:
        return Entry(main)
    said = message("experiments.kvsim", value=written(value.foretold, info.unit))
    return Entry(main, said, wrong=value.exact is False)


def ended(result: ExperimentResult) -> list[Message]:
    """Arms that were skipped or failed: in which cells, and why; a reason once."""
    found: dict[str, list[Words]] = {}
    for cell in result.cells:
        for arm in cell.arms:
            if arm.reason is not None:
                key = "console.arm_skipped" if arm.status == "skipped" else "console.arm_failed"
                text = message(key, arm=_arms([arm.arm]), reason=arm.reason.model_dump())
                found.setdefault(text.model_dump_json(), []).append(cell_label(cell.values))
    return [
        message(
            "experiments.in_cells",
            axis=cell_axis(result.cells[0].values).model_dump(),
            cells=listed(cells, _BETWEEN),
            text=Message.model_validate_json(text).model_dump(),
        )
        for text, cells in found.items()
    ]


def left_out(result: ExperimentResult) -> list[Message]:
    """Arms that no cell has, and why."""
    found: dict[str, tuple[list[str], Message]] = {}
    for each in result.without:
        found.setdefault(each.reason.key, ([], each.reason))[0].append(each.arm)
    return [
        message("experiments.left_out", arms=_arms(arms), reason=reason.model_dump())
        for arms, reason in found.values()
    ]


def gaps(result: ExperimentResult) -> list[Message]:
    """Figures that arms lack, and counts that kvsim does not predict, each with the reason."""
    found = [("experiments.missing", each) for each in lacking(result, forecasts=False)]
    found += [("experiments.not_foretold", each) for each in lacking(result, forecasts=True)]
    return [
        message(
            key,
            arms=_arms(arms),
            figures=listed((figure_name(result.name, one) for one in figures), _BETWEEN),
            reason=reason.model_dump(),
        )
        for key, (arms, figures, reason) in found
    ]


def _arms(arms: Sequence[str]) -> object:
    return listed((arm_message(arm) if arm in ARMS else arm for arm in arms), _BETWEEN)


def lacking(
    result: ExperimentResult, *, forecasts: bool
) -> list[tuple[list[str], list[str], Message]]:
    """Figures that arms which ended well lack, or predictions of counts: (arms, figures, reason).

    Of what restates the config nothing is to be foretold, so it is not named; nor is a figure that
    cells on the other clock have.
    """
    finished = [arm for cell in result.cells for arm in cell.arms if arm.status == "finished"]
    seen = {name for arm in finished for name, one in arm.figures.items() if one.value is not None}
    by_figure: dict[tuple[str, str], tuple[list[str], Message]] = {}
    for arm in finished:
        for name, value in arm.figures.items():
            if forecasts:
                why = None if value.value is None or name in GIVEN else value.unforetold
            else:
                why = value.reason if value.value is None else None
                why = None if why == _CLOCK and name in seen else why
            if why is not None:
                arms, _ = by_figure.setdefault((name, why.key), ([], why))
                if arm.arm not in arms:
                    arms.append(arm.arm)
    found: dict[tuple[str, ...], tuple[list[str], list[str], Message]] = {}
    for (figure, key), (arms, reason) in by_figure.items():
        found.setdefault((key, *arms), (arms, [], reason))[1].append(figure)
    return list(found.values())
