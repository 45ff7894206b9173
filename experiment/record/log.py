"""The run directory: event log and summary, the only input of reports.

reports/<run>/
  events.jsonl   every event, one line each, in the order in which the runner received them
  run.json       schema version, resolved config, environment, results, checksums of the rest
  logs/          output of each process
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Any, TypeVar

import psutil

from experiment.events import (
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    ArmFailed,
    CellStarted,
    Event,
    RunResumed,
    RunStarted,
    TurnStarted,
    decode,
    encode,
)
from experiment.files.bounded_reading import MAX_JSON_BYTES, log_lines, parse_json, read_bounded
from experiment.files.bounds import LogBounds
from experiment.files.locks import RENDER_WAIT_S, directory_lock, lock
from experiment.files.os_errors import os_reason
from experiment.record.checksums import changed_files
from experiment.record.merged import merged_events
from experiment.text.errors import ExitCode, UserError, user_error
from experiment.text.messages import message
from experiment.text.redaction import cleaned_json, cleaner, without_words
from kvsim.base.files import PART, write_whole


def cell_at(event: Event, before: int | None) -> int | None:
    """Index of the cell of an event and of those that follow; None without a cell.

    Args:
        before: cell index of the previous event.
    """
    if isinstance(event, CellStarted):
        return event.index
    return event.cell if isinstance(event, TurnStarted) else before


EVENTS_FILE = "events.jsonl"
RUN_FILE = "run.json"
T = TypeVar("T")
_DIGITS = 10  # process ids have fewer digits


class EventLog:
    """Append events to ``events.jsonl``; after a crash each line is complete or absent.

    Several threads may write (the memory sampler does). The file is locked against other processes
    until this one ends.

    Args:
        directory: the run directory; it exists.
        resume: continue the existing log once :meth:`begin` is called; until then events
            are kept in memory and the run is unchanged.
        size: bytes of the existing log when it was read.

    Raises:
        UserError: another process is writing the run, or has done so since the log was read.
    """

    def __init__(self, directory: Path, resume: bool = False, size: int | None = None) -> None:
        self.path = directory / EVENTS_FILE
        # Wait for a process that renders the run that is resumed.
        with directory_lock(directory, RENDER_WAIT_S if resume else 0.0):
            self._file = _open_locked(self.path, resume)
        self._waiting: list[tuple[Event, bytes | None]] | None = [] if resume else None
        self._size = self._file.seek(0, os.SEEK_END)
        if size is not None and size != self._size:  # by a process that has ended meanwhile
            self._file.close()
            raise user_error("error.resume.went_on", path=str(directory))
        self._lock = Lock()
        self._clean = cleaner()  # redact home directory and secrets in all events

    @property
    def begun(self) -> bool:
        """Whether events are written; False for a resumed run before :meth:`begin`."""
        return self._waiting is None

    def begin(self) -> None:
        """Continue the log: write the events kept in memory, and from now on all others.

        A truncated line is terminated. The summary is removed, as it describes the earlier log.

        Raises:
            UserError: as :meth:`write`.
        """
        if self._waiting is None:
            return
        waiting, self._waiting = self._waiting, None
        (self.path.parent / RUN_FILE).unlink(missing_ok=True)
        if not _ends_a_line(self._file, self._size):
            self._append(b"\n")
        for event, raw in waiting:
            self.write(event, raw)

    def write(self, event: Event, line: bytes | None = None) -> None:
        """Append one event and pass it to the operating system.

        Args:
            line: the event as encoded by its process; it is not encoded again.

        Raises:
            UserError: writing failed, as on a full disk; the log ends with the previous event.
        """
        if self._waiting is not None:
            self._waiting.append((event, line))
            return
        if isinstance(event, ArmFailed):
            params = without_words(event.reason.params)
            event = event.model_copy(update={"reason": message(event.reason.key, **params)})
            line = None
        text = encode(event) if line is None else line.decode().rstrip("\n")
        self._append((cleaned_json(text, self._clean) + "\n").encode())

    def _append(self, line: bytes) -> None:
        with self._lock:
            begin = self._file.tell()
            rest = memoryview(line)
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except BaseException as error:  # a disk error, or a signal between two writes
                if self._file.tell() != begin + len(line):
                    with contextlib.suppress(OSError):
                        self._file.truncate(begin)
                        self._file.seek(begin)
                if isinstance(error, OSError):
                    raise _full(self.path, error) from error
                raise

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Record:
    """A recorded run.

    ``damaged_lines`` counts lines that are not events: a crash can truncate the last one.
    ``cut_lines`` are those followed by a resumption, whose work was repeated. ``changed_files``
    have changed since ``run.json`` was written, or are ``run.json`` itself if damaged.
    ``is_drawn``: a report will be rendered, so that a replay also makes the player's frames.
    ``memo`` caches what readers derive from the events.
    """

    directory: Path
    events: tuple[Event, ...]
    damaged_lines: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    changed_files: tuple[str, ...] = ()
    cut_lines: int = 0
    is_drawn: bool = False
    memo: dict[str, object] = field(default_factory=dict, init=False, compare=False, repr=False)

    def of(self, kind: type[T]) -> list[T]:
        """Events of one type, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def by_cell(self) -> Iterator[tuple[int | None, Event]]:
        """The events, each with the index of its cell."""
        cell: int | None = None
        for event in self.events:
            cell = cell_at(event, cell)
            yield cell, event

    def first(self, kind: type[T]) -> T | None:
        """The first event of a type, or None."""
        return next((event for event in self.events if isinstance(event, kind)), None)

    @property
    def started(self) -> RunStarted:
        """The first event; :func:`read_record` checked that it exists."""
        event = self.events[0]
        assert isinstance(event, RunStarted)
        return event


