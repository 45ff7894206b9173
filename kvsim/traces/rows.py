"""Splits the bytes of a file into numbered rows.

file ─► Hashed ─► (gzip) ─► lines ─► CSV by the header │ JSON a line │ one JSON list │ columns
          │                             └── (line number, row or rejection)
          └─ sha256 of the bytes as stored

A row is an object, the reason for its rejection, or None for a blank line. Every byte belongs to a
row or to white space between rows: content after a list is an error.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any

from kvsim.traces.parse import BadRowError
from kvsim.traces.types import Place, TraceError

Placed = tuple[Place, "dict[str, Any] | BadRowError | None"]
_CHUNK = 1 << 16
_LONGEST_ESCAPE = 12  # a surrogate pair
_SHOWN = 80  # characters of an unreadable row in messages
# Of a line: parsed values take up to 30 times its bytes. No valid request comes close.
MAX_ROW_BYTES = 8 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
_VALUE_ENDS = frozenset(" \t\r\n,]}:")
_MAX_NUMBER = 1 << 40  # of an inner list


def lines(stream: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines.

    Raises:
        TraceError: ``row_endless``: one has more than ``MAX_ROW_BYTES``.
    """
    number = 0
    while data := stream.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(data) > MAX_ROW_BYTES:
            raise TraceError("row_endless", file=str(path), line=number, limit=MAX_ROW_BYTES)
        yield number, data


def _texts(stream: IO[bytes], path: Path) -> Iterator[tuple[int, str | BadRowError | None]]:
    """Yield numbered lines as stripped texts; None for a blank one.

    Raises:
        TraceError: ``row_endless``.
    """
    for number, data in lines(stream, path):
        try:
            line = data.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            yield number, BadRowError("not_utf8")
        else:
            yield number, line or None


def csv_rows(stream: IO[bytes], path: Path, keys: Sequence[str], name: str) -> Iterator[Placed]:
    """Yield rows under the header in the first line; None for a blank line.

    Raises:
        TraceError: ``empty``, ``row_endless``, or ``other_format``: the header lacks some of
            ``keys``.
    """
    header: list[str] | None = None
    for number, line in _texts(stream, path):
        if not isinstance(line, str):
            yield Place(number), line
            continue
        values = split_csv(line)
        if header is None:
            header = [value.strip() for value in values]
            require_keys(header, path, number, keys, name)
        elif len(values) != len(header):
            yield Place(number), BadRowError("columns", len(values))
        else:
            yield Place(number), dict(zip(header, map(str.strip, values), strict=True))
    if header is None:
        raise TraceError("empty", file=str(path))


def split_csv(line: str) -> list[str]:
    """Split one line into values; quotes as in RFC 4180, within the line."""
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def require_keys(
    found: Sequence[str], path: Path, line: int, keys: Sequence[str], name: str
) -> None:
    """Check that a file's first row has the keys of the format.

    Raises:
        TraceError: ``other_format``.
    """
    missing = [key for key in keys if key not in found]
    if missing:
        raise TraceError(
            "other_format",
            file=str(path),
            line=line,
            format=name,
            missing=", ".join(missing),
            found=", ".join(found)[:120],
        )


def jsonl_rows(stream: IO[bytes], path: Path) -> Iterator[Placed]:
    """Yield one object per line; None for a blank line.

    Raises:
        TraceError: ``row_endless``.
    """
    for number, line in _texts(stream, path):
        place = Place(number)
        if not isinstance(line, str):
            yield place, line
            continue
        try:
            row = load_json(line)
        except (ValueError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError):
                place = Place(number, column=error.colno)
            yield place, BadRowError("not_json", line[:_SHOWN])
        else:
            good = isinstance(row, dict)
            yield place, row if good else BadRowError("not_an_object", type(row).__name__)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant)


def load_json(text: str) -> Any:
    """Parse one JSON value with fractions as decimals; rejects infinities and NaN.

    Raises:
        ValueError: not JSON, or a lone surrogate in a text.
    """
    try:
        value = _DECODER.decode(text)
    except InvalidOperation as error:  # an exponent beyond the range of decimals
        raise ValueError("a number without bounds") from error
    _check_texts(value, text)
    return value


def _check_texts(value: Any, text: str) -> None:
    """Reject lone surrogates, which can be neither tokenised nor encoded.

    Raises:
        UnicodeEncodeError: there is one.
    """
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False, default=str).encode()


def json_list_rows(stream: IO[bytes], path: Path) -> Iterator[Placed]:
    """Yield the objects of one JSON list with their line numbers, in constant memory.

    Raises:
        TraceError: ``not_json``: elements after a broken one cannot be located;
            ``content_after_list``; ``empty``; ``other_format``: not a list.
    """
    text = _Text(stream, path)
    if not text.skip():
        raise TraceError("empty", file=str(path))
    if text.take() != "[":
        raise TraceError("other_format", file=str(path), format="json list", missing="[",
                         **text.place.params())  # fmt: skip
    for entry in _members(text, "]"):
        line = text.place.line
        value = text.value()
        good = isinstance(value, dict)
        yield (
            Place(line, entry),
            value if good else BadRowError("not_an_object", type(value).__name__),
        )
    if text.skip():
        raise text.error("content_after_list")


