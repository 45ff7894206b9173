"""What an experiment declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.arms import ARM_GROUPS
from experiment.config.schema import Config, make_config, merge_tables
from experiment.experiments.cells import Cell, CellEvents
from experiment.experiments.found import Found
from experiment.files.shipped import CONFIGS
from experiment.text.errors import shown, user_error
from experiment.text.messages import Message, message
from experiment.workload.requests import check_size
from kvsim.sizing.vllm_capacity import block_multiple
from kvsim.spelling import nearest
from kvsim.traces.distributions import ArrivalProcess
from kvsim.traces.generate import PRESETS, SyntheticTrace, from_preset

# Where these are empty, an ordinary run has requests of its own.
_REQUESTS = ("workload.lengths", "workload.prompts")


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment.

    Attributes:
        name: as in ``experiment.name``; its texts are under ``experiments.<name>``.
        cells: what is run, from the config.
        figures: names of :mod:`experiment.experiments.figures`, in the order of the table.
        charts: those of them that are drawn over the cells.
        findings: what the run shows, the headline first.
        focus: which cell the pages of a single run show, unless in others more arms ended well; the
            last one where nothing is said.
        without: of arms that its config leaves out, why: a name of ``experiments.without``.
        values: what ``experiment.values`` are: counts, whole numbers of 1 or more, or numbers,
            which may be fractions; both are run in ascending order, since findings speak of the
            smallest and the largest; counts with options paired by their places, which keep theirs;
            or names.
        options: of ``experiment.options``, those that it reads; ``draw.seed`` is one of a table's.
            Of names each value is one, too.
        notices: what of the input is not run as it stands there; it is asked before the run.
        terms: what of its options a reader must know who has only the figures.
        spared: arms that a cell need not run after what the cells before it have shown, and why;
            it is asked before each cell. None: every cell runs all of its arms.
        renamed: figures that have a name of their own among the experiment's texts.
    """

    name: str
    cells: Callable[[Config], list[Cell]]
    figures: tuple[str, ...]
    charts: tuple[str, ...]
    findings: Callable[[Found], list[Finding]]
    focus: Callable[[Sequence[Cell]], int] = field(default=lambda cells: len(cells) - 1)
    without: Mapping[str, str] = field(default_factory=dict)
    values: Literal["counts", "numbers", "paired", "names"] = "counts"
    options: tuple[str, ...] = ()
    notices: Callable[[Config], list[Message]] = field(default=lambda _: [])
    terms: Callable[[Config], list[Message]] = field(default=lambda _: [])
    spared: Callable[[Cell, Sequence[CellEvents]], dict[str, Message]] | None = None
    renamed: frozenset[str] = frozenset()


def planned_cells(experiment: Experiment, config: Config, device: str = "cpu") -> list[Cell]:
    """The cells of a run.

    Args:
        device: on which it runs, where the config leaves that to the machine.

    Raises:
        UserError: the config names no values, or one of them twice, or one that is no number, or
            no count, where these are meant, or one without any request, or not the options that the
            experiment asks for, or one that it does not know.
    """
    _check_options(experiment, config)
    config = _ordered(experiment, config)
    if config.run.device == "auto":
        run = config.run.model_copy(update={"device": device})
        config = config.model_copy(update={"run": run})
    try:
        cells = experiment.cells(config)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        path = str(CONFIGS / f"{experiment.name}.toml")
        raise user_error(
            "error.experiment_options", name=experiment.name, why=why, path=path
        ) from error
    if not cells:
        raise user_error("error.experiment_values", name=experiment.name)
    for place, cell in enumerate(cells):
        if any(key in cell.overrides and not cell.overrides[key] for key in _REQUESTS):
            told = ", ".join(f"{key}={value}" for key, value in cell.values.items())
            raise user_error("error.experiment_empty", name=experiment.name, cell=told)
        # Two of one name are one figure to whoever compares runs.
        if cell.values in [other.values for other in cells[:place]]:
            raise user_error("error.experiment_twice", name=experiment.name)
    return cells


def _ordered(experiment: Experiment, config: Config) -> Config:
    """The config with its numbers in ascending order, and counts as whole numbers.

    Raises:
        UserError: one of them is no number: a text would be run as one, and named as a text. Or no
            count: a part of one would be cut off, and the cell be named with it.
    """
    if experiment.values == "names":
        return config
    numbers: list[int | float] = []
    for value in config.experiment.values:
        if isinstance(value, str):
            told = json.dumps(value, ensure_ascii=False)
            raise user_error("error.experiment_number", name=experiment.name, value=told)
        numbers.append(value if experiment.values == "numbers" else _count(experiment, value))
    if experiment.values != "paired":
        numbers.sort()
    asked = config.experiment.model_copy(update={"values": tuple(numbers)})
    return config.model_copy(update={"experiment": asked})


def _count(experiment: Experiment, value: float) -> int:
    if value < 1 or value != int(value):
        raise user_error("error.experiment_count", name=experiment.name, value=shown(value))
    return int(value)


