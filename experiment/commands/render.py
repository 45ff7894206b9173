"""Draws a run: evaluates its record and writes the summary and every report beside it.

    record ─ results ─ run.json ─ reports ─ checksums ─ index ─ console

The same for a run that has just ended and for an old one that is drawn again; nothing here runs an
arm.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from experiment.analysis.conclusions import reading_notes
from experiment.analysis.resolved_config import resolved_config
from experiment.analysis.results import Results
from experiment.experiments.evaluate import picture
from experiment.files.bounded_reading import evaluating
from experiment.files.locks import RENDER_WAIT_S, directory_lock, is_locked
from experiment.files.os_errors import os_reason
from experiment.record.checksums import checksums, is_measured, measured_files
from experiment.record.log import EVENTS_FILE, Record, read_record, remove_parts, write_summary
from experiment.report.console.brief import BriefReporter
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.files.markdown import markdown, write_step_summary
from experiment.report.files.write import ReportError, write_reports
from experiment.report.pages.index import write_index
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import message
from experiment.text.redaction import clean_log


def render(directory: Path, lang: str, ascii_only: bool, details: bool = False) -> int:
    """Draw an old run again, in any language, without running anything.

    ``details``: the console shows every figure.

    Raises:
        UserError: there is no run of this schema version, or it contradicts itself.
    """
    with directory_lock(directory, RENDER_WAIT_S):
        record = _read(directory)
        console = (ConsoleReporter if details else BriefReporter)(lang, ascii_only)
        for note in reading_notes(record):
            console.warn(note)
        drawn = [name for name in record.changed_files if not is_measured(name)]
        if drawn:
            console.warn(message("note.changed_reports", files=", ".join(drawn)))
        with evaluating(directory):
            _draw(record, console, lang)
    return ExitCode.OK


def draw(
    directory: Path,
    console: ConsoleReporter,
    lang: str,
    summarise: bool = False,
    ended: bool = False,
) -> bool:
    """Evaluate the record and write every report; the console shows it last.

    ``summarise``: a CI job that asks for a summary gets one, too. ``ended``: by a run of this
    process, so that nobody can have changed a file since.

    Returns whether what must agree in an experiment does.

    Raises:
        UserError: a file could not be written; what was found stands on the console all the same.
            Or another process has been writing into the directory for a minute.
    """
    with directory_lock(directory, RENDER_WAIT_S):
        return _draw(_read(directory, own=ended), console, lang, summarise, ended)


@contextmanager
def _without_collection() -> Iterator[None]:
    """While a record is drawn it is no garbage, and looking for some takes a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_without_collection()
def _read(directory: Path, *, own: bool = False) -> Record:
    return replace(read_record(directory, own=own), is_drawn=True)


@_without_collection()
def _draw(
    record: Record,
    console: ConsoleReporter,
    lang: str,
    summarise: bool = False,
    ended: bool = False,
) -> bool:
    directory = record.directory
    shown, results = picture(record)
    problem: OSError | None = None
    files: list[Path] = []
    try:
        remove_parts(directory)
        sums = _measured_sums(record, ended)
        write_summary(directory, _summary(results, record) | {"files": sums})
        files = write_reports(shown, results, lang)
        sums = sums | checksums(directory, files)
        write_summary(directory, _summary(results, record) | {"files": sums})
        index = write_index(directory, lang)
        files += [index] if index else []
        if summarise:
            write_step_summary(markdown(results, lang))
    except OSError as error:
        problem = error
    names = [str(path) for path in _listed(directory, files)]
    console.show_results(results, names)
    if problem is not None:
        why = (
            problem.reason().model_dump()
            if isinstance(problem, ReportError)
            else os_reason(problem)
        )
        text = message("error.out_unwritable", path=str(directory), why=why)
        raise UserError(text, ExitCode.UNWRITABLE)
    return results.experiment is None or not results.experiment.problems


def _measured_sums(record: Record, ended: bool) -> dict[str, str]:
    """Checksums of what was measured: as they were written down when the run had just ended.

    Before there are any, logs are cleaned of what is private: of a runner that was killed they are
    as the processes left them.

    Whoever draws a run again must not turn a changed log into the true one. Of a run that another
    process is still writing nothing is final.
    """
    known = record.summary.get("files")
    if not ended and is_locked(record.directory / EVENTS_FILE):
        return {}
    if not ended and isinstance(known, dict) and EVENTS_FILE in known:
        return {name: digest for name, digest in known.items() if is_measured(name)}
    measured = measured_files(record.directory)
    for path in measured:
        if path.name != EVENTS_FILE:  # which is clean from the beginning
            clean_log(path)
    return checksums(record.directory, measured)


def _listed(directory: Path, files: Iterable[Path]) -> list[Path]:
    always = [directory / "run.json", directory / "events.jsonl"]
    there = {path for path in (*always, *files) if path.exists()}
    return sorted(there, key=lambda path: (path.suffix != ".html", str(path)))


def _summary(results: Results, record: Record) -> dict[str, object]:
    started = record.started
    return {
        "schema_version": started.schema_version,
        "version": started.version,
        "wall_ns": started.wall_ns,
        "utc_offset_s": started.utc_offset_s,
        "command": started.command,
        "config": resolved_config(record),
        "results": results.model_dump(mode="json"),
    }
