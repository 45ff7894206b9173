"""Start a child process, receive its events, and end it with everything it started."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import psutil

from experiment.events import Event, decode
from experiment.files.scratch import OwnPackages, make_scratch, remove_scratch
from experiment.process.environment import child_environment
from experiment.process.interrupts import leaked_segments, shielded
from experiment.process.process_tree import (
    OrphanReaper,
    descendants,
    end_processes,
    is_running,
    new_mark,
    processes_with_mark,
    session_members,
    terminate,
)
from experiment.process.shared_memory import remember_existing, remove_segments, segments_of
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import message
from experiment.text.redaction import clean_log, without_private

_GRACE_S = 3.0
_POLL_S = 0.01
# Time for a child to unload libraries and the device after its last event.
_LINGER_S = 60.0
# Waits last at most three seconds. A gap this long means that this process was stopped or the
# machine slept; it does not count for the child's time limit.
_SUSPENDED_S = 30.0

# Errors of exhausted processes or memory, on the machine or in this process.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ChildEvent(NamedTuple):
    """An event of a child and its line as received."""

    event: Event
    line: bytes


class ChildTimeoutError(Exception):
    """The child exceeded its time limit."""


class ChildStartError(UserError):
    """The system cannot start the process."""


class Child:
    """A child process that emits events (see :mod:`experiment.process.wire`); starts on ``with``.

    Args:
        module: run with ``python -m``.
        task: sent as the first line; None for a process that is started ahead and gets its task
            from :meth:`begin`.
        log_path: file to which the child's output is appended.
        timeout_s: wall-clock limit of the process, without the time in which this one was stopped.
        env: environment variables in addition to ours.
        python: another interpreter. It gets this repository's packages, but not the packages
            installed beside them, which are built for our interpreter.
    """

    def __init__(
        self,
        module: str,
        task: dict[str, Any] | None,
        log_path: Path,
        timeout_s: float,
        env: dict[str, str] | None = None,
        python: str | None = None,
    ) -> None:
        self.lingered = False
        self._mark = new_mark()
        self._reaper: OrphanReaper | None = None
        # Returns the processes seen below the child so far.
        self.observed: Callable[[], Collection[psutil.Process]] = tuple
        self._shared: set[Path] = set()
        self._module, self._task, self._log_path = module, task, log_path
        self._timeout_s, self._env, self._python = timeout_s, env or {}, python

    def _start(self) -> None:
        remember_existing()
        try:
            self._log: IO[bytes] = self._log_path.open("ab")
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                raise  # an error of the directory
            raise _not_started(error) from error
        self._packages = OwnPackages(self._log_path.parent) if self._python else None
        self._scratch = make_scratch()
        try:
            self._reaper = OrphanReaper(self._mark, self._scratch)  # first: each child has a reaper
            self._process = self._spawn()
        except OSError as error:  # no memory, no more processes, or no such interpreter
            self._log.close()
            self._remove_files()
            raise _not_started(error) from error
        self._queue: queue.SimpleQueue[ChildEvent | None] = queue.SimpleQueue()
        self._next: list[ChildEvent | None] = []  # received, and not yet taken
        self._reader = threading.Thread(target=self._read, daemon=True)
        try:
            _start_thread(self._reader)
            if self._task is not None:
                self.begin(self._task, self._timeout_s)
        except ChildStartError:
            self._process.kill()
            self._process.wait()
            self._close()
            raise

    def _close(self) -> None:
        """Close the files of a process that has ended, and remove its temporary files."""
        if self._reader.ident is not None:
            self._reader.join(_GRACE_S)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self._remove_files()

    def _remove_files(self) -> None:
        """Remove temporary files. The reaper goes last, in case we are killed meanwhile."""
        if self._packages is not None:
            self._packages.remove()
        remove_scratch(self._scratch)
        if self._reaper is not None:
            self._reaper.release()

    def _spawn(self) -> subprocess.Popen[bytes]:
        # Own session: Ctrl-C in the terminal reaches only the runner, which ends the child in
        # order.
        return subprocess.Popen(  # noqa: S603 - our own module, no shell
            [self._python or sys.executable, "-P", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=child_environment(
                {**self._env, self._mark: "1"},
                self._packages.path if self._packages else None,
                self._scratch,
            ),
            start_new_session=True,
        )

    def begin(self, task: dict[str, Any], timeout_s: float) -> None:
        """Send the task; the time limit counts from now.

        A thread writes it: a task is longer than a pipe's buffer, and a child that does not read
        must not block the time limit.

        Raises:
            ChildStartError: the system cannot start a thread.
        """
        self._last_check = time.monotonic()
        self._deadline = self._last_check + timeout_s
        _start_thread(threading.Thread(target=self._send, args=(json.dumps(task),), daemon=True))

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def events(self) -> Iterator[ChildEvent]:
        """Yield events until the child closes its pipe, or is dead and silent.

        An event that was not marked by :meth:`mark_processed` is returned by :meth:`unprocessed`.
        A process left behind by the child may hold the pipe open.

        Raises:
            ChildTimeoutError: the time limit is over.
        """
        while True:
            left = self.left_s()
            if left <= 0:  # also for a child that keeps sending events
                raise ChildTimeoutError
            dead = self._has_ended()
            try:
                if not self._next:
                    # One call, so that no signal can interrupt between the queue and the list.
                    self._next.extend(map(self._queue.get, (True,), (min(left, _GRACE_S),)))
            except queue.Empty:
                if dead:
                    return
                continue
            received = self._next[0]
            if received is None:
                return
            yield received
            self.mark_processed()

    def mark_processed(self) -> None:
        """Mark the last event of :meth:`events` as processed."""
        self._next.clear()

    def unprocessed(self) -> list[ChildEvent]:
        """Events received before the child was ended and not yet processed."""
        self._reader.join(_GRACE_S)
        left = [received for received in self._next if received is not None]
        self._next.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                received = self._queue.get_nowait()
                if received is not None:
                    left.append(received)
        return left

    def resume(self, left_s: float) -> None:
        """Let a child that waited for its turn continue with the seconds that it had left."""
        self._last_check = time.monotonic()
        self._deadline = self._last_check + left_s
        self.acknowledge()

    def left_s(self) -> float:
        """Remaining seconds of the time limit."""
        now = time.monotonic()
        gap = now - self._last_check
        if gap > _SUSPENDED_S:
            self._deadline += gap
        self._last_check = now
        return self._deadline - now

    def acknowledge(self) -> None:
        """Let a child that waits at a stage continue."""
        self._send("")

    def wait(self) -> int:
        """Wait for the exit code; kill a child that lingers after closing its pipe.

        :attr:`lingered` is True if it was killed; the exit code is then that of our signal.
        """
        deadline = time.monotonic() + _LINGER_S
        while not self._has_ended():
            if time.monotonic() > deadline:
                self.lingered = True
                self.kill()
            time.sleep(_POLL_S)
        code: int = self._process.returncode
        return code

    def _has_ended(self) -> bool:
        """Whether the child has ended. An interrupt must not leave Popen's lock locked."""
        with shielded():
            return self._process.poll() is not None

    def record_shared_memory(self) -> None:
        """Record the child's present shared memory, which cannot be determined after its death."""
        found = segments_of(self._tree())
        if self._reaper is not None:
            self._reaper.add_shared(found - self._shared)
        self._shared |= found

    def _tree(self) -> list[psutil.Process]:
        """The child and its descendants; empty once it was waited for, as its id may be reused."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if not self._has_ended():
                return [psutil.Process(self.pid), *descendants(self.pid)]
        return []

    def kill(self) -> None:
        """Kill the child and all processes that it started."""
        with shielded():
            self._kill()

    def _kill(self) -> None:
        tree = {*self._tree(), *processes_with_mark(self._mark)}
        self._shared |= segments_of(tree)
        for each in tree:
            if each.pid == self.pid:
                terminate(each)
        # Not psutil's wait, which would consume the exit code.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._process.kill()
        self._process.wait()
        end_processes(each for each in tree if each.pid != self._process.pid)
        remove_segments(self._shared | leaked_segments())

    def __enter__(self) -> Child:
        if "_reader" in vars(self):
            return self  # started ahead
        try:
            with shielded():
                self._start()
        except KeyboardInterrupt:  # interrupted while starting, so that a process exists
            if "_reader" in vars(self):
                self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with shielded():
            self._leave()

    def _leave(self) -> None:
        if self._process.poll() is None:
            self.kill()
        # If the id exists, it was reused, and so was that of the session.
        gone = not psutil.pid_exists(self._process.pid)
        session = session_members(self._process.pid) if gone else []
        left = {
            *processes_with_mark(self._mark),
            *filter(is_running, (*session, *self.observed())),
        }
        self._shared |= segments_of(left)
        end_processes(left)
        remove_segments(self._shared | leaked_segments())
        self._close()
        with contextlib.suppress(OSError):
            clean_log(self._log_path)

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                try:
                    event = decode(line)
                except ValueError:
                    # Redact before truncating: a truncated secret is not recognised.
                    text = without_private(os.fsdecode(line))[:1000]
                    with contextlib.suppress(OSError):  # the disk is full; events continue
                        self._log.write(b"not an event: " + os.fsencode(text) + b"\n")
                        self._log.flush()
                    continue
                self._queue.put(ChildEvent(event, line))
        except (OSError, ValueError):
            pass  # the pipe was closed while the child was being ended
        finally:
            self._queue.put(None)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        # A dead child cannot read; its exit code is reported instead.
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def _start_thread(thread: threading.Thread) -> None:
    """Start a thread; the system limits threads as it limits processes.

    Raises:
        ChildStartError: the system cannot start a thread.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise _not_started(OSError(errno.EAGAIN, str(error))) from error


def _not_started(error: OSError) -> ChildStartError:
    code = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return ChildStartError(message("failure.not_started", code=code), ExitCode.INCOMPLETE)