def ascending(experiment: Experiment, cells: Sequence[CellResult]) -> list[CellResult]:
    """The cells as findings look at them: of numbers the smallest first.

    A record of before has them in the order in which its values were given.
    """
    if experiment.values in ("paired", "names"):
        return list(cells)
    # The first that a cell is called by is of ``experiment.values``.
    return sorted(cells, key=lambda cell: float(next(iter(cell.values.values()))))


def _check_options(experiment: Experiment, config: Config) -> None:
    """A misspelt option would change nothing, and nobody would be told."""
    asked = config.experiment
    own = asked.values if experiment.values == "names" else ()
    known = [f"experiment.options.{name}" for name in (*experiment.options, *own)]
    for option in _dotted(asked.options, "experiment.options"):
        if option in known:
            continue
        told = {"name": experiment.name, "option": option}
        near = nearest(option, known)
        if near:
            raise user_error("error.experiment_option_near", near=near[0], **told)
        if not experiment.options:
            raise user_error("error.experiment_option_none", **told)
        raise user_error("error.experiment_option", choices=", ".join(experiment.options), **told)


def _dotted(table: Mapping[str, Any], above: str) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{above}.{name}")
        else:
            yield f"{above}.{name}"


def cell_config(config: Config, cell: Cell) -> Config:
    """The config of a cell.

    Raises:
        UserError: a value of the cell does not fit.
    """
    # What nobody set stays unset: whoever adapts a config to a machine leaves alone what was.
    data = config.model_dump(exclude_unset=True)
    for key, value in cell.overrides.items():
        merge_tables(data, _nested(key, value))
    if cell.arms is not None:
        merge_tables(data, {"run": {"arms": list(cell.arms)}})
    return make_config(data)


def varied(name: str, key: str) -> Callable[[Config], list[Cell]]:
    """Cells of an experiment that varies one key: ``experiment.values`` are its values."""

    def cells(config: Config) -> list[Cell]:
        return [Cell({name: value}, {key: value}) for value in config.experiment.values]

    return cells


def without_blocks_of(block_size: int, device: str) -> dict[str, Message]:
    """For ``Cell.absent``: vLLM where it has no blocks of that size on the device."""
    multiple = block_multiple(device)
    absent = {"vllm": message("skip.vllm_blocks", multiple=multiple)}
    return absent if block_size % multiple else {}


def cell_of(
    config: Config,
    values: Mapping[str, int | float | str],
    overrides: Mapping[str, Any],
    absent: Mapping[str, Message],
) -> Cell | None:
    """A cell with those arms of the run that are not absent; None: there is none."""
    arms = tuple(arm for arm in config.arm_names if arm not in absent)
    asked = {arm: why for arm, why in absent.items() if arm in config.arm_names}
    return Cell(values, overrides, arms, asked) if arms else None


def contiguous(reason: str) -> dict[str, str]:
    """For ``Experiment.without``: the same of every arm of Transformers' contiguous caches."""
    return dict.fromkeys(ARM_GROUPS["contiguous"], reason)


def other_engines(reason: str) -> dict[str, str]:
    """For ``Experiment.without``: the same of the engines that are not ours."""
    return dict.fromkeys(("transformers_paged", "vllm"), reason)


def in_turn(lengths: Sequence[list[int]], count: int) -> list[list[int]]:
    """So many (prompt, new) of requests: those of ``lengths`` in turn.

    Raises:
        UserError: more than a run holds; seen before any list of them is made.
    """
    check_size(count, 0)
    return [lengths[index % len(lengths)] for index in range(count)]


# What :func:`drawn_lengths` reads.
DRAW = ("draw.workload", "draw.requests", "draw.seed", "draw.max_length")


def drawn_lengths(
    config: Config, requests: int | None = None, *, cut: bool = True
) -> list[list[int]]:
    """(prompt, new) tokens of requests as ``options.draw`` describes them.

    It names a workload of :data:`kvsim.traces.generate.PRESETS`, ``requests`` (unless another
    number is given), a ``seed`` and the most tokens of one, ``max_length``: longer pairs are drawn
    again, unless they are not to be ``cut``.

    Raises:
        UserError: more requests than a run holds.
    """
    asked: Any = config.experiment.options["draw"]
    count = requests or asked["requests"]
    check_size(count, 0)
    recipe = from_preset(
        asked["workload"], count, ArrivalProcess(None), seed=asked["seed"],
        max_length=asked["max_length"] if cut else None,
    )  # fmt: skip
    return [[each.prompt_tokens, each.output_tokens] for each in SyntheticTrace(recipe)]


def draw_terms(config: Config) -> list[Message]:
    """How lengths were drawn, and what came of it: as many tokens, on average."""
    asked: Any = config.experiment.options["draw"]
    preset, drawn = PRESETS[asked["workload"]], drawn_lengths(config)
    prompts, outputs = (fmean(column) for column in zip(*drawn, strict=True))
    told = {
        "workload": asked["workload"], "requests": len(drawn), "most": asked["max_length"],
        "prompt_mean": preset.prompt.mean, "output_mean": preset.output.mean,
        "prompts": prompts, "outputs": outputs,
    }  # fmt: skip
    return [message("experiments.drawn", **told)]


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value