def json_column_rows(
    stream: IO[bytes], path: Path, keys: Sequence[str], clock: str
) -> Iterator[Placed]:
    """Yield rows from the lists ``keys`` of one JSON object, which have an element for each row.

    Rows are sorted by the number under ``clock``. A list within a list becomes an array of numbers,
    or None. Other values are skipped.

    Raises:
        TraceError: ``not_json``, ``content_after_list``; ``no_details``: a list is missing, or the
            lists differ in length.
    """
    text = _Text(stream, path)
    columns: dict[str, list[Any]] = {}
    if not text.skip() or text.take() != "{":
        raise text.error("not_json", detail="no object")
    for _ in _members(text, "}"):
        name = text.value()
        if not (isinstance(name, str) and text.skip() and text.take() == ":" and text.skip()):
            raise text.error("not_json", detail="no name")
        if text.peek() != "[":
            text.value()
            continue
        text.take()
        values = (_numbers(text.value()) for _ in _members(text, "]"))
        if name in keys:
            columns[name] = list(values)
        else:
            deque(values, maxlen=0)
    if text.skip():
        raise text.error("content_after_list")
    most = max(map(len, columns.values()), default=0) or 1
    missing = [key for key in keys if len(columns.get(key, ())) != most]
    if missing:
        raise TraceError("no_details", file=str(path), missing=", ".join(missing))
    rows = [
        dict(zip(keys, row, strict=True))
        for row in zip(*(columns[key] for key in keys), strict=True)
    ]

    def time(place: int) -> Any:
        value = rows[place][clock]
        return value if isinstance(value, int | Decimal) else 0

    yield from ((Place(1, at + 1), rows[at]) for at in sorted(range(len(rows)), key=time))


def _members(text: _Text, end: str) -> Iterator[int]:
    """Yield the number of each member of an object or list, with the text at its beginning."""
    entry = 0
    while text.skip() and text.peek() != end:
        if entry and text.take() != ",":
            raise text.error("not_json", detail="no comma")
        text.skip()
        entry += 1
        yield entry
    if not text.skip():
        raise text.error("not_json", detail="no end")
    text.take()


def _numbers(value: Any) -> Any:
    """Convert a list of numbers to an array; None if it holds anything else."""
    if not isinstance(value, list):
        return value
    good = all(
        isinstance(each, int | Decimal) and -_MAX_NUMBER < each < _MAX_NUMBER for each in value
    )
    return array("d", map(float, value)) if good else None


def _is_cut(error: json.JSONDecodeError) -> bool:
    """Whether the text ends too early, as opposed to an error before its end."""
    ends_in_text = error.msg.startswith("Unterminated string")
    return ends_in_text or error.pos + _LONGEST_ESCAPE > len(error.doc)


class _Text:
    """A window over a long text; consumed text is dropped.

    Attributes:
        place: line and column of the next character.
    """

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self._path = stream, path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._ended = False
        self._line = self._column = 1

    @property
    def place(self) -> Place:
        return Place(self._line, column=self._column)

    def error(self, code: str, **params: object) -> TraceError:
        """Return an error at the next character."""
        return TraceError(code, file=str(self._path), **self.place.params(), **params)

    def _more(self, size: int) -> bool:
        if self._ended:
            return False
        data = self._stream.read(size)
        self._ended = not data
        try:
            self._text = self._text[self._at :] + self._decoder.decode(data, self._ended)
        except UnicodeDecodeError as error:
            raise self.error("not_utf8") from error
        self._at = 0
        return True

    def _move(self, end: int) -> None:
        newlines = self._text.count("\n", self._at, end)
        self._line += newlines
        if newlines:
            self._column = end - self._text.rindex("\n", self._at, end)
        else:
            self._column += end - self._at
        self._at = end

    def skip(self) -> bool:
        """Skip white space; return False at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            assert space is not None
            self._move(space.end())
            if self._at < len(self._text):
                return True
            if not self._more(_CHUNK):
                return False

    def peek(self) -> str:
        return self._text[self._at]

    def take(self) -> str:
        self._move(self._at + 1)
        return self._text[self._at - 1]

    def value(self) -> Any:
        """Parse the next JSON value.

        Raises:
            TraceError: ``not_json``, with the position of the error.
        """
        # A partial value looks broken, or like a shorter number, until more is read; doubling the
        # size keeps this linear.
        size = _CHUNK
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                _check_texts(value, self._text[self._at : end])
            except json.JSONDecodeError as error:
                if not (_is_cut(error) and self._more(size)):
                    self._move(error.pos)
                    raise self.error("not_json", detail=str(error)[:80]) from error
            except (ValueError, RecursionError, InvalidOperation) as error:
                raise self.error("not_json", detail=str(error)[:80]) from error
            else:
                if self._text[end : end + 1] in _VALUE_ENDS or not self._more(size):
                    self._move(end)
                    return value
            size *= 2
