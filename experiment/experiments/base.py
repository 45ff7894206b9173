"""The declaration of an experiment, and helpers for its cells."""

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
from experiment.text.errors import UserError, shown, user_error
from experiment.text.messages import Message, message
from experiment.workload.requests import check_size
from kvsim.base.spelling import nearest
from kvsim.sizing.vllm_capacity import block_multiple
from kvsim.traces.distributions import ArrivalProcess
from kvsim.traces.generate import PRESETS, SyntheticTrace, from_preset

# If these are empty, a run would use the default prompts.
_REQUESTS = ("workload.lengths", "workload.prompts")


@dataclass(frozen=True, slots=True)
class Experiment:
    """An experiment.

    Attributes:
        name: as in ``experiment.name``; its texts are under ``experiments.<name>``.
        cells: returns the cells for a config.
        figures: names of :mod:`experiment.experiments.figures`, in the order of the table.
        charts: the figures that are plotted over the cells.
        findings: returns the findings, the headline first.
        without: excluded arms, each with its reason: a name of ``experiments.without``.
        values: kind of ``experiment.values``: counts (integers of 1 or more) or numbers, both run
            in ascending order, since findings use the smallest and the largest; paired (counts in
            the order of their options); or names.
        options: keys of ``experiment.options`` that it reads, dotted within tables. If values are
            names, each value is an option too.
        notices: returns changes to the input; called before the run.
        terms: returns the options that a reader of the figures needs.
        spared: returns arms that a cell skips because of earlier cells, and why; called before
            each cell with these, and a function that evaluates one. None: every cell runs all of
            its arms.
        renamed: figures that the experiment's texts name differently.
    """

    name: str
    cells: Callable[[Config], list[Cell]]
    figures: tuple[str, ...]
    charts: tuple[str, ...]
    findings: Callable[[Found], list[Finding]]
    without: Mapping[str, str] = field(default_factory=dict)
    values: Literal["counts", "numbers", "paired", "names"] = "counts"
    options: tuple[str, ...] = ()
    notices: Callable[[Config], list[Message]] = field(default=lambda _: [])
    terms: Callable[[Config], list[Message]] = field(default=lambda _: [])
    spared: (
        Callable[
            [Cell, Sequence[CellEvents], Callable[[CellEvents], CellResult]], dict[str, Message]
        ]
        | None
    ) = None
    renamed: frozenset[str] = frozenset()


def planned_cells(experiment: Experiment, config: Config, device: str = "cpu") -> list[Cell]:
    """Return the cells of a run.

    Args:
        device: replaces ``auto`` in the config.

    Raises:
        UserError: no values, a duplicate, a value of the wrong kind or without requests, or a
            missing or unknown option.
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
        raise user_error("error.empty", config_key="experiment.values")
    for place, cell in enumerate(cells):
        if any(key in cell.overrides and not cell.overrides[key] for key in _REQUESTS):
            named = ", ".join(f"{key}={value}" for key, value in cell.values.items())
            raise user_error("error.experiment_empty", name=experiment.name, cell=named)
        # The values identify a cell when runs are compared.
        if cell.values in [other.values for other in cells[:place]]:
            raise user_error("error.experiment_twice", name=experiment.name)
    return cells


def _ordered(experiment: Experiment, config: Config) -> Config:
    """Sort the config's numbers in ascending order, and convert counts to integers.

    Raises:
        UserError: a value is not a number, or not a count although counts are required.
    """
    if experiment.values == "names":
        return config
    numbers: list[int | float] = []
    for value in config.experiment.values:
        if isinstance(value, str):
            text = json.dumps(value, ensure_ascii=False)
            raise _not_a_kind(text, "error.kind.number")
        numbers.append(value if experiment.values == "numbers" else _count(value))
    if experiment.values != "paired":
        numbers.sort()
    section = config.experiment.model_copy(update={"values": tuple(numbers)})
    return config.model_copy(update={"experiment": section})


def _count(value: float) -> int:
    if value != int(value):
        raise _not_a_kind(shown(value), "error.kind.whole")
    if value < 1:
        raise user_error(
            "error.limit_ge", config_key="experiment.values", value=shown(value), limit=1
        )
    return int(value)


def _not_a_kind(value: str, kind: str) -> UserError:
    return user_error(
        "error.not_a_kind", config_key="experiment.values", value=value, kind=message(kind)
    )


def ascending(experiment: Experiment, cells: Sequence[CellResult]) -> list[CellResult]:
    """Sort the cells for the findings: numbers in ascending order.

    Older records have them in the order of the config.
    """
    if experiment.values in ("paired", "names"):
        return list(cells)
    # The first of a cell's values is from ``experiment.values``.
    return sorted(cells, key=lambda cell: float(next(iter(cell.values.values()))))


def _check_options(experiment: Experiment, config: Config) -> None:
    """Refuse unknown options; a misspelt one would have no effect."""
    section = config.experiment
    own = section.values if experiment.values == "names" else ()
    known = [f"experiment.options.{name}" for name in (*experiment.options, *own)]
    for option in _dotted(section.options, "experiment.options"):
        if option in known:
            continue
        params = {"name": experiment.name, "option": option}
        near = nearest(option, known)
        if near:
            raise user_error("error.experiment_option_near", near=near[0], **params)
        if not experiment.options:
            raise user_error("error.experiment_option_none", **params)
        raise user_error("error.experiment_option", choices=", ".join(experiment.options), **params)


def _dotted(table: Mapping[str, Any], above: str) -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{above}.{name}")
        else:
            yield f"{above}.{name}"


def cell_config(config: Config, cell: Cell) -> Config:
    """Return the config of a cell.

    Raises:
        UserError: an invalid value.
    """
    # Unset keys stay unset: only those are adapted to a machine.
    data = config.model_dump(exclude_unset=True)
    for key, value in cell.overrides.items():
        merge_tables(data, _nested(key, value))
    if cell.arms is not None:
        merge_tables(data, {"run": {"arms": list(cell.arms)}})
    return make_config(data)


def varied(
    axis: str, overrides: str | Callable[[Config, Any], dict[str, Any]]
) -> Callable[[Config], list[Cell]]:
    """Return cells that vary one ``axis`` over ``experiment.values``.

    ``overrides``: the varied config key, or returns the config values of a cell by dotted key.
    """

    def cell(config: Config, value: int | float | str) -> Cell:
        if isinstance(overrides, str):
            return Cell({axis: value}, {overrides: value})
        return Cell({axis: value}, overrides(config, value))

    return lambda config: [cell(config, value) for value in config.experiment.values]


def without_blocks_of(block_size: int, device: str) -> dict[str, Message]:
    """For ``Cell.absent``: vLLM, if it does not support the block size on the device."""
    multiple = block_multiple(device)
    absent = {"vllm": message("skip.vllm_blocks", multiple=multiple)}
    return absent if block_size % multiple else {}


def cell_of(
    config: Config,
    values: Mapping[str, int | float | str],
    overrides: Mapping[str, Any],
    absent: Mapping[str, Message],
) -> Cell | None:
    """Return a cell with the run's arms that are not absent; None if there is none."""
    arms = tuple(arm for arm in config.arm_names if arm not in absent)
    requested = {arm: why for arm, why in absent.items() if arm in config.arm_names}
    return Cell(values, overrides, arms, requested) if arms else None


