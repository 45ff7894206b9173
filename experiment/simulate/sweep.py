"""A grid of simulations: its cells and their results."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

from experiment.config.reading import parse_assignment, read_toml
from experiment.files.bounded_reading import evaluating
from experiment.files.os_errors import writing
from experiment.files.shipped import find_config
from experiment.process.environment import without_secrets
from experiment.record.log import remove_parts
from experiment.simulate.names import unknown_trace
from experiment.text.errors import ExitCode, UserError, shown, unknown, user_error
from experiment.text.sizes import parse_bytes, size_error
from experiment.workload.kvsim_errors import translate_errors
from kvsim.sweep import CellStore, ComputedCell, SweepCell, SweepError, cells_summary, expand
from kvsim.sweep.grid import AXES

# The budget axis as users write it, and as the parameter in bytes.
_BUDGET, _BYTES = "kv_budget", "budget_bytes"
# Called with the number of missing cells; the context yields a function to call after each cell.
Progress = Callable[[int], AbstractContextManager[Callable[[], None]]]


def sweep(
    cells: Sequence[SweepCell],
    directory: Path,
    workers: int = 1,
    ray: str | None = None,
    progress: Progress = lambda _: nullcontext(lambda: None),
) -> list[dict[str, Any]]:
    """Compute the cells that a directory lacks, each into a file; return a row per cell.

    Args:
        cells: from :func:`make_cells`.
        directory: exists; cells that it contains are reused.
        workers: number of processes. ``ray``: address of a cluster to use instead.
        progress: shows progress.

    Raises:
        UserError: no worker is available, or a file cannot be written.
        KeyboardInterrupt: interrupted; finished cells are kept.
    """
    with writing(directory):
        store = CellStore(directory)
        remove_parts(directory)
        missing = store.begin(cells)
    with progress(len(missing)) as advance, closing(_computed(missing, workers, ray)) as computed:
        for done in computed:
            with writing(directory, ExitCode.UNWRITABLE):
                store.put(done)
            advance()
    with evaluating(directory):
        return cells_summary(store.read(cell) for cell in cells)


def _computed(
    cells: Sequence[SweepCell], workers: int, address: str | None
) -> Generator[ComputedCell]:
    from kvsim.sweep.processes import run_in_processes
    from kvsim.sweep.ray_cluster import run_on_ray

    if not cells:
        return
    try:
        with without_secrets():
            yield from run_on_ray(cells, address) if address else run_in_processes(cells, workers)
    except SweepError as error:
        if error.code == "no_ray":
            params = {"packages": "ray", "command": "pip install 'pagedkv-lab[ray]'"}
            raise user_error("error.not_installed", **params) from error
        raise user_error(f"error.sweep.{error.code}", **error.params) from error


def read_grid(config: str | None, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Axes and their values.

    Args:
        config: a file, or the name of a shipped one.
        assignments: ``AXIS=VALUES``; they override those of the file.

    Raises:
        UserError: the file has no grid, or a budget is not a size.
    """
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


def _invalid_grid(code: str, params: Mapping[str, Any]) -> UserError:
    axis, value = params.get("axis", ""), shown(params.get("value", ""))  # of a file: any type
    if code == "unknown_axis":
        return unknown("axis", axis, [_BUDGET if name == _BYTES else name for name in AXES])
    if code == "no_file":
        return unknown_trace(params["path"])
    if "choices" in params:
        choices = ", ".join(params["choices"])
        return user_error("error.not_a_choice", config_key=axis, value=value, choices=choices)
    limits = {"value": params.get("count"), "limit": params.get("most")}
    key, named = {
        "bad_value": ("error.bad_value", {"config_key": axis, "value": value}),
        "missing_axes": ("error.sim.needs", {"flags": params.get("axes")}),
        "no_rate_to_scale": ("error.sim.no_rate_to_scale", {"value": value}),
        "no_values": ("error.empty", {"config_key": axis}),
        "too_many": ("error.limit_le", {"config_key": "cells", **limits}),
    }[code]
    return user_error(key, **named)


def make_cells(grid: Mapping[str, Any]) -> list[SweepCell]:
    """Return the cells of a grid.

    Raises:
        UserError: an invalid axis, value or name.
    """
    try:
        with translate_errors():
            return expand(grid)
    except SweepError as error:
        raise _invalid_grid(error.code, error.params) from error
