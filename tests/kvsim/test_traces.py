"""Trace files: every format, what must be declared, and rows and files that are bad."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import AZURE, Write, hashed, jsonl, lengths, read, words, writer

from kvsim.traces import Head, ReadOptions, Tile, TraceError, TraceFile, rows
from kvsim.traces.detect import fitting_block_sizes
from kvsim.traces.parse import BadRowError, date_time, scaled_time

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
BURST6 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST8 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer(tmp_path)


TOKENS = {"input_toks": 5, "output_toks": 2}
# Text, requests (arrival in ns, prompt, output), facts of the trace, and fields of its requests.
PUBLISHED: dict[str, tuple[str, list[tuple[int, int, int]], dict[str, Any], dict[str, Any]]] = {
    "a plain table": (
        "arrival,prompt_tokens,output_tokens\n0,5,2\n1.25,7,3\n",
        [(0, 5, 2), (1_250_000_000, 7, 3)],
        {"format": "plain", "unit": "s"},
        {},
    ),
    "a plain table without times": (
        "output_tokens,prompt_tokens\n2,5\n",
        [(0, 5, 2)],
        {"format": "plain-lengths", "has_clock": False},
        {},
    ),
    "azure 2023": (
        AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8",
        [(0, 4808, 10), (52_000_000, 3180, 8)],
        {"format": "azure", "unit": "date", "format_source": "detected", "span_ns": 52_000_000},
        {},
    ),
    "azure 2024, to the last digit": (
        AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:00.0099307+00:00,2399,6\n2024-05-10 00:00:01+00:00,2399,6\n",
        [(0, 2162, 5), (700, 2399, 6), (990_070_000, 2399, 6)],
        {},
        {},
    ),
    "burstgpt of 6 columns": (
        BURST6 + "5,ChatGPT,472,18,490,Conversation log\n",
        [(0, 472, 18)],
        {"origin_ns": 5_000_000_000},
        {},
    ),
    "burstgpt of 8 columns": (
        BURST8 + "5.0,12,3.25,ChatGPT,472,18,490,Conversation log\n"
        "7.5,,1,GPT-4,10,20,30,API log\n",
        [(0, 472, 18), (2_500_000_000, 10, 20)],
        {"format": "burstgpt", "unit": "s"},
        {},
    ),
    "vidur with more columns and whole decimals": (
        ",arrived_at,num_prefill_tokens,num_decode_tokens,pd_ratio\n"
        "0,0.5,12.0,3,4.0\n1,0.75,7,2,3.5\n",
        [(0, 12, 3), (250_000_000, 7, 2)],
        {"format": "vidur"},
        {},
    ),
    "mooncake": (
        jsonl(hashed(27, 6758, 500, list(range(14))), hashed(30, 512, 2, [0])),
        [(0, 6758, 500), (3_000_000, 512, 2)],
        {
            "format": "mooncake", "unit": "ms", "unit_source": "format", "block_size": 512,
            "block_size_source": "format",
        },
        {"hash_ids": [tuple(range(14)), (0,)], "hash_block_size": [512, 512]},
    ),
    "qwen-bailian": (
        jsonl(
            hashed(61.25, 33, 7, [1, 2, 3], chat_id=9, parent_chat_id=-1, turn=1, type="text"),
            hashed(61.5, 48, 7, [1, 2, 4], chat_id=12, parent_chat_id=9, turn=2, type="text"),
        ),
        [(0, 33, 7), (250_000_000, 48, 7)],
        {"format": "qwen-bailian", "unit": "s", "block_size": 16},
        {"hash_block_size": [16, 16]},
    ),
    "llmservingsim": (
        jsonl(*(TOKENS | {"arrival_time_ns": time} for time in (100, 350))),
        [(0, 5, 2), (250, 5, 2)],
        {"unit": "ns"},
        {},
    ),
    # Not what binary fractions would make of it.
    "a recorded run": (
        jsonl(*(TOKENS | {"arrival_time": time} for time in (1777142838.338653, 1777142839))),
        [(0, 5, 2), (661_347_000, 5, 2)],
        {"format": "recorded-run", "unit": "s"},
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_format_is_recognised_and_read(write: Write, name: str) -> None:
    text, expected, facts, fields = PUBLISHED[name]
    requests, trace = read(write(text))
    assert lengths(requests) == expected
    assert list(trace) == requests  # each pass begins anew
    assert {fact: getattr(trace.info, fact) for fact in facts} == facts
    found = {field: [getattr(request, field) for request in requests] for field in fields}
    assert found == fields


TIMED = jsonl(hashed(1, 33, 7, [1, 2, 3]), hashed(2, 47, 7, [1, 2, 4]))
CONFLICTING = jsonl(hashed(1, 6758, 7, [*range(14)]), hashed(2, 6758, 7, [0, 1, 2]))


def test_a_timed_trace_tells_its_block_size(write: Write) -> None:
    requests, trace = read(write(TIMED), unit="ms")
    assert [r.arrival_ns for r in requests] == [0, 1_000_000]
    assert (trace.info.block_size, trace.info.block_size_source) == (16, "detected")
    _, trace = read(write(TIMED), unit="s", block_size=16)
    assert (trace.info.unit_source, trace.info.block_size_source) == ("declared", "declared")


SHAREGPT = [
    {"id": "a_0", "conversations": [
        {"from": "human", "value": "one two"}, {"from": "gpt", "value": "three"},
        {"from": "human", "value": "four"}, {"from": "gpt", "value": "five six 七 \"]}"},
    ]},
    {"id": "b_0", "conversations": [{"from": "human", "value": "alone"}]},
    {"id": "c_0", "conversations": []},
]  # fmt: skip


def test_sharegpt_first_turns_as_vllm_or_every_answer(write: Write) -> None:
    path = write(json.dumps(SHAREGPT, indent=1))
    requests, trace = read(path, policy="skip", count_tokens=words)
    assert lengths(requests) == [(0, 2, 1)]
    info = trace.info
    assert info.ignored == {"later_turns": 2}
    assert [(r.reason, r.count, r.first_value) for r in info.rejected] == [
        ("too_few_turns", 2, "1")
    ]
    assert (info.rows, info.accepted, info.has_clock) == (3, 1, False)
    requests, _ = read(path, policy="skip", count_tokens=words, turns="all")
    assert lengths(requests) == [(0, 2, 1), (0, 4, 4)]


def test_the_line_of_an_element_in_a_list(write: Write) -> None:
    path = write(json.dumps(SHAREGPT, indent=1))
    with pytest.raises(TraceError) as caught:
        read(path, count_tokens=words)
    text = path.read_text(encoding="utf-8").splitlines()
    line = caught.value.params["line"]
    assert isinstance(line, int)
    assert text[line - 1].strip() == "{"
    assert "b_0" in text[line]


def test_prompts_take_their_output_length_from_the_row_or_from_the_caller(write: Write) -> None:
    path = write(jsonl({"prompt": "a b c", "max_tokens": 7}, {"prompt": "d"}))
    requests, _ = read(path, count_tokens=words, output_tokens=5)
    assert lengths(requests) == [(0, 3, 7), (0, 1, 5)]
    with pytest.raises(TraceError) as caught:
        read(path, count_tokens=words)
    assert caught.value.params["reason"] == "output_tokens_needed"
    with pytest.raises(TraceError) as caught:
        read(path)
    assert caught.value.code == "tokens_needed"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("count", "unread"), [(1, 2), (2, 1), (3, 0), (4, 0)])
def test_the_hash_is_of_the_file_even_when_reading_stops_early(
    write: Write, count: int, unread: int, packed: bool
) -> None:
    text = (AZURE + "2023-11-16 18:17:05,1,1\n" * 3).encode()
    content = gzip.compress(text) if packed else text
    file = TraceFile(write(content))
    for stream in (Head(file, count), Tile(file, count)):
        requests = list(stream)
        assert stream.info.sha256 == hashlib.sha256(content).hexdigest()
        assert (stream.info.unread_rows, stream.info.bytes) == (unread, len(content))
        assert len(requests) == stream.info.accepted


@given(
    size=st.sampled_from([16, 64, 512]),
    prompts=st.lists(st.integers(1, 9000), min_size=1, max_size=30),
)
def test_the_true_block_size_is_among_those_that_fit(size: int, prompts: list[int]) -> None:
    rows = [{"input_length": p, "hash_ids": [0] * -(-p // size)} for p in prompts]
    fitting = fitting_block_sizes(rows)
    assert fitting is not None
    assert size in fitting
    for other in fitting:
        assert all(-(-p // other) == -(-p // size) for p in prompts)


def test_rows_without_the_id_of_a_partial_block_do_not_hide_the_size() -> None:
    rows = [{"input_length": p, "hash_ids": [0] * (p // 512)} for p in (1008, 8189, 600)]
    rows += [{"input_length": p, "hash_ids": [0] * -(-p // 512)} for p in (1813, 8189, 3245)]
    assert fitting_block_sizes(rows) == (512,)
    rows.append({"input_length": 8189, "hash_ids": [0] * 3})  # of no power of two with the others
    assert fitting_block_sizes(rows) == ()


def test_times_are_exact() -> None:
    assert date_time("1970-01-02 00:00:00.000000001") == 86_400 * 10**9 + 1
    assert date_time("1970-01-01T02:00:00+02:00") == 0
    assert scaled_time("0.1", "s") == 100_000_000
    assert scaled_time(3, "us") == 3_000
    with pytest.raises(BadRowError):
        scaled_time(True, "s")


@pytest.mark.parametrize(
    ("name", "format_", "rows", "unit"),
    [
        ("AzureLLMInferenceTrace_code.csv", "azure", 8_819, "date"),
        ("mooncake_conversation_trace.jsonl", "mooncake", 12_031, "ms"),
        ("workload_me2_01_mixed.jsonl", "llmservingsim", 608, "ns"),
        ("vllm_rtxpro6000_llama-3.1-8b/requests.jsonl", "recorded-run", 300, "s"),
    ],
)
def test_a_published_trace_is_recognised_and_read_to_its_last_row(
    name: str, format_: str, rows: int, unit: str
) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip("the public traces are not beside this checkout (../shared/traces)")
    requests, trace = read(path)
    info = trace.info
    assert (info.format, info.rows, info.accepted, info.unit) == (format_, rows, rows, unit)
    assert info.rejected == ()
    assert info.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert requests[-1].arrival_ns == info.span_ns


ROW = "2023-11-16 18:17:05,1,1\n"
ZEROS = b"0" * 999
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
    ("9999-12-31 23:59:59,1,1", "time_too_late"),
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
        (b'{"timestamp": 1e9999999999999999999}', "not_json"),
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
        (b'{"timestamp": 3, "input_length": 5, "output_length": 1, "hash_ids": [1%s]}' % ZEROS,
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
        (TIMED, {}, "unit_needed"),
        (jsonl(hashed(1, 33, 7, [1])), {"unit": "s"}, "block_size_needed"),
        (CONFLICTING, {"unit": "s"}, "no_block_size_fits"),
        (CONFLICTING, {"unit": "s", "block_size": 512}, "bad_row"),
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


def test_a_trace_of_more_requests_than_may_be_held_is_refused(write: Write) -> None:
    path = write(AZURE + ROW * 20)
    assert len(read(path, most=20)[0]) == 20
    with pytest.raises(TraceError) as caught:
        read(path, most=19)
    assert (caught.value.code, caught.value.params["most"]) == ("too_many", 19)
    assert len(list(Head(TraceFile(path, ReadOptions(most=19)), 19))) == 19
