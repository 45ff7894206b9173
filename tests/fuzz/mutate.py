"""Damaged copies of right input: by bytes, by lines, and inside of JSON and TOML values."""

from __future__ import annotations

import json
import random
from typing import Any

# Values that readers of all kinds have stumbled over.
NUMBERS = (
    0,
    -1,
    1,
    10**7,
    10**9,
    2**31,
    2**63,
    2**64,
    10**30,
    10**400,
    -0.0,
    1e308,
    -1e308,
    5e-324,
    0.1,
)
TEXTS = (
    "", " ", "\x00", "\n", "\u202e", "\ud7ff", "\U0001f600", "nan", "inf", "-inf", "1e999999999",
    "9" * 400, "1_000", "٣", "true", "null", "../../x", "/", "{a}", "{0.__class__}", "%s",
    "a" * 5000, "\ud800", "a" * 300_000,
)  # fmt: skip
VALUES = (
    None, True, [], {}, [[]], {"key": "x", "params": {}}, json.loads("[" * 900 + "]" * 900),
    [{"key": "k"}] * 50_000, {str(n): n for n in range(50_000)},
)  # fmt: skip
PIECES = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\n\n", b"\\ud800", b"NaN", b"Infinity",
    b"-Infinity", b"1e400", b"1e999999999", b"9" * 5000, b"0x" + b"f" * 5000, b"[" * 3000,
    b'{"a":' * 3000, b"\x1f\x8b", b"inf", b"nan", b"[[", b"]]", b"'''", b'"""', b"=", b",", b'"',
    b"null", b"true", b"{}", b"[]", b"1979-05-27T07:32:00Z", b"-1", b"0", b"99999999999999999999",
    b"0.0", b"e", b"%", b"\x1b[31m", b"a" + b".a" * 20_000 + b" = 1\n", b"\n[" + b"a." * 9000,
    b"0001-01-01 00:00:00", b"9999-12-31 23:59:59",
)  # fmt: skip
FLAGS = (
    "--lang", "en", "xx", "--set", "=", "a=b", "--yes", "--config", "none", "/dev/null", "--out",
    "", "-1", "0", "nan", "inf", "1e999", "9" * 5000, "٣", "1_0", "--", "-h", "--help", "-", ",",
    ",,", "--kv-budget", "1e5GiB", "99999999TiB", "--rate", "0x", "5x", "--trace", "--head",
    "--gpus", "--max-length", "--block-size", "run", "render", "simulate", "plan", "compare",
    "bench", "claims",
)  # fmt: skip


def mutated(data: bytes, form: str, choose: random.Random) -> bytes:
    """A damaged copy; ``form`` is how the bytes are meant: json, rows, toml, words or text."""
    for _ in range(choose.choice((1, 1, 2, 4))):
        if form in ("json", "rows") and choose.random() < 0.7:
            data = _json(data, form == "rows", choose)
        elif form == "words" and choose.random() < 0.8:
            data = _words(data, choose)
        elif choose.random() < 0.4:
            data = _lines(data, choose)
        else:
            data = _bytes(data, choose)
    return data


def _json(data: bytes, rows: bool, choose: random.Random) -> bytes:
    """Change one value somewhere inside; what is no JSON is changed as bytes."""
    lines = data.split(b"\n") if rows else [data]
    at = choose.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _bytes(data, choose)
    lines[at] = json.dumps(_changed(value, choose)).encode()
    return b"\n".join(lines)


def _changed(value: Any, choose: random.Random) -> Any:
    if isinstance(value, dict) and value and choose.random() < 0.9:
        key = choose.choice(list(value))
        what = choose.random()
        if what < 0.08:
            return {k: v for k, v in value.items() if k != key}
        if what < 0.12:
            return value | {choose.choice(TEXTS): value[key]}
        return value | {key: _changed(value[key], choose)}
    if isinstance(value, list) and value and choose.random() < 0.9:
        at = choose.randrange(len(value))
        what = choose.random()
        if what < 0.1:
            return value[:at] + value[at + 1 :]
        if what < 0.2:
            return [*value, *value]
        return [*value[:at], _changed(value[at], choose), *value[at + 1 :]]
    if type(value) is int and choose.random() < 0.5:
        return value + choose.choice((-1, 1, -value, value))
    return choose.choice((*VALUES, *NUMBERS, *TEXTS))


def _words(data: bytes, choose: random.Random) -> bytes:
    words = data.split(b"\n")
    at = choose.randrange(len(words) + 1)
    other = choose.choice(FLAGS).encode()
    what = choose.random()
    if what < 0.4:
        words.insert(at, other)
    elif what < 0.8 and words:
        words[at % len(words)] = other
    elif words:
        del words[at % len(words)]
    return b"\n".join(words)


def _lines(data: bytes, choose: random.Random) -> bytes:
    lines = data.split(b"\n")
    at, other = choose.randrange(len(lines)), choose.randrange(len(lines))
    what = choose.random()
    if what < 0.35:
        del lines[at]
    elif what < 0.7:
        lines.insert(at, lines[other])
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return b"\n".join(lines)


def _bytes(data: bytes, choose: random.Random) -> bytes:
    at = choose.randrange(len(data) + 1)
    end = min(len(data), at + choose.choice((1, 1, 2, 8, 64)))
    what = choose.random()
    if what < 0.35:
        return data[:at] + choose.choice(PIECES) + data[end:]
    if what < 0.55:
        return data[:at] + choose.choice(PIECES) + data[at:]
    if what < 0.7:
        return data[:at] + data[end:]
    if what < 0.8:
        return data[:at]
    if what < 0.9:
        return data[:at] + data[at:end] * 3 + data[end:]
    return data[:at] + bytes([choose.randrange(256)]) + data[at + 1 :]
