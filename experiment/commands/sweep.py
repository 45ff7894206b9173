"""``sweep``: a grid of simulations, each cell a file, by processes or on a Ray cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiment.commands.parser import make_parser, parse
from experiment.commands.simulation_options import help_of, shows_list
from experiment.config.reading import parse_assignment, read_toml
from experiment.files.bounded_reading import evaluating
from experiment.files.os_errors import writing
from experiment.files.shipped import find_config
from experiment.process.interrupts import rendering_started
from experiment.record.directories import shared_directory
from experiment.record.log import EVENTS_FILE, remove_parts
from experiment.record.simulation import SIM_FILE
from experiment.simulate.names import unknown_gpu, unknown_model
from experiment.text import Translator
from experiment.text.errors import ExitCode, shown, unknown, user_error
from experiment.text.sizes import parse_bytes, size_error
from kvsim.sizing.gpus import UnknownGPUError
from kvsim.sizing.models import UnknownModelError
from kvsim.sweep import CellStore, ComputedCell, SweepCell, SweepError, cells_summary, expand
from kvsim.sweep.grid import AXES
from kvsim.traces import PRESETS

if TYPE_CHECKING:
    from experiment.report.console.sweep import SweepConsole

# How a person writes it: the axis, which has bytes.
_BUDGET, _BYTES = "kv_budget", "budget_bytes"


def sweep(words: list[str], t: Translator) -> int:
    """Compute the cells that are missing, and summarise all of them.

    Raises:
        UserError: the grid does not make cells, or nobody can compute them.
    """
    options = parse(_parser(t), words, ())
    if shows_list(options, t):
        return ExitCode.OK
    if options.config is None and not options.set:
        raise user_error("error.sweep.no_config")
    workers = _workers(options.workers)
    cells = _expand(_grid(options.config, options.set or ()))
    directory = Path(options.out or f"reports/sweep-{_name(options.config)}")
    from experiment.report.console.sweep import SweepConsole

    with shared_directory(directory):
        if any((directory / name).exists() for name in (EVENTS_FILE, SIM_FILE)):
            raise user_error("error.out_not_empty", path=str(directory))  # a table has one name
        return _fill(cells, directory, workers, options.ray, SweepConsole(t.lang, options.ascii))


def _fill(
    cells: Sequence[SweepCell],
    directory: Path,
    workers: int,
    ray: str | None,
    console: SweepConsole,
) -> int:
    """Compute what is missing in a directory, and show all of it."""
    store, missing = _begun(directory, cells)
    console.begin(len(cells), len(missing), workers, ray)
    try:
        with (
            console.progress(len(missing)) as advance,
            closing(_computed(missing, workers, ray)) as computed,
        ):
            for done in computed:
                with writing(directory, ExitCode.UNWRITABLE):
                    store.put(done)
                advance()
    except KeyboardInterrupt:
        console.interrupted(sum(map(store.has, cells)), len(cells), directory)
        return ExitCode.INTERRUPTED
    rendering_started()
    with evaluating(directory):
        rows = cells_summary(store.read(cell) for cell in cells)
        console.show(rows, directory)  # a figure that is none shows when it is written
    return ExitCode.OK


def _computed(
    cells: Sequence[SweepCell], workers: int, address: str | None
) -> Generator[ComputedCell]:
    from kvsim.sweep.processes import run_in_processes
    from kvsim.sweep.ray_cluster import run_on_ray

    if not cells:
        return
    try:
        yield from run_on_ray(cells, address) if address else run_in_processes(cells, workers)
    except SweepError as error:
        raise user_error(f"error.sweep.{error.code}", **error.params) from error


def _grid(config: str | None, assignments: Sequence[str]) -> dict[str, Any]:
    grid: dict[str, Any] = {}
    if config is not None:
        table = read_toml(find_config(config)).get("sweep")
        if not isinstance(table, dict):
            raise user_error("error.sweep.not_a_table", path=config)
        grid |= table
    grid |= dict(parse_assignment(text) for text in assignments)
    if _BUDGET in grid:
        given = grid.pop(_BUDGET)
        several = given if isinstance(given, list) else [given]
        grid[_BYTES] = [_bytes(each) for each in several]
    return grid


def _bytes(value: Any) -> int:
    try:
        return parse_bytes(str(value))
    except ValueError as error:
        raise size_error(_BUDGET, value) from error


def _expand(grid: Mapping[str, Any]) -> list[SweepCell]:
    try:
        return expand(grid)
    except SweepError as error:
        params = dict(error.params)
        if "value" in params:  # of a file: any kind of object
            params["value"] = shown(params["value"])
        if error.code == "unknown_axis":
            known = [_BUDGET if name == _BYTES else name for name in AXES]
            raise unknown("axis", str(params["axis"]), known) from error
        if error.code == "no_file":
            params["known"] = ", ".join(PRESETS)
        code = error.code
        if "choices" in params:
            code, params["choices"] = "not_a_choice", ", ".join(params["choices"])  # type: ignore[arg-type]
        raise user_error(f"error.sweep.{code}", **params) from error
    except UnknownModelError as error:
        raise unknown_model(error) from error
    except UnknownGPUError as error:
        raise unknown_gpu(error) from error


def _workers(value: str | None) -> int:
    if value is None:
        return os.cpu_count() or 1
    if not value.isdecimal() or len(value) > 9 or not 1 <= int(value) <= 4096:
        raise user_error("error.sweep.workers", value=value)
    return int(value)


def _begun(directory: Path, cells: Sequence[SweepCell]) -> tuple[CellStore, list[SweepCell]]:
    """The cells of a directory, and those that are missing."""
    with writing(directory):
        store = CellStore(directory)
        remove_parts(directory)
        return store, store.begin(cells)


def _name(config: str | None) -> str:
    return Path(config).stem.removeprefix("sweep-") if config else "grid"


def _parser(t: Translator) -> argparse.ArgumentParser:
    parser = make_parser(t, "sweep")
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help=t("help.sweep_config"))
    add("--set", action="append", metavar="AXIS=VALUES", help=t("help.sweep_set"))
    add("--out", metavar="DIR", help=t("help.sweep_out"))
    add("--workers", metavar="N", help=t("help.workers"))
    add("--ray", metavar="ADDRESS", help=t("help.ray"))
    add("--list", metavar="WHAT", help=help_of(t, "--list"))
    return parser
