"""``sweep``: compute a grid of simulations, one file per cell, in processes or on Ray."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.commands.simulation_options import LIST
from experiment.commands.values import whole
from experiment.files.bounded_reading import evaluating
from experiment.process.interrupts import rendering_started
from experiment.record.directories import shared_directory
from experiment.record.log import EVENTS_FILE
from experiment.record.simulation import SIM_FILE
from experiment.simulate import sweep as simulated
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error
from kvsim.sweep import CellStore, SweepCell

if TYPE_CHECKING:
    from experiment.report.console.display import Advance
    from experiment.report.console.sweep import SweepConsole

OPTIONS = {
    "config": "CONFIG", "--set+": "AXIS=VALUES", "--out": "DIR",
    "--workers": ("N", partial(whole, most=4096)), "--ray": "ADDRESS", **LIST,
}  # fmt: skip


def sweep(options: argparse.Namespace, t: Translator) -> int:
    """Compute missing cells, and summarise all.

    Raises:
        UserError: invalid grid, or no workers.
    """
    if options.config is None and not options.set:
        raise user_error("error.sweep.no_config")
    workers = options.workers or os.cpu_count() or 1
    cells = simulated.make_cells(simulated.read_grid(options.config, options.set or ()))
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
    """Compute the missing cells of a directory, and show all."""

    def progress(missing: int) -> AbstractContextManager[Advance]:
        console.begin(len(cells), missing, workers, ray)
        return console.progress(missing)

    try:
        rows = simulated.sweep(cells, directory, workers, ray, progress)
    except KeyboardInterrupt:
        finished = sum(map(CellStore(directory).has, cells))
        console.interrupted(finished, len(cells), directory)
        return ExitCode.INTERRUPTED
    rendering_started()
    from experiment.report.files.write import write_listed
    from experiment.report.pages.sweep import sweep_reports

    with evaluating(directory):
        # Invalid figures are detected when written.
        files = write_listed(directory, sweep_reports(rows, console.t.lang), console.t.lang)
        console.show(rows, files)
    return ExitCode.OK


def _name(config: str | None) -> str:
    return Path(config).stem.removeprefix("sweep-") if config else "grid"
