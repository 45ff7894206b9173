"""Trace files that are none, and rows that are bad: an error with its line, or counted."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from trace_files import AZURE, Write, hashed, jsonl, lengths, read, words, writer

from kvsim.traces import Head, ReadOptions, TraceError, TraceFile, rows
from kvsim.traces.rows import load_json


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer(tmp_path)


ROW = "2023-11-16 18:17:05,1,1\n"
BAD_ROWS = [
    ("2023-11-16 18:17:05,0,10", "prompt_not_positive"),
    ("2023-11-16 18:17:05,-3,10", "prompt_not_positive"),
    ("2023-11-16 18:17:05,5,0", "output_not_positive"),
    ("2023-11-16 18:17:05,5,", "output_missing"),
    ("2023-11-16 18:17:05,5.5,1", "prompt_not_a_number"),
    ("2023-11-16 18:17:05,1e400,1", "prompt_not_a_number"),
    ("2023-11-16 18:17:05,1_0,1", "prompt_not_a_number"),
    ("2023-11-16 18:17:05,nan,1", "prompt_not_a_number"),
    ("2023-11-16 18:17:05,99999999999999999999,1", "prompt_too_large"),
    ("2023-11-16 18:17:05,5,9999999999999999999999999", "output_too_large"),
    ("2023-11-16 18:17:05,5,1099511627777", "output_too_large"),
    ("2023-11-16 18:17:02.9,5,1", "clock_backwards"),
    ("2023-13-16 18:17:05,5,1", "time_not_a_date"),
    ("2023-11-16 18:17:05.12x,5,1", "time_not_a_date"),
    (",5,1", "time_missing"),
    ("2023-11-16 18:17:05,5", "columns"),
    ("2023-11-16 18:17:05,5,1,9", "columns"),
]


@pytest.mark.parametrize(("row", "reason"), BAD_ROWS)
def test_a_bad_row_is_an_error_with_its_line_or_counted(
    write: Write, row: str, reason: str
) -> None:
    good = "2023-11-16 18:17:03,4808,10\n"
    path = write(f"{AZURE}{good}\n{row}\n{row}\n2023-11-16 18:17:06,7,8\n")
    with pytest.raises(TraceError) as caught:
        read(path)
    assert caught.value.code == "bad_row"
    assert (caught.value.params["line"], caught.value.params["reason"]) == (4, reason)
    requests, trace = read(path, policy="skip")
    assert lengths(requests) == [(0, 4808, 10), (3_000_000_000, 7, 8)]
    assert [r.id for r in requests] == [0, 1]
    info = trace.info
    assert [(r.reason, r.count, r.first_line) for r in info.rejected] == [(reason, 2, 4)]
    assert (info.rows, info.accepted) == (4, 2)
    assert info.ignored == {"blank_lines": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not_json"),
        (b'{"timestamp": NaN}', "not_json"),
        (b"[" * 100_000, "not_json"),
        (b'{"timestamp": "\\ud800"}', "not_json"),
        (b'{"timestamp": 1e19, "input_length": 5, "output_length": 1}', "time_too_late"),
        (b"[1]", "not_an_object"),
        (b"\xff\xfe", "not_utf8"),
        (b'{"timestamp": 3, "input_length": 5}', "output_missing"),
        (b'{"timestamp": 3, "input_length": true, "output_length": 1}', "prompt_not_a_number"),
        (b'{"timestamp": "x", "input_length": 5, "output_length": 1}', "time_not_a_number"),
        (b'{"timestamp": 3, "input_length": 513, "output_length": 1, "hash_ids": [1, 2, 3]}',
         "hash_ids_not_of_that_length"),
        (b'{"timestamp": 3, "input_length": 5, "output_length": 1, "hash_ids": "1"}',
         "hash_ids_not_a_list"),
    ],
)  # fmt: skip
def test_a_bad_line_of_json(write: Write, line: bytes, reason: str) -> None:
    good = jsonl(hashed(2, 1000, 1, [1, 2])).encode()
    path = write(good + line + b"\n" + good)
    requests, trace = read(path, format="mooncake", policy="skip")
    assert len(requests) == 2
    assert [(r.reason, r.first_line) for r in trace.info.rejected] == [(reason, 2)]


@pytest.mark.parametrize(
    ("content", "options", "code"),
    [
        ("", {}, "empty"),
        ("\n\n", {}, "empty"),
        (AZURE, {}, "empty"),
        ("[]", {"count_tokens": words}, "empty"),
        ("a,b,c\n1,2,3\n", {}, "unknown_format"),
        ("<html>", {}, "unknown_format"),
        ('{"foo": 1}\n', {}, "unknown_format"),
        (AZURE + ROW, {"format": "burstgpt"}, "other_format"),
        (AZURE + ROW, {"format": "mooncake"}, "other_format"),
        (
            AZURE + "2023-11-16 18:17:05,1,1\n",
            {"format": "sharegpt", "count_tokens": words},
            "other_format",
        ),
        (AZURE + ROW, {"unit": "ms"}, "no_clock"),
        (AZURE + ROW, {"unit": "h"}, "no_such_unit"),
        (AZURE + ROW, {"format": "csv"}, "no_such_format"),
        (AZURE + "2023-11-16 18:17:05,0,1\n", {"policy": "skip"}, "nothing_accepted"),
        ("[1,", {"count_tokens": words, "policy": "skip"}, "not_json"),
        ('[{"conversations": []} {}]', {"count_tokens": words, "policy": "skip"}, "not_json"),
        ('[{"conversations": []}', {"count_tokens": words, "policy": "skip"}, "not_json"),
        ('[{"prompt": "a"}]', {"count_tokens": words}, "json_lines_needed"),
        ('[{"conversations": [{"value": "\\ud800"}]}]', {"count_tokens": words}, "not_json"),
        (f'[["{"a" * 200_000}", x{" " * 20}]]', {"count_tokens": words}, "not_json"),
        (AZURE + ROW + "2" * 200_000, {"policy": "skip"}, "row_endless"),
    ],
)
def test_a_file_that_is_no_trace_says_so(
    write: Write,
    content: str,
    options: dict[str, Any],
    code: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "MAX_ROW_BYTES", 100_000)
    with pytest.raises(TraceError) as caught:
        read(write(content), **options)
    assert caught.value.code == code
    assert str(caught.value.params["file"]).endswith("trace")


def test_the_first_and_the_last_year_are_no_clock(write: Write) -> None:
    rows_of_years = "0001-01-01 00:00:00,1,1\n9999-12-31 23:59:59,1,1\n"
    with pytest.raises(TraceError) as caught:
        read(write(AZURE + rows_of_years))
    assert caught.value.params["reason"] == "time_too_late"


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="another system")
def test_no_more_is_read_than_the_size_of_a_file(tmp_path: Path) -> None:
    """The system gives this one a size of 0 and content without end."""
    with pytest.raises(TraceError, match="empty"):
        read(Path("/proc/self/pagemap"))


def test_a_missing_and_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="unreadable"):
        read(tmp_path / "nothing")
    text = gzip.compress((AZURE + "2023-11-16 18:17:05,1,1\n" * 999).encode())
    (tmp_path / "cut.gz").write_bytes(text[: len(text) // 2])
    with pytest.raises(TraceError, match="unreadable"):
        read(tmp_path / "cut.gz")


def test_a_blank_line_behind_each_row_is_nothing(write: Write) -> None:
    path = write(AZURE + (ROW + "\n") * 20)
    requests, trace = read(path)
    assert (len(requests), trace.info.ignored) == (20, {"blank_lines": 20})


def test_a_trace_of_more_requests_than_may_be_held_is_refused(write: Write) -> None:
    path = write(AZURE + ROW * 20)
    assert len(read(path, most=20)[0]) == 20
    with pytest.raises(TraceError) as caught:
        read(path, most=19)
    assert (caught.value.code, caught.value.params["most"]) == ("too_many", 19)
    options = ReadOptions(most=19)
    with pytest.raises(TraceError, match="too_many"):
        TraceFile(path, options).check_rows()
    TraceFile(write(AZURE + (ROW + "\n") * 19), options).check_rows()
    assert len(list(Head(TraceFile(path, ReadOptions(most=19)), 19))) == 19


@pytest.mark.parametrize("text", ['{"a": 1e9999999999999999999}', '{"a": NaN}', "{"])
def test_what_is_no_json_number_is_refused_as_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        load_json(text)


def test_a_hash_id_of_a_thousand_digits_is_none(write: Write) -> None:
    path = write(jsonl(hashed(0, 5, 1, [10**1000])), "x.jsonl")
    with pytest.raises(TraceError, match="hash_ids_not_a_list"):
        read(path, unit="s", block_size=16)
