"""The run directory: the event log and the summary. All that any report reads.

reports/<run>/
  events.jsonl   every event, one line each, in the order in which the runner saw them
  run.json       schema version, resolved config, environment, results, checksums of the rest
  logs/          what each process printed
"""

from __future__ import annotations

import contextlib
import json
import os
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
from experiment.files.locks import DRAWING_S, held, lock
from experiment.files.os_errors import os_reason
from experiment.record.checksums import changed_files
from experiment.record.merged import joined
from experiment.text.errors import ExitCode, UserError, user_error
from experiment.text.messages import message
from experiment.text.redaction import cleaned_json, cleaner, without_words
from kvsim.files import PART, write_whole


def cell_at(event: Event, before: int | None) -> int | None:
    """The index of the cell that an event is of, and what follows it; None: of no cell.

    Args:
        before: that of the event before it.
    """
    if isinstance(event, CellStarted):
        return event.index
    return event.cell if isinstance(event, TurnStarted) else before


EVENTS_FILE = "events.jsonl"
RUN_FILE = "run.json"
T = TypeVar("T")
_DIGITS = 10  # no system has process ids as long as that


class EventLog:
    """Appends events to ``events.jsonl``; a line is complete or absent after a crash of ours.

    Threads may write at the same time (the memory sampler does), processes may not: who holds
    the log keeps others from it until it ends, however it ends.

    Args:
        directory: the run directory; it exists.
        resume: go on with the log that is there, once :meth:`begin` is called; until then events
            wait in memory, and the run is left as it is.
        size: bytes of the log that is there, when it was read.

    Raises:
        UserError: another process is writing a run there, or has done so since the log was read.
    """

    def __init__(self, directory: Path, resume: bool = False, size: int | None = None) -> None:
        self.path = directory / EVENTS_FILE
        # Who draws the run that is resumed, with the sums of its log, comes to an end before.
        with held(directory, DRAWING_S if resume else 0.0):
            self._file = _opened(self.path, resume)
        self._waiting: list[tuple[Event, bytes | None]] | None = [] if resume else None
        self._size = self._file.seek(0, os.SEEK_END)
        if size is not None and size != self._size:  # by one that has ended meanwhile
            self._file.close()
            raise user_error("error.resume.went_on", path=str(directory))
        self._lock = Lock()
        self._clean = cleaner()  # whatever an arm says: no home directory, no secret

    @property
    def begun(self) -> bool:
        """Whether events are written down: at once, but for a run that is resumed."""
        return self._waiting is None

    def begin(self) -> None:
        """Go on with the log: write what has waited, and from now on everything.

        A line that broke off is ended, so that it stays and spoils no other. The summary goes: it
        would be that of another log.

        Raises:
            UserError: as :meth:`write`.
        """
        if self._waiting is None:
            return
        waiting, self._waiting = self._waiting, None
        (self.path.parent / RUN_FILE).unlink(missing_ok=True)
        if not _ends_a_line(self._file, self._size):
            self._append(b"\n")
        for event, came_as in waiting:
            self.write(event, came_as)

    def write(self, event: Event, line: bytes | None = None) -> None:
        """Append one event and hand it to the operating system.

        Args:
            line: as the process that it comes from wrote it; it is not written anew.

        Raises:
            UserError: it cannot be written, on a full disk for instance; the log ends with the
                event before.
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
            except BaseException as error:  # the disk, or a signal that came between two parts
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
    """A run as it was written down.

    ``damaged_lines`` counts lines that are no events (a crash can cut the last one), ``cut_lines``
    those of them behind which the run was resumed: what stood there ran again.
    ``changed_files`` are those that are no longer as they were when ``run.json`` was written,
    and that file itself where it is damaged. ``is_drawn``: a report is drawn of it, so that who
    replays it makes frames for the player, too. ``memo`` is what readers have worked out of the
    events, once.
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

    def first(self, kind: type[T]) -> T | None:
        """The first event of a type, or None."""
        return next((event for event in self.events if isinstance(event, kind)), None)

    @property
    def started(self) -> RunStarted:
        """The first event; :func:`read_record` made sure that it is there."""
        event = self.events[0]
        assert isinstance(event, RunStarted)
        return event


def read_record(directory: Path, *, own: bool = False) -> Record:
    """Read a run directory; a log that breaks off is read up to its last complete line.

    Args:
        own: this process writes the run, or has just ended it.

    Raises:
        UserError: no log there, or none with a line; it does not begin as one; a version wrote it
            that is newer than this program, or older than all that it reads; or it takes too much
            memory.
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
    if not events and not whole:  # whoever opened it was killed before, or in, its first line
        raise user_error("error.record_empty", path=str(directory))
    if not events or not isinstance(events[0], RunStarted):
        raise user_error("error.no_record", path=str(directory))
    _check_version(path, events[0].schema_version)
    summary = _summary(directory / RUN_FILE)
    if summary is None:  # what it said of the others, nobody knows
        return Record(directory, joined(events), damaged, changed_files=(RUN_FILE,), cut_lines=cut)
    changed = changed_files(directory, summary.get("files"))
    return Record(directory, joined(events), damaged, summary, changed, cut)


def write_atomic(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a text, whole or not at all (see :mod:`kvsim.files`)."""
    write_whole(path, text.encode(encoding))


def remove_parts(directory: Path) -> None:
    """Remove the files that a process was writing when it was killed."""
    for path in directory.rglob(f".*{PART}"):
        owner = path.name.split(".")[-3]
        if owner.isdecimal() and len(owner) < _DIGITS and not psutil.pid_exists(int(owner)):
            with contextlib.suppress(OSError):
                path.unlink()


def write_summary(directory: Path, summary: dict[str, Any]) -> None:
    """Write ``run.json``."""
    text = json.dumps(summary, ensure_ascii=False, indent=2, allow_nan=False)
    write_atomic(directory / RUN_FILE, text + "\n")


def _opened(path: Path, resume: bool) -> IO[bytes]:
    """The log, made anew or as it is, and kept from other processes.

    Raises:
        UserError: another process has it.
    """
    try:
        # Without a buffer of ours: what did not fit on a full disk is not tried again later.
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
    """What ``run.json`` holds; none or one that is too large has nothing, a damaged one is None."""
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
    """Whether the last byte ends a line; leaves the file at its end."""
    if not size:
        return True
    file.seek(size - 1)
    return file.read(1) == b"\n"


def _check_schema(path: Path, line: bytes) -> None:
    """The first line is no event of ours: say so when a later version wrote it."""
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
