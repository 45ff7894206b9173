"""Memory limit for parsing untrusted files: 1 GiB, or ``PAGEDKV_MEMORY``.

    PAGEDKV_MEMORY=4GiB    raises the limit, for long logs of one's own

Parsed objects are larger than their file. A log of 100 MB may become 1 GB of objects, and a line of
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
_DEFAULT_LIMIT = 1 << 30
# Results and pages made from a log take two to three times the memory of the parsed log.
_SHARE = 3
_DATA_PAGES = 5  # field of /proc/self/statm: private memory and stacks
_STACK_BYTES = 16 << 20  # of a thread that a library may start meanwhile
_CHECK_BYTES = 1 << 20  # bytes read between two checks
# Upper bounds of measured bytes for each of these characters: for pydantic's parser with a union of
# events, and for Python's own JSON parser.
EVENT_COSTS = {b"{": 770, b"[": 240, b",": 140, b":": 140, b'"': 35}
PLAIN_COSTS = {b"{": 240, b"[": 64, b",": 48, b'"': 36}
_BYTE = 13  # of a text with 4-byte characters
# Possessive, as backtracking would keep 50 bytes for each of a text's.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_MOST_QUOTES = 1 << 20  # beyond that it is not the texts that are large


class _Command:
    """Resident bytes when the command began to read; None outside of a command."""

    began: int | None = None


@contextmanager
def shared_budget() -> Iterator[None]:
    """Count all reading in the block together: a command may read several runs."""
    _Command.began = 0
    try:
        yield
    finally:
        _Command.began = None


def memory_budget() -> int:
    """Memory limit in bytes.

    Raises:
        UserError: the variable is not a size.
    """
    named = os.environ.get(VARIABLE, "")
    try:
        return parse_bytes(named) if named else _DEFAULT_LIMIT
    except ValueError as error:
        raise size_error(VARIABLE, named) from error


@contextmanager
def memory_limit(path: Path | str) -> Iterator[None]:
    """Limit allocations in the block to what reading ``path`` may take.

    Without effect on systems without RLIMIT_DATA. Child processes inherit the limit.

    Raises:
        UserError: the limit is exceeded, or the variable is not a size.
    """
    limit = memory_budget()
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


def _objects(text: bytes, costs: Mapping[bytes, int]) -> int:
    return sum(text.count(sign) * size for sign, size in costs.items())


class ParseBudget:
    """Memory budget for parsing one file, on top of what is already in use.

    Raises:
        UserError: the variable is not a size.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limit = memory_budget()
        self._base = _Command.began or _resident_bytes()
        if _Command.began == 0:
            _Command.began = self._base
        self._read = 0

    def reserve(self, text: bytes, costs: Mapping[bytes, int] = EVENT_COSTS) -> None:
        """Account for a JSON text that is about to be parsed and kept.

        Raises:
            UserError: it exceeds the budget.
        """
        self._read += len(text)
        if self._read < _CHECK_BYTES:
            return
        self._read = 0
        left = self._limit // _SHARE - (_resident_bytes() - self._base)
        most = len(text) * (8 if text.isascii() else _BYTE)
        objects = _objects(text, costs)
        if most + objects > left and text.count(b'"') < _MOST_QUOTES:
            objects = _objects(_TEXT.sub(b'""', text), costs)  # texts create none
        if most + objects > left:
            raise user_error("error.memory", path=str(self._path), limit=self._limit)


def _resident_bytes() -> int:
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import psutil  # another system

        return int(psutil.Process().memory_info().rss)
