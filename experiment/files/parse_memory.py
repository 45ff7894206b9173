"""How much memory may be taken by reading what someone else wrote: a gibibyte, or what is allowed.

    PAGEDKV_MEMORY=4GiB    allows more, for a log of one's own that is as long as that

A file is smaller than the objects that stand for it: a log of a hundred megabytes may be a gigabyte
of them, and one line of brackets takes a hundred times its bytes while it is parsed. So what is
there is measured as reading goes on, and what a long line may take is told from its signs before it
is parsed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from experiment.text.errors import user_error
from experiment.text.sizes import parse_bytes, size_error

VARIABLE = "PAGEDKV_MEMORY"
_USUAL = 1 << 30
# Of what is read from a log, results and pages are made, in all two to three times as much.
_SHARE = 3
_DATA_PAGES = 5  # of /proc/self/statm: private memory and stacks
_STACK_BYTES = 16 << 20  # of a thread that a library starts meanwhile
_LOOK = 1 << 20  # bytes that are read between two looks
# Most bytes for each of these signs, as measured: while pydantic parses a line and takes it for one
# of many events, and while Python's own parser makes objects of it.
EVENT = {b"{": 770, b"[": 240, b",": 140, b":": 140, b'"': 35}
PLAIN = {b"{": 240, b"[": 64, b",": 48, b'"': 36}
_BYTE = 13  # of a text with characters of four bytes
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')


class _Command:
    """What the process took when its command began to read; None outside of one."""

    began: int | None = None


@contextmanager
def counted() -> Iterator[None]:
    """All that is read in here counts together: a command may read several runs."""
    _Command.began = 0
    try:
        yield
    finally:
        _Command.began = None


def allowed() -> int:
    """Bytes that reading may take.

    Raises:
        UserError: the variable names no size.
    """
    named = os.environ.get(VARIABLE, "")
    try:
        return parse_bytes(named) if named else _USUAL
    except ValueError as error:
        raise size_error(VARIABLE, named) from error


@contextmanager
def memory_limit(path: Path) -> Iterator[None]:
    """Allocate no more in here than reading ``path`` may take, whatever a library makes of it.

    Systems that know no such limit have none. Child processes inherit it.

    Raises:
        UserError: it takes more, or the variable names no size.
    """
    limit = allowed()
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[_DATA_PAGES])
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    threads = (os.cpu_count() or 1) * _STACK_BYTES
    most = pages * resource.getpagesize() + limit + threads
    allowed_before = soft if soft != resource.RLIM_INFINITY else most
    resource.setrlimit(resource.RLIMIT_DATA, (min(most, allowed_before), hard))
    try:
        yield
    except MemoryError as error:
        raise user_error("error.memory", path=str(path), limit=limit) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def weight(text: bytes, signs: Mapping[bytes, int] = EVENT) -> int:
    """Most bytes that parsing a JSON text takes, with what comes of it."""
    return len(text) * (8 if text.isascii() else _BYTE) + _objects(text, signs)


def _objects(text: bytes, signs: Mapping[bytes, int]) -> int:
    return sum(text.count(sign) * size for sign, size in signs.items())


class Room:
    """The memory that reading a file may take, beside what is taken already.

    Raises:
        UserError: the variable names no size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limit = allowed()
        self._begun = _Command.began or _taken()
        if _Command.began == 0:
            _Command.began = self._begun
        self._read = 0

    def make(self, text: bytes, signs: Mapping[bytes, int] = EVENT) -> None:
        """Say that a JSON text is parsed next, and what comes of it is kept.

        Raises:
            UserError: there is no room for it.
        """
        self._read += len(text)
        if self._read < _LOOK:
            return
        self._read = 0
        left = self._limit // _SHARE - (_taken() - self._begun)
        most = weight(text, signs)
        if most > left:  # signs within texts are no objects
            most -= _objects(text, signs) - _objects(_TEXT.sub(b'""', text), signs)
        if most > left:
            raise user_error("error.memory", path=str(self._path), limit=self._limit)


def _taken() -> int:
    """Resident bytes of this process."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import psutil  # another system

        return int(psutil.Process().memory_info().rss)
