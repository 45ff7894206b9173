"""Render a run: evaluate its record, and write the summary and all reports.

    record ─ results ─ run.json ─ reports ─ checksums ─ index ─ console

Used for runs that have just ended and for old ones.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiment.analysis.conclusions import reading_notes
from experiment.analysis.resolved_config import resolved_config
from experiment.analysis.results import Results
from experiment.experiments.evaluate import picture
from experiment.files.bounded_reading import evaluating
from experiment.files.locks import RENDER_WAIT_S, directory_lock, is_locked
from experiment.files.os_errors import unwritable
from experiment.record.checksums import checksums, is_measured, measured_files
from experiment.record.log import EVENTS_FILE, Record, read_record, remove_parts, write_summary
from experiment.record.simulation import SIM_FILE, read_simulation
from experiment.report.files.markdown import markdown
from experiment.report.files.markup import write_step_summary
from experiment.report.files.write import run_reports, write_files, write_listed
from experiment.report.pages.index import write_index
from experiment.report.pages.simulation import simulation_reports
from experiment.text.messages import Message, message
from experiment.text.redaction import clean_log

# Called last with the results and the names of all files, even if a file cannot be written.
Show = Callable[[Results, list[str]], object]


def render(
    directory: Path,
    lang: str = "en",
    show: Show = lambda *_: None,
    warn: Callable[[Message], object] = lambda _: None,
) -> Results:
    """Write the reports of a recorded run again, in any language.

    Args:
        directory: of the run.
        lang: ``en`` or ``zh``.
        show: prints the results.
        warn: prints notes on the record.

    Returns:
        The results, as in ``run.json``.

    Raises:
        UserError: no run of this schema version, a contradictory record, or a file that cannot be
            written.
    """
    with directory_lock(directory, RENDER_WAIT_S):
        record = _read(directory)
        for note in reading_notes(record):
            warn(note)
        drawn = [name for name in record.changed_files if not is_measured(name)]
        if drawn:
            warn(message("note.changed_reports", files=", ".join(drawn)))
        with evaluating(directory):
            return _draw(record, lang, show)


def render_ended(directory: Path, lang: str, show: Show) -> Results:
    """Write the reports of a run that this process has just ended, and a summary for a CI job.

    Raises:
        UserError: a file cannot be written, or another process has the lock of the directory for a
            minute.
    """
    with directory_lock(directory, RENDER_WAIT_S):
        return _draw(_read(directory, own=True), lang, show, ended=True)


def render_simulation(
    directory: Path,
    lang: str = "en",
    begin: Callable[[dict[str, Any]], object] = lambda _: None,
    show: Callable[[dict[str, Any], Sequence[str]], object] = lambda *_: None,
) -> dict[str, Any]:
    """Write the reports of a recorded simulation again; return the data of ``sim.json``.

    Raises:
        UserError: no simulation of this schema version, a contradictory record, or files that
            cannot be written.
    """
    with directory_lock(directory, RENDER_WAIT_S), evaluating(directory / SIM_FILE):
        data = read_simulation(directory)
        begin(data)
        show(data, draw_simulation(directory, data, lang))
    return data


def draw_simulation(directory: Path, data: dict[str, Any], lang: str) -> list[str]:
    """Write the reports of a simulation; return the names of all files.

    Raises:
        UserError: a file cannot be written.
    """
    files = write_listed(directory, simulation_reports(data, lang), lang)
    return [str(path) for path in (*files, directory / SIM_FILE)]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disable garbage collection in the block, which would take a tenth of rendering."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_without_collection()
def _read(directory: Path, *, own: bool = False) -> Record:
    return replace(read_record(directory, own=own), is_drawn=True)


@_without_collection()
def _draw(record: Record, lang: str, show: Show, ended: bool = False) -> Results:
    directory = record.directory
    shown, results = picture(record)
    problem: OSError | None = None
    files: list[Path] = []
    try:
        remove_parts(directory)
        sums = _measured_sums(record, ended)
        write_summary(directory, _summary(results, record) | {"files": sums})
        files = write_files(directory, run_reports(shown, results, lang))
        sums = sums | checksums(directory, files)
        write_summary(directory, _summary(results, record) | {"files": sums})
        index = write_index(directory, lang)
        files += [index] if index else []
        if ended:
            write_step_summary(markdown(results, lang))
    except OSError as error:
        problem = error
    show(results, [str(path) for path in _listed(directory, files)])
    if problem is not None:
        raise unwritable(directory, problem) from problem
    return results


def _measured_sums(record: Record, ended: bool) -> dict[str, str]:
    """Checksums of the measured files, recorded when the run has ended.

    Private data are removed from logs before. Rendering again keeps the recorded checksums, so that
    changed logs are detected. A run that another process is writing has none.
    """
    known = record.summary.get("files")
    if not ended and is_locked(record.directory / EVENTS_FILE):
        return {}
    if not ended and isinstance(known, dict) and EVENTS_FILE in known:
        return {name: digest for name, digest in known.items() if is_measured(name)}
    measured = measured_files(record.directory)
    for path in measured:
        if path.name != EVENTS_FILE:  # written without private data
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
