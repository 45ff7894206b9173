"""Names and values of an experiment as messages, for console and page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from experiment.analysis.experiment_results import (
    GIVEN,
    ExperimentResult,
    FigureInfo,
    FigureValue,
    Finding,
)
from experiment.analysis.finding_text import answer, below, listed, param
from experiment.config.arms import ARMS
from experiment.experiments.findings import note
from experiment.experiments.labels import axis_label as axis_label
from experiment.experiments.labels import value_label as value_label
from experiment.experiments.registry import figure_name
from experiment.report.facts.texts import Cells, KeyedText, Words, arm_name, capital, said
from experiment.report.facts.values import written
from experiment.text import DASH, Translator
from experiment.text.messages import Message, arm_message, message

Values = Mapping[str, int | float | str]
# Prefixes of the figures of arenas that run alongside the paged arm.
ARENAS = ("first_fit", "buddy")
_LEAST_FACTOR = 1.05
# Findings of several experiments.
_SHARED = ("outputs", "paper")
_CLOCK = message("experiments.reason.clock")
# Separator of names that may contain commas.
_BETWEEN = "experiments.found.then"


@dataclass(frozen=True, slots=True)
class Entry:
    """A formatted figure: the value, if any, and the line below it.

    ``wrong``: it is a count that differs from its prediction.
    """

    main: str | None
    below: Message | None = None
    wrong: bool = False


# A figure, and an entry per arm of ``result.arms`` for each cell that has one; :func:`gaps` and
# :func:`ended` give the reasons why others have none.
Group = tuple[FigureInfo, dict[int, list[Entry]]]


def varied(cells: Sequence[Values]) -> list[Message]:
    """A line per axis with several values."""
    return [
        message(
            "experiments.varies",
            name=axis_label(axis).model_dump(),
            values=listed(value_label(axis, one) for one in values),
        )
        for axis in (cells[0] if cells else ())
        if len(values := dict.fromkeys(cell[axis] for cell in cells)) > 1
    ]


def finding_title(name: str, finding: Finding) -> Message:
    """Title of a finding."""
    return finding.title or note("found" if finding.id in _SHARED else name, finding.id)


def headline(t: Translator, result: ExperimentResult) -> str:
    """The first finding: its factor unless in doubt, its verdict, or the largest of its values."""
    if not result.findings:
        return t("headline.none")
    first, path = result.findings[0], "results.experiment.findings.0"
    title = t.message(finding_title(result.name, first))
    is_doubted = first.verdict not in (None, "shown")
    if first.kind == "ratio" and not is_doubted and (first.estimate or 0) >= _LEAST_FACTOR:
        text = t("experiments.with_factor", title=title, factor=first.estimate)
        return KeyedText(text, f"{path}.estimate")
    if first.kind == "of" and first.verdict == "shown":
        text = t("experiments.found.of", value=first.estimate, n=first.n)
        return KeyedText(t("console.problem", arm=title, text=text), f"{path}.estimate")
    if first.verdict is None:
        return t.message(_most(first) or answer(first))
    text = t("console.problem", arm=title, text=t(f"verdict.{first.verdict}"))
    return KeyedText(text, f"{path}.verdict")


def _most(finding: Finding) -> Message | None:
    """The largest value of a figure by cell; None if the finding is another one."""
    known = [side for side in finding.sides if side.value is not None]
    most = max(known, key=lambda side: side.value or 0, default=None)
    if most is None or finding.figure is None or finding.at is None:
        return None
    if not isinstance(most.label, Message) or most.label.key != "experiments.found.to":
        return None
    where = {"axis": finding.at.model_dump(), "value": most.label.params["name"]}
    return message(
        "experiments.found.most",
        figure=finding.figure.model_dump(),
        at=message("experiments.found.where", **where).model_dump(),
        value=most.value,
        unit=most.unit,
    )


def finding_cells(t: Translator, result: ExperimentResult) -> Cells:
    """A row per finding: title, what was measured, verdict."""
    rows = [
        [
            t.message(finding_title(result.name, one)),
            t(f"verdict.{one.verdict}") if one.verdict else t("experiments.observed"),
            "\n".join(map(t.message, (answer(one), *below(one)))),
        ]
        for one in result.findings
    ]
    heads = [t(f"experiments.column_{name}") for name in ("finding", "verdict", "measured")]
    styles = [one.verdict or "" for one in result.findings]
    return Cells(t("section.seen"), heads, rows, (0, 1, 2), styles, name="findings")


def figure_tables(t: Translator, result: ExperimentResult) -> list[Cells]:
    """A table for each figure with a chart, and one of all others."""
    found = groups(result)
    others = [group for group in found if group[0].figure not in result.charts]
    tables = [_table(t, result, [group]) for group in found if group not in others]
    return [*tables, *([_table(t, result, others)] if others else [])]


def _table(t: Translator, result: ExperimentResult, several: Sequence[Group]) -> Cells:
    """A row per cell, a column per arm; the names of several figures are headings."""
    title, name = t("experiments.others"), ""
    rows, styles = list[list[str]](), list[str]()
    for info, entries_of in several:
        figure, path = info.figure, "results.experiment.cells"
        title_of = t.message(figure_name(result.name, figure))
        if len(several) > 1 or figure not in result.charts:
            rows.append([title_of])
            styles.append("")
        else:
            title, name = title_of, chart_name(figure)
        for cell, entries in entries_of.items():
            keys = (f"{path}.{cell}.arms[{arm}].figures.{figure}.value" for arm in result.arms)
            shown = (_entry_text(t, *pair) for pair in zip(entries, keys, strict=True))
            rows.append([said(t, cell_label(result.cells[cell].values)), *shown])
            styles.append("missed" if any(one.wrong for one in entries) else "")
    axis = capital(t.message(cell_axis(result.cells[0].values)))
    heads = [axis, *(arm_name(t, arm) for arm in result.arms)]
    return Cells(title, heads, rows, styles=styles, name=name)


def _entry_text(t: Translator, one: Entry, key: str) -> str:
    """The value, and the line below it."""
    if one.main is None:
        return DASH
    return KeyedText("\n".join([one.main, *([t.message(one.below)] if one.below else [])]), key)


def chart_name(figure: str) -> str:
    """Name of a figure's chart and table."""
    return f"experiment-{figure.replace('_', '-')}"


