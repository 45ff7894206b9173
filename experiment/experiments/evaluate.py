"""Evaluate the record of an experiment: figures, predictions, findings, problems."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from statistics import median
from typing import Any

from experiment.analysis.conclusions import evaluate
from experiment.analysis.experiment_results import (
    CellArm,
    CellResult,
    ExperimentResult,
    FigureValue,
    Number,
    Without,
)
from experiment.analysis.finding_text import answer, listed
from experiment.analysis.gains import BUSY, gains
from experiment.analysis.results import Gain, Results
from experiment.config.arms import ARM_GROUPS
from experiment.config.schema import Config, expand_arms, make_config
from experiment.events import ModelPrepared, RunFinished, WorkloadReady
from experiment.experiments.arenas import ArenaPrediction
from experiment.experiments.base import Experiment, ascending
from experiment.experiments.busy import busy_note, cell_others
from experiment.experiments.cells import CellEvents
from experiment.experiments.figures import ENGINE_ARMS, FIGURES, Figure
from experiment.experiments.findings import note
from experiment.experiments.found import Found
from experiment.experiments.measured import ArmMeasured, Measured, cells_of, measure
from experiment.experiments.prediction import (
    OTHER_ENGINES,
    decided_by_scores,
    predict,
    predict_arena,
    simulator,
)
from experiment.experiments.registry import figure_name, find_experiment
from experiment.experiments.time_notes import time_notes
from experiment.files.bounded_reading import evaluating
from experiment.machine.background_load import BUSY_BEFORE
from experiment.record.log import Record
from experiment.replay.step_rows import StepRow
from experiment.text.messages import Message, arm_message, message
from kvsim.sim.arena import FITS, Fit
from kvsim.sim.metrics import SimResult

_RATE = "tokens_per_s"


def repeated_gains(
    gains: Sequence[Gain], cell: CellEvents, result: CellResult, config: Config
) -> list[Gain]:
    """Update the gains of a cell's first measured repeat with the values of all repeats."""
    rates = {gain.arm: _rates(gain, cell) for gain in gains}
    arms = [
        arm.model_copy(update={"figures": {**arm.figures, _RATE: rates[arm.arm]}})
        if arm.arm in rates
        else arm
        for arm in result.arms
    ]
    found = Found(config, [result.model_copy(update={"arms": arms})])
    updated = []
    for place, gain in enumerate(gains):
        base = gains[place - 1].arm if place else None
        update = {} if base is None else _step(found, gain.arm, base)
        rate = {_RATE: rates[gain.arm].value or gain.tokens_per_s}
        updated.append(gain.model_copy(update=rate | update))
    return updated


def _rates(gain: Gain, cell: CellEvents) -> FigureValue:
    """Tokens per second of each measured repeat; all generate the same number of tokens."""
    seconds = [done.generate_s for done in cell.repeats(gain.arm) if not done.warm_up]
    if not seconds or min(seconds) <= 0:
        return FigureValue(value=gain.tokens_per_s)
    rates = [gain.tokens_per_s * seconds[0] / each for each in seconds]
    return FigureValue(value=median(rates), values=list(rates))


def _step(found: Found, arm: str, base: str) -> dict[str, object]:
    """The factor over the base arm, or why there is none."""
    faster = found.ratio(found.cells[0], _RATE, arm, base)
    if faster is None:
        return {}
    why: Message | None = message(BUSY) if faster.busy else None
    if why is None and faster.enough and not faster.clear:
        why = message("gains.not_apart")
    return {"factor": None if why else faster.factor, "reason": why}


# kvsim's prediction for an arm or for an arena alongside it, or the reason if there is none.
Prediction = SimResult | ArenaPrediction | Message
# Reason of sequential arms, which run the same in every cell.
_SAME = "skip.one_at_a_time"


def picture(record: Record) -> tuple[Record, Results]:
    """Return the record that reports render, and its results.

    For an experiment, it is the first measured repeat of the focus cell.

    Raises:
        UserError: the record contradicts itself.
    """
    with evaluating(record.directory):
        return _picture(record)