def read_record(directory: Path, *, own: bool = False) -> Record:
    """Read a run directory; a truncated log is read up to its last complete line.

    Args:
        own: this process writes the run, or has just finished it.

    Raises:
        UserError: no log, or no event in it; another file; a schema version that is newer than this
            program, or too old; or the memory limit is exceeded.
    """
    path = directory / EVENTS_FILE
    events: list[Event] = []
    bounds = LogBounds()
    damaged = cut = 0
    whole = after_damage = False
    try:
        for line in log_lines(path, own=own):
            try:
                event = decode(line)
                bounds.check(event)
                events.append(event)
                cut += after_damage and isinstance(events[-1], RunResumed)
                after_damage = False
            except ValueError:
                if not events:
                    _check_schema(path, line)
                damaged += 1
                after_damage = True
            whole = whole or line.endswith(b"\n") or line[:1] != b"{"
    except (FileNotFoundError, NotADirectoryError) as error:
        raise user_error("error.no_record", path=str(directory)) from error
    except OSError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error
    if not events and not whole:  # its writer was killed before it completed the first line
        raise user_error("error.record_empty", path=str(directory))
    if not events or not isinstance(events[0], RunStarted):
        raise user_error("error.no_record", path=str(directory))
    _check_version(path, events[0].schema_version)
    summary = _summary(directory / RUN_FILE)
    if summary is None:  # the checksums of the others are unknown
        return Record(
            directory, merged_events(events), damaged, changed_files=(RUN_FILE,), cut_lines=cut
        )
    changed = changed_files(directory, summary.get("files"))
    return Record(directory, merged_events(events), damaged, summary, changed, cut)


def write_atomic(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a text atomically (see :mod:`kvsim.base.files`)."""
    write_whole(path, text.encode(encoding))


def remove_parts(directory: Path) -> None:
    """Remove partial files of killed processes."""
    for path in directory.rglob(f".*{PART}"):
        owner = path.name.split(".")[-3]
        if owner.isdecimal() and len(owner) < _DIGITS and not psutil.pid_exists(int(owner)):
            with contextlib.suppress(OSError):
                path.unlink()


def write_summary(directory: Path, summary: dict[str, Any]) -> None:
    """Write ``run.json``."""
    text = json.dumps(summary, ensure_ascii=False, indent=2, allow_nan=False)
    write_atomic(directory / RUN_FILE, text + "\n")


def _open_locked(path: Path, resume: bool) -> IO[bytes]:
    """Open the log, new or existing, and lock it.

    Raises:
        UserError: another process holds the lock.
    """
    try:
        # Unbuffered: data that did not fit on a full disk is not written later.
        file = path.open("r+b", buffering=0) if resume else path.open("xb", buffering=0)
    except FileExistsError as error:
        raise user_error("error.run_in_use", path=str(path.parent)) from error
    if not lock(file):
        file.close()
        raise user_error("error.run_in_use", path=str(path.parent))
    return file


def _full(path: Path, error: OSError) -> UserError:
    text = message("error.record_unwritable", path=str(path), why=os_reason(error))
    return UserError(text, ExitCode.UNWRITABLE)


def _summary(path: Path) -> dict[str, Any] | None:
    """Content of ``run.json``; empty if missing or too large, None if damaged."""
    try:
        if not path.exists():
            return {}
        found = parse_json(read_bounded(path, MAX_JSON_BYTES)) if path.is_file() else None
    except UserError as error:
        return {} if error.text.key in ("error.file_too_large", "error.memory") else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _ends_a_line(file: IO[bytes], size: int) -> bool:
    """Whether the last byte ends a line; leaves the file position at the end."""
    if not size:
        return True
    file.seek(size - 1)
    return file.read(1) == b"\n"


def _check_schema(path: Path, line: bytes) -> None:
    """Report a newer schema version in a first line that cannot be decoded."""
    with contextlib.suppress(ValueError, AttributeError):
        version = parse_json(line).get("schema_version")
        if isinstance(version, int):
            _check_version(path, version)


def _check_version(path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise user_error("error.newer_schema", path=str(path), found=version, known=SCHEMA_VERSION)
    if version < OLDEST_SCHEMA:
        known = f"{OLDEST_SCHEMA}–{SCHEMA_VERSION}"
        raise user_error("error.schema", path=str(path), found=version, known=known)