def contiguous(reason: str) -> dict[str, str]:
    """For ``Experiment.without``: one reason for all arms with contiguous Transformers caches."""
    return dict.fromkeys(ARM_GROUPS["contiguous"], reason)


def other_engines(reason: str) -> dict[str, str]:
    """For ``Experiment.without``: one reason for all external engines."""
    return dict.fromkeys(("transformers_paged", "vllm"), reason)


def in_turn(lengths: Sequence[list[int]], count: int) -> list[list[int]]:
    """Return ``count`` pairs (prompt, new) in tokens, cycling through ``lengths``.

    Raises:
        UserError: more requests than a run may have.
    """
    check_size(count, 0)
    return [lengths[index % len(lengths)] for index in range(count)]


# Options that :func:`drawn_lengths` reads.
DRAW = ("draw.workload", "draw.requests", "draw.seed", "draw.max_length")


def drawn_lengths(
    config: Config, requests: int | None = None, *, cut: bool = True
) -> list[list[int]]:
    """Sample pairs (prompt, new) in tokens, as ``options.draw`` specifies.

    Args:
        config: ``options.draw`` has ``workload``, a name of
            :data:`kvsim.traces.generate.PRESETS`; ``requests``; ``seed``; and ``max_length`` in
            tokens.
        requests: replaces ``options.draw.requests``.
        cut: resample pairs that are longer than ``max_length``.

    Raises:
        UserError: more requests than a run may have.
    """
    draw: Any = config.experiment.options["draw"]
    count = requests or draw["requests"]
    check_size(count, 0)
    recipe = from_preset(
        draw["workload"], count, ArrivalProcess(None), seed=draw["seed"],
        max_length=draw["max_length"] if cut else None,
    )  # fmt: skip
    return [[each.prompt_tokens, each.output_tokens] for each in SyntheticTrace(recipe)]


def draw_terms(config: Config) -> list[Message]:
    """Describe how lengths were sampled, with the means of preset and sample in tokens."""
    draw: Any = config.experiment.options["draw"]
    preset, drawn = PRESETS[draw["workload"]], drawn_lengths(config)
    prompts, outputs = (fmean(column) for column in zip(*drawn, strict=True))
    params = {
        "workload": draw["workload"], "requests": len(drawn), "most": draw["max_length"],
        "prompt_mean": preset.prompt.mean, "output_mean": preset.output.mean,
        "prompts": prompts, "outputs": outputs,
    }  # fmt: skip
    return [message("experiments.drawn", **params)]


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value