def _picture(record: Record) -> tuple[Record, Results]:
    cells = cells_of(record)
    if not cells:
        return record, evaluate(record)
    result = evaluate_experiment(record, cells)
    place = min(result.focus, len(cells) - 1)
    view = replace(cells[place].view(1), is_drawn=record.is_drawn)
    results = evaluate(view)
    # Background load is reported over all repeats.
    seen = gains(results.arms)
    config = make_config(record.started.config)
    return view, results.model_copy(
        update={
            "gains": repeated_gains(seen, cells[place], result.cells[place], config),
            "fairness": [_of_turns(text, result) for text in results.fairness],
            "notes": [note for note in results.notes if note.key != BUSY_BEFORE],
            "experiment": result,
            "headline": _headline(result),
            "status": _status(record, result),
        }
    )


def _of_turns(text: Message, result: ExperimentResult) -> Message:
    """Replace a statement of fairness that does not hold for interleaved arms."""
    turns = any(arm.turns is not None for cell in result.cells for arm in cell.arms)
    return message("fairness.turns") if turns and text.key == "fairness.process" else text


def _headline(result: ExperimentResult) -> Message:
    """The question, and the first finding."""
    if not result.findings:
        return message("headline.none")
    title = note(result.name, "question").model_dump()
    text = answer(result.findings[0]).model_dump()
    return message("experiments.headline", title=title, text=text)


def _status(record: Record, result: ExperimentResult) -> str:
    """Status of the run; with problems it is incomplete."""
    finished = record.of(RunFinished)
    status = finished[-1].status if finished else "failed"
    return "incomplete" if status == "complete" and result.problems else status


def evaluate_experiment(record: Record, cells: Sequence[CellEvents]) -> ExperimentResult:
    """Evaluate the cells of an experiment's record."""
    config = make_config(record.started.config)
    spec = find_experiment(config.experiment.name or "")
    found = [cell_result(spec, cell) for cell in cells]
    return ExperimentResult(
        name=spec.name,
        size=config.experiment.size,
        repeats=config.experiment.repeats,
        cells_planned=cells[0].started.of,
        focus=focus_of(found),
        figures=[FIGURES[name].info for name in spec.figures],
        charts=list(spec.charts),
        cells=found,
        findings=spec.findings(Found(config, ascending(spec, found), simulate=simulator(cells))),
        problems=_problems(spec.name, found),
        notes=[
            *busy_note(cells),
            *time_notes(found, config),
            *spec.terms(config),
            *_other_machines(cells),
        ],
        without=_without(spec, found),
    )


def focus_of(cells: Sequence[CellResult]) -> int:
    """Index of the last cell in which the most arms succeeded: there is most to compare."""
    return max(range(len(cells)), key=lambda place: (_there(cells[place]), place))


def _there(cell: CellResult) -> int:
    """Number of arms that succeeded here, or in another cell if they run the same in each."""
    ended = sum(arm.status == "finished" for arm in cell.arms)
    same = sum(arm.reason is not None and arm.reason.key == _SAME for arm in cell.arms)
    return ended + same if ended else 0


def _without(spec: Experiment, cells: Sequence[CellResult]) -> list[Without]:
    """Arms that no cell has, each with the reason."""
    there = {arm.arm for cell in cells for arm in cell.arms}
    why = spec.without
    return [
        Without(arm=arm, reason=message(f"experiments.without.{why.get(arm, 'not_asked')}"))
        for arm in expand_arms(ARM_GROUPS)
        if arm not in there
    ]


def cell_result(spec: Experiment, cell: CellEvents) -> CellResult:
    """Evaluate one cell."""
    started = cell.started
    workload = cell.first(WorkloadReady)
    return CellResult(
        index=started.index,
        values=started.values,
        requests=len(workload.requests) if workload else 0,
        max_length=workload.max_length if workload else 0,
        block_size=workload.block_size if workload else 0,
        budget_bytes=workload.budget_bytes if workload else 0,
        arms=[_arm(spec, cell, each) for each in measure(cell)],
    )


