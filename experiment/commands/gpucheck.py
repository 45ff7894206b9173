"""``gpucheck``: checks the engine on this machine's GPU, part by part, and packs an archive."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.commands.parser import make_parser, parse
from experiment.files.os_errors import disk_errors
from experiment.machine.packages import check_installed
from experiment.process.interrupts import rendering_started, shielded
from experiment.record.directories import run_directory
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

if TYPE_CHECKING:
    from experiment.gpucheck.result import GpuCheck
    from experiment.report.console.gpucheck import GpuCheckConsole

MINUTES = "8"
_MOST_MINUTES = 60.0


def gpucheck(words: list[str], t: Translator) -> int:
    """Run every part and write what it found; or list a GPU in a Markdown page.

    Interrupted, it writes the parts that had ended.

    Raises:
        UserError: a value that does not fit, or files that cannot be read or written.
    """
    options = parse(_parser(t), words, ())
    from experiment.report.console.gpucheck import GpuCheckConsole

    console = GpuCheckConsole(t.lang, options.ascii)
    if options.markdown is not None:
        return _list_gpu(options, console)
    minutes = _minutes(options.minutes)
    check_installed()
    with run_directory(Path(options.out) if options.out else None, "gpucheck-") as directory:
        return _check(directory, minutes, console)


def _check(directory: Path, minutes: float, console: GpuCheckConsole) -> int:
    from experiment.gpucheck import parts
    from experiment.gpucheck.run import Examination

    whole = True
    with console.progress(parts.PARTS, minutes) as ended:
        examination = Examination(directory, minutes, parts.PARTS, ended)
        try:
            with disk_errors(directory):
                examination.run()
        except KeyboardInterrupt:
            if not examination.is_begun:
                examination.remove_logs()
                with contextlib.suppress(OSError):
                    directory.rmdir()  # what it holds is not of this command
                raise
            whole = False
    with shielded():  # it took minutes
        rendering_started()
        data = examination.data
        files = _write(directory, data, console.t.lang)
    console.show_end(data, files)
    if not whole:
        return ExitCode.INTERRUPTED
    return ExitCode.OK if data.is_complete else ExitCode.INCOMPLETE


def _write(directory: Path, data: GpuCheck, lang: str) -> list[Path]:
    """Write result, page and archive; the paths of page and archive."""
    from experiment.gpucheck.archive import write_archive
    from experiment.gpucheck.result import FILE, PAGE, cleaned, result_json
    from experiment.report.pages.gpucheck import gpucheck_html
    from experiment.report.pages.index import write_listed

    texts = {FILE: result_json(data), PAGE: gpucheck_html(cleaned(data), lang)}
    write_listed(directory, texts, lang)
    return [directory / PAGE, write_archive(directory, texts)]


def _list_gpu(options: argparse.Namespace, console: GpuCheckConsole) -> int:
    from experiment.gpucheck.result import read_result
    from experiment.report.files.gpucheck_markdown import write_gpus

    if options.out is None:
        raise user_error("gpucheck.needs_out")
    page = Path(options.markdown)
    write_gpus(page, read_result(Path(options.out)))
    console.written(page)
    return ExitCode.OK


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MOST_MINUTES:
        raise user_error("gpucheck.bad_minutes", value=text, most=round(_MOST_MINUTES))
    return value


def _parser(t: Translator) -> argparse.ArgumentParser:
    parser = make_parser(t, "gpucheck")
    add = parser.add_argument
    add("--out", metavar="DIR", help=t("help.gpucheck_out"))
    add("--minutes", metavar="N", default=MINUTES, help=t("help.gpucheck_minutes"))
    add("--markdown", metavar="FILE", help=t("help.gpucheck_markdown"))
    return parser
