"""Every record of a trace is a request, a rejected row or an unread row."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import AZURE, Write, hashed, jsonl, read, words, writer

from kvsim.sim.prefix_replay import collect, replay_prefixes
from kvsim.traces import Head, ReadOptions, TraceError, TraceFile, TraceInfo
from kvsim.traces.rows import json_list_rows

BOM = b"\xef\xbb\xbf"
CHAT = {"conversations": [{"value": "a b"}, {"value": "c d e"}]}
ROWS = [hashed(time, 600, 5, [1, time + 2]) for time in range(7)]
LINES = jsonl(*ROWS).encode()
TABLE = AZURE.encode() + b"".join(b"2023-11-16 18:17:0%d,5,1\n" % n for n in range(7))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer(tmp_path)


def records_of(data: bytes) -> tuple[int, int]:
    """Records and blank lines of CSV with a header or of JSON lines, counted independently."""
    lines = data.removeprefix(BOM).split(b"\n")
    blank = sum(not line.strip() for line in lines) - (not lines[-1].strip())
    filled = [line for line in lines if line.strip()]
    return len(filled) - (not filled[0].startswith(b"{")), blank


def accounted(info: TraceInfo) -> int:
    """Rows of formats that make one request of each row."""
    return info.accepted + sum(each.count for each in info.rejected) + info.unread_rows


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "whole": lambda data: data,
    "a byte order mark": lambda data: BOM + data,
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "blank lines": lambda data: data.replace(b"\n", b"\n \n\n"),
    "no last newline": bytes.rstrip,
    "truncated": lambda data: data[:-9],
    "twice": lambda data: data + BOM + data,
    "words behind": lambda data: data + b"so much for that\n",
    "a list behind": lambda data: data + b"[1, 2]\n",
    "trailing commas": lambda data: data.replace(b"\n", b",\n"),
}


@pytest.mark.parametrize("source", [LINES, TABLE], ids=["JSON lines", "CSV"])
@pytest.mark.parametrize("damage", DAMAGED)
def test_every_line_is_accounted_for(write: Write, source: bytes, damage: str) -> None:
    data = DAMAGED[damage](source)
    if damage == "trailing commas" and source is LINES:  # so is the first row
        with pytest.raises(TraceError):
            read(write(data), policy="skip")
        return
    _, trace = read(write(data), policy="skip")
    info = trace.info
    assert (accounted(info), info.ignored.get("blank_lines", 0)) == records_of(data)
    assert info.bytes == len(data)
    assert not info.unread_rows
    head = Head(TraceFile(write(data), ReadOptions(policy="skip")), 3)
    assert len(list(head)) == 3
    assert head.info.rows + head.info.unread_rows == records_of(data)[0]


@pytest.mark.parametrize(
    ("behind", "code"),
    [
        ("so much for that", "content_after_list"),
        ("[]", "content_after_list"),
        ("{}", "content_after_list"),
        (",", "content_after_list"),
        ("]", "content_after_list"),
        ("\x00", "content_after_list"),
        (" \r\n\t", None),
        ("", None),
    ],
)
def test_what_follows_a_list_is_an_error(write: Write, behind: str, code: str | None) -> None:
    path = write(json.dumps([CHAT, CHAT]) + "\n" + behind)
    options: dict[str, Any] = {"count_tokens": words, "policy": "skip"}
    if code is None:
        assert len(read(path, **options)[0]) == 2
        return
    with pytest.raises(TraceError) as caught:
        read(path, **options)
    assert (caught.value.code, caught.value.params["line"]) == (code, 2)
    assert caught.value.params["column"] == 1
    head = Head(TraceFile(path, ReadOptions(**options)), 1)
    list(head)
    assert accounted(head.info) == 3  # the damaged rest counts as one


def test_an_entry_of_a_list_on_one_line_is_named(write: Write) -> None:
    path = write(json.dumps([CHAT, CHAT, {"conversations": []}, 5]))
    with pytest.raises(TraceError) as caught:
        read(path, count_tokens=words)
    assert (caught.value.params["entry"], caught.value.params["line"]) == (3, 1)
    _, trace = read(path, count_tokens=words, policy="skip")
    found = {each.reason: each.first_entry for each in trace.info.rejected}
    assert found == {"too_few_turns": 3, "not_an_object": 4}


@pytest.mark.parametrize("cut", range(1, 60))
def test_the_place_of_a_fault_is_that_of_the_json_module(write: Write, cut: int) -> None:
    text = json.dumps([{"é": 1.5, "b": [1, 2]}, {"c": "d\u20ac"}, 12], indent=1)
    cut = min(cut, len(text) - 1)
    damaged = text[:cut] + "\x01" + text[cut:]
    try:
        json.loads(damaged)
    except json.JSONDecodeError as error:
        expected = (error.lineno, error.colno)
    with pytest.raises(TraceError) as caught:
        list(json_list_rows(Slow(damaged.encode(), 3), Path("x")))
    found = caught.value.params
    assert abs(found["line"] - expected[0]) == 0
    assert abs(found["column"] - expected[1]) <= 1  # a control character in a string: at or behind


class Slow(io.BytesIO):
    """Gives at most so many bytes at a time, so that values lie across reads."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size: int | None = -1) -> bytes:
        return super().read(self._most)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    st.lists(VALUES, max_size=5), st.sampled_from([None, 1]), st.integers(0, 200),
    st.sampled_from(["", ",", "[", "]", "{", '"', "1", "x", "\n"]), st.integers(1, 7),
)  # fmt: skip
def test_a_list_is_read_as_the_json_module_reads_it(
    value: list[Any], indent: int | None, at: int, put: str, chunk: int
) -> None:
    text = json.dumps(value, indent=indent)
    text = text[:at] + put + text[at:]
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
    if expected is not None and not isinstance(expected, list):
        return
    try:
        found = [row for _, row in json_list_rows(Slow(text.encode(), chunk), Path("x"))]
    except TraceError:
        assert expected is None
        return
    assert expected is not None
    assert len(found) == len(expected)
    for row, value in zip(found, expected, strict=True):
        if isinstance(value, dict):
            assert json.loads(json.dumps(row, default=float)) == value


