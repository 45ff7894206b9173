"""``gpucheck``: check the engine on this machine's GPU, and pack an archive of the results."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.commands.values import number
from experiment.files.bounded_reading import evaluating
from experiment.machine.packages import check_installed
from experiment.process.environment import check_addresses
from experiment.process.interrupts import rendering_started, shielded
from experiment.record.directories import run_directory
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

if TYPE_CHECKING:
    from experiment.report.console.gpucheck import GpuCheckConsole

MINUTES = 8.0
OPTIONS = {
    "--out": "DIR", "--minutes": ("N", partial(number, above=0, most=60)), "--markdown": "FILE",
}  # fmt: skip


def gpucheck(options: argparse.Namespace, t: Translator) -> int:
    """Run all parts and write the results; or list a GPU in a Markdown page.

    If interrupted, finished parts are written.

    Raises:
        UserError: invalid value, or files that cannot be read or written.
    """
    from experiment.report.console.gpucheck import GpuCheckConsole

    console = GpuCheckConsole(t.lang, options.ascii)
    if options.markdown is not None:
        return _list_gpu(options, console)
    check_installed()
    check_addresses()
    with run_directory(Path(options.out) if options.out else None, "gpucheck-") as directory:
        return _check(directory, options.minutes or MINUTES, console)


def _check(directory: Path, minutes: float, console: GpuCheckConsole) -> int:
    from experiment.gpucheck.archive import write_archive
    from experiment.gpucheck.run import check_gpu
    from experiment.report.files.write import write_listed
    from experiment.report.pages.gpucheck import gpucheck_reports

    data = check_gpu(directory, minutes, console.progress)
    with shielded():  # it took minutes
        rendering_started()
        reports = gpucheck_reports(data, console.t.lang)
        write_listed(directory, reports, console.t.lang)
        archive = write_archive(directory, tuple(reports))
    console.show_end(data, directory, archive)
    if not data.is_whole:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if data.is_complete else ExitCode.INCOMPLETE


def _list_gpu(options: argparse.Namespace, console: GpuCheckConsole) -> int:
    from experiment.gpucheck.result import read_result
    from experiment.report.files.markdown import write_gpus

    if options.out is None:
        raise user_error("error.needs_flag", flag="--markdown", other="--out")
    page, found = Path(options.markdown), Path(options.out)
    with evaluating(found):
        write_gpus(page, read_result(found))
    console.written(page)
    return ExitCode.OK