def _arm(spec: Experiment, cell: CellEvents, arm: ArmMeasured) -> CellArm:
    first = arm.warm_up
    prediction: Prediction = message("experiments.unforetold.not_said")
    arenas: dict[Fit, Prediction] = dict.fromkeys(FITS, prediction)
    model = cell.first(ModelPrepared)
    figures = [FIGURES[name] for name in spec.figures]
    if first is not None and model is not None:
        prediction = predict(arm.result.arm, cell.config, model, first.workload)
        for fit in {figure.arena for figure in figures if figure.arena is not None}:
            arenas[fit] = predict_arena(cell.config, model, first.workload, fit)
    return CellArm(
        arm=arm.result.arm,
        status=arm.result.status,
        reason=arm.result.reason,
        repeats=len(arm.repeats),
        figures={
            f.name: _value(f, arm, arenas[f.arena] if f.arena else prediction) for f in figures
        },
        outputs=_outputs(first) if first else [],
        plans=_plans(arm),
        problems=_arm_problems(figures, arm),
        others_cores=cell_others(cell).get(arm.result.arm),
        turns=cell.group(arm.result.arm),
    )


def _value(figure: Figure, arm: ArmMeasured, prediction: Prediction) -> FigureValue:
    if figure.arms is not None and arm.result.arm not in figure.arms:
        return FigureValue(value=None, reason=message("experiments.reason.other_arm"))
    if arm.repeats and not counted(figure, arm.repeats[0]):
        return FigureValue(value=None, reason=message("experiments.reason.clock"))
    values = [v for one in arm.repeats if (v := figure.measure(one)) is not None]
    value: Number | None = None
    if values:
        value = median(values) if figure.about.kind == "time" else values[0]
    predicted, why = _predicted(figure, prediction)
    reason = None if values else _why_nothing(figure, arm)
    return FigureValue(
        value=value,
        values=values if figure.about.kind == "time" else [],
        reason=reason,
        foretold=predicted,
        unforetold=why,
    )


def counted(figure: Figure, one: Measured) -> bool:
    """Whether a figure is meaningful on the arrival clock of the workload.

    On the wall clock the requests of a step vary by chance; on a clock of steps waiting times have
    no meaning.
    """
    workload = one.config.workload
    if figure.about.kind == "count":
        return not workload.timed
    if figure.about.kind == "measured":
        return True
    return workload.timed or not workload.arrivals or figure.on_steps


def _predicted(figure: Figure, prediction: Prediction) -> tuple[Number | None, Message | None]:
    if figure.about.kind != "count":
        return None, None
    if isinstance(prediction, Message):
        return None, prediction
    # Figures of arenas take an ArenaPrediction, the others a SimResult.
    predict: Callable[[Any], Number | None] | None = figure.predict
    predicted = predict(prediction) if predict else None
    if predicted is not None:
        return predicted, None
    none = predict is not None and figure.absent is not None
    why = f"reason.{figure.absent}" if none else "unforetold.not_said"
    return None, message(f"experiments.{why}")


def _why_nothing(figure: Figure, arm: ArmMeasured) -> Message:
    if arm.repeats and figure.absent is not None:
        return message(f"experiments.reason.{figure.absent}")
    return arm.result.reason or message("experiments.reason.no_repeat")


def _plans(arm: ArmMeasured) -> tuple[int, int] | None:
    check = arm.result.simulator
    if check is None or check.equal_steps is None:
        return None
    return check.equal_steps, check.steps


def _outputs(one: Measured) -> list[str]:
    """A digest of each request's tokens, ordered by request."""
    ended = sorted(one.requests, key=lambda request: request.request)
    return [hashlib.sha256(repr(r.tokens).encode()).hexdigest()[:12] for r in ended]


