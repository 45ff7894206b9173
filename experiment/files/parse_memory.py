"""Memory limit for parsing untrusted files: 1 GiB, or ``PAGEDKV_MEMORY``.

    PAGEDKV_MEMORY=4GiB    raises the limit, for long logs of one's own

Parsed objects are larger than their file: a log of 100 MB may become 1 GB of objects, and a line of
brackets takes 100 times its bytes. So the resident memory is checked while reading, and the cost of
a long line is estimated from its characters before it is parsed.
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
# Results and pages made from a log take two to three times the memory of the parsed log.
_SHARE = 3
_DATA_PAGES = 5  # field of /proc/self/statm: private memory and stacks
_STACK_BYTES = 16 << 20  # of a thread that a library may start meanwhile
_LOOK = 1 << 20  # bytes read between two checks
# Upper bounds of measured bytes for each of these characters: for pydantic's parser with a union of
# events, and for Python's own JSON parser.
EVENT = {b"{": 770, b"[": 240, b",": 140, b":": 140, b'"': 35}
PLAIN = {b"{": 240, b"[": 64, b",": 48, b'"': 36}
_BYTE = 13  # of a text with 4-byte characters
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')


class _Command:
    """Resident bytes when the command began to read; None outside of a command."""

    began: int | None = None


@contextmanager
def counted() -> Iterator[None]:
    """Count all reading in the block together: a command may read several runs."""
    _Command.began = 0
    try:
        yield
    finally:
        _Command.began = None


def allowed() -> int:
    """Memory limit in bytes.

    Raises:
        UserError: the variable is not a size.
    """
    named = os.environ.get(VARIABLE, "")
    try:
        return parse_bytes(named) if named else _USUAL
    except ValueError as error:
        raise size_error(VARIABLE, named) from error


@contextmanager
def memory_limit(path: Path) -> Iterator[None]:
    """Limit allocations in the block to what reading ``path`` may take.

    Without effect on systems without RLIMIT_DATA. Child processes inherit the limit.

    Raises:
        UserError: the limit is exceeded, or the variable is not a size.
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
    """Upper bound of the bytes that parsing a JSON text takes, results included."""
    return len(text) * (8 if text.isascii() else _BYTE) + _objects(text, signs)


def _objects(text: bytes, signs: Mapping[bytes, int]) -> int:
    return sum(text.count(sign) * size for sign, size in signs.items())


class Room:
    """Memory budget for parsing one file, on top of what is already in use.

    Raises:
        UserError: the variable is not a size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limit = allowed()
        self._begun = _Command.began or _taken()
        if _Command.began == 0:
            _Command.began = self._begun
        self._read = 0

    def make(self, text: bytes, signs: Mapping[bytes, int] = EVENT) -> None:
        """Account for a JSON text that is about to be parsed and kept.

        Raises:
            UserError: it exceeds the budget.
        """
        self._read += len(text)
        if self._read < _LOOK:
            return
        self._read = 0
        left = self._limit // _SHARE - (_taken() - self._begun)
        most = weight(text, signs)
        if most > left:  # characters within strings create no objects
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