@pytest.mark.parametrize(
    ("head", "format_", "missing", "only_clock"),
    [
        ("ContextTokens,GeneratedTokens", "azure", "TIMESTAMP", True),
        ("TIMESTAMP,ContextTokens", "azure", "GeneratedTokens", False),
        ("num_prefill_tokens,num_decode_tokens", "vidur", "arrived_at", True),
        ('{"input_toks": 1, "output_toks": 2}', "llmservingsim", "arrival_time_ns", True),
    ],
)
def test_the_nearest_format_and_what_it_lacks_are_named(
    write: Write, head: str, format_: str, missing: str, only_clock: bool
) -> None:
    with pytest.raises(TraceError) as caught:
        read(write(head + "\n1,2\n"))
    params = caught.value.params
    assert caught.value.code == "near_format"
    assert (params["format"], params["missing"]) == (format_, missing)
    assert params["only_clock"] is only_clock


@pytest.mark.parametrize(
    ("unit", "times", "doubt"),
    [
        ("s", [0, 1, 2.5], None),
        ("ms", [0, 1000, 2500], None),
        ("ms", [0, 1000.5, 2500], "fractions"),
        ("us", [0, 1000.5, 2500], "fractions"),
        ("s", [0, 0.0004, 0.0008], "fast"),
        ("ms", [0, 1, 1], "fast"),
        ("s", [0, 3000, 6000], "slow"),
        ("s", [0, 203, 406], "slow"),
        ("ms", [0, 2, 5], "fast"),
        ("s", [0, 60, 120], None),
        ("s", [0, 0, 0], None),
    ],
)
def test_an_implausible_unit_is_doubted(
    write: Write, unit: str, times: list[float], doubt: str | None
) -> None:
    rows = jsonl(*({"timestamp": t, "input_length": 5, "output_length": 1} for t in times))
    trace = read(write(rows), unit=unit, format="timed-trace")[1]
    assert trace.info.unit_doubt == doubt


def test_bailians_content_ids_are_chained_over_the_prefix(write: Write) -> None:
    content = [[1, 2, 3], [9, 2, 3], [1, 2, 4], [1, 2, 3], [2, 3], [9, 2, 5]]
    rows = [
        {"chat_id": n, "parent_chat_id": -1, "turn": 1, **hashed(n, 16 * len(ids), 1, ids)}
        for n, ids in enumerate(content)
    ]
    requests, trace = read(write(jsonl(*rows)))
    assert trace.info.format == "qwen-bailian"
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for ids in content:  # a block is found where all up to its end was there before
        prefixes = [tuple(ids[: n + 1]) for n in range(len(ids))]
        hits += sum(prefix in seen for prefix in prefixes)
        seen.update(prefixes)
    assert replay_prefixes(collect(requests), "lru", None).hit_blocks == hits == 7