def _arm_problems(figures: Sequence[Figure], arm: ArmMeasured) -> list[Message]:
    """Contradictions within an arm: in its replay, and between its repeats."""
    problems = list(arm.result.problems)
    check = arm.result.simulator
    if check is not None and check.agrees is False and arm.result.arm in ENGINE_ARMS:
        problems.append(check.text)
    if arm.warm_up is None:
        return problems
    runs, experiment = [arm.warm_up, *arm.repeats], arm.warm_up.config.experiment.name or ""
    problems += [one.problem for one in arm.repeats if one.problem is not None]
    for figure in figures:
        if (
            figure.about.kind != "count"
            or not counted(figure, arm.warm_up)
            or (figure.arms and arm.result.arm not in figure.arms)
        ):
            continue
        values = {figure.measure(one) for one in runs}
        if len(values) > 1:
            label = figure_name(experiment, figure.name).model_dump()
            several = listed(str(value) for value in sorted(values, key=str))
            problems.append(_uneven(message("experiments.found.at", figure=label, at=several)))
    if arm.warm_up.config.workload.timed:
        return problems
    apart = first_step_apart(runs, theirs=arm.result.arm in OTHER_ENGINES)
    if apart is not None:
        problems.append(message("experiments.problem.step", step=apart))
    first, *others = runs
    differ = (key for key, of in _EVEN.items() if any(of(one) != of(first) for one in others))
    return [*problems, *(_uneven(message(key)) for key in differ)]


def _uneven(figure: Message) -> Message:
    return message("experiments.problem.uneven", figure=figure.model_dump())


# Fields of a step that are not compared: clock, number, and the warm-up's count of the tensors.
_NO_COUNT = frozenset(("t_ns", "started_ns", "step", "witness"))


# Fields of an external engine's step that its figures are derived from.
_THEIR_COUNTS = frozenset((
    "tokens", "running", "preempted", "live", "allocated", "wasted", "held_blocks",
    "table_entries", "shared", "copied",
))  # fmt: skip


def first_step_apart(runs: Sequence[Measured], theirs: bool = False) -> int | None:
    """The first step, from 1, with a count that differs between repeats; None if there is none.

    In figures, which are sums and means over steps, differences may cancel out. ``theirs``: steps
    of an external engine, whose free blocks are not compared.
    """
    counts = [[_counts(row, theirs) for row in one.rows] for one in runs]
    steps = enumerate(zip_longest(*counts), 1)
    return next((step for step, (one, *others) in steps if any(o != one for o in others)), None)


def _counts(row: StepRow, theirs: bool) -> dict[str, object]:
    if theirs:
        return row.model_dump(include=set(_THEIR_COUNTS))
    return row.model_dump(exclude=set(_NO_COUNT))


def _prefix_counts(one: Measured) -> object:
    """Queries and hits of the prefix cache, by our events or the engine's statistics."""
    if one.events.prefix is not None:
        return one.events.prefix.model_dump(exclude={"t_ns"})
    queries, hits = (
        sum(getattr(step, name) for step in one.events.engine_steps)
        for name in ("prefix_queries", "prefix_hits")
    )
    return queries, hits


# Counts other than those of steps that must be the same in all repeats, by their names.
_EVEN: dict[str, Callable[[Measured], object]] = {
    "metric.moved_bytes": lambda one: {moved.request: moved.bytes for moved in one.events.moved},
    "experiments.axis.prefix_cache": _prefix_counts,
    "metric.new_tokens": _outputs,
}


def _problems(name: str, cells: Sequence[CellResult]) -> list[Message]:
    """All contradictions of the run, each with its cell and arm."""
    found = []
    for cell in cells:
        for arm in cell.arms:
            for problem in (*arm.problems, *_missed(name, arm)):
                place = {"cell": cell.index + 1, "arm": arm_message(arm.arm).model_dump()}
                text = problem.model_dump()
                found.append(message("experiments.problem.at", text=text, **place))
    return found


def _missed(experiment: str, arm: CellArm) -> list[Message]:
    """Counts that differ from kvsim's predictions."""
    return [
        message(
            "experiments.problem.foretold",
            figure=figure_name(experiment, name).model_dump(),
            value=figure.value,
            foretold=figure.foretold,
        )
        for name, figure in arm.figures.items()
        if figure.exact is False
    ]


def _other_machines(cells: Sequence[CellEvents]) -> list[Message]:
    """Note on which results of a CPU hold on a GPU."""
    models = (e for cell in cells for e in cell.events if isinstance(e, ModelPrepared))
    if all(model.device != "cpu" for model in models):
        return []
    scores = any(decided_by_scores(cell.config) for cell in cells)
    return [message("experiments.note.cpu_scores" if scores else "experiments.note.cpu")]