def arena_of(figure: str) -> str | None:
    """The arena of a figure; None if the figure is an arm's."""
    return next((arena for arena in ARENAS if figure.startswith(f"{arena}_")), None)


def arena_name(arena: str) -> Message:
    """Name of an arena, in place of an arm's."""
    return message(f"experiments.arena.{arena}")


def cell_label(values: Values) -> Words:
    """Label of a cell: all its values."""
    return _joined(value_label(axis, value) for axis, value in values.items())


def cell_axis(values: Values) -> Message:
    """The axes of :func:`cell_label`."""
    joined = _joined(map(axis_label, values))
    assert isinstance(joined, Message)
    return joined


def _joined(labels: Iterable[Words]) -> Words:
    return reduce(
        lambda one, other: message("experiments.pair", one=param(one), other=param(other)), labels
    )


def cell_name(values: Values) -> Message:
    """Name before a :func:`cell_label`; text values after the first need no axis."""
    first, *others = values
    named = all(isinstance(values[name], str) for name in others)
    return axis_label(first) if named else cell_axis(values)


def groups(result: ExperimentResult) -> list[Group]:
    """All figures that any arm has."""
    found = []
    for info in result.figures:
        rows = {}
        for place, cell in enumerate(result.cells):
            arms = [cell.arm(name) for name in result.arms]
            row = [entry(info, arm.figures.get(info.figure) if arm else None) for arm in arms]
            if any(one.main for one in row):
                rows[place] = row
        found.append((info, rows))
    return [group for group in found if group[1]]


def entry(info: FigureInfo, value: FigureValue | None) -> Entry:
    """Format a figure."""
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
    predicted = message("experiments.kvsim", value=written(value.foretold, info.unit))
    return Entry(main, predicted, wrong=value.exact is False)


def ended(result: ExperimentResult) -> list[Message]:
    """Skipped and failed arms with their cells, grouped by reason."""
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
    """Missing figures or predictions of successful arms: (arms, figures, reason).

    ``forecasts``: predictions of counts, without counts that restate the config. Figures that cells
    on the other clock have are not missing.
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
