"""Trace files: every format, what is found out and what must be declared."""

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

from kvsim.traces import Head, Tile, TraceError, TraceFile
from kvsim.traces.detect import fitting_block_sizes
from kvsim.traces.parse import BadRowError, date_time, scaled_time
from kvsim.traces.rows import json_list_rows

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
BURST6 = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST8 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer(tmp_path)


def test_azure_2023_and_2024_to_the_last_digit(write: Write) -> None:
    text = AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8"
    requests, trace = read(write(text))
    assert lengths(requests) == [(0, 4808, 10), (52_000_000, 3180, 8)]
    info = trace.info
    assert (info.format, info.unit, info.format_source) == ("azure", "date", "detected")
    assert info.span_ns == 52_000_000
    text = AZURE + (
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:00.0099307+00:00,2399,6\n"
        "2024-05-10 00:00:01+00:00,2399,6\n"
    )
    requests, _ = read(write(text))
    assert [r.arrival_ns for r in requests] == [0, 700, 990_070_000]


def test_burstgpt_with_6_and_with_8_columns(write: Write) -> None:
    requests, trace = read(write(BURST6 + "5,ChatGPT,472,18,490,Conversation log\n"))
    assert lengths(requests) == [(0, 472, 18)]
    assert trace.info.origin_ns == 5_000_000_000
    rows = "5.0,12,3.25,ChatGPT,472,18,490,Conversation log\n7.5,,1,GPT-4,10,20,30,API log\n"
    requests, trace = read(write(BURST8 + rows))
    assert lengths(requests) == [(0, 472, 18), (2_500_000_000, 10, 20)]
    assert [r.chat for r in requests] == ["12", None]
    assert (trace.info.format, trace.info.unit) == ("burstgpt", "s")


def test_vidur_may_have_more_columns_and_whole_decimals(write: Write) -> None:
    header = ",arrived_at,num_prefill_tokens,num_decode_tokens,pd_ratio\n"
    requests, trace = read(write(header + "0,0.5,12.0,3,4.0\n1,0.75,7,2,3.5\n"))
    assert lengths(requests) == [(0, 12, 3), (250_000_000, 7, 2)]
    assert trace.info.format == "vidur"


def test_mooncake_is_in_milliseconds_and_blocks_of_512(write: Write) -> None:
    rows = [hashed(27, 6758, 500, list(range(14))), hashed(30, 512, 2, [0])]
    requests, trace = read(write(jsonl(*rows)))
    assert lengths(requests) == [(0, 6758, 500), (3_000_000, 512, 2)]
    assert requests[0].hash_ids == tuple(range(14))
    assert requests[0].hash_block_size == 512
    info = trace.info
    assert (info.format, info.unit, info.unit_source) == ("mooncake", "ms", "format")
    assert (info.block_size, info.block_size_source) == (512, "format")


def test_qwen_bailian_is_in_seconds_and_blocks_of_16_and_has_chats(write: Write) -> None:
    rows = [
        hashed(61.25, 33, 7, [1, 2, 3], chat_id=9, parent_chat_id=-1, turn=1, type="text"),
        hashed(61.5, 48, 7, [1, 2, 4], chat_id=12, parent_chat_id=9, turn=2, type="text"),
    ]
    requests, trace = read(write(jsonl(*rows)))
    assert lengths(requests) == [(0, 33, 7), (250_000_000, 48, 7)]
    assert [(r.chat, r.parent, r.turn) for r in requests] == [(9, None, 1), (12, 9, 2)]
    assert (trace.info.format, trace.info.unit, trace.info.block_size) == ("qwen-bailian", "s", 16)


def test_a_timed_trace_needs_its_unit_and_tells_its_block_size(write: Write) -> None:
    path = write(jsonl(hashed(1, 33, 7, [1, 2, 3]), hashed(2, 47, 7, [1, 2, 4])))
    with pytest.raises(TraceError) as caught:
        read(path)
    assert (caught.value.code, caught.value.params["format"]) == ("unit_needed", "timed-trace")
    requests, trace = read(path, unit="ms")
    assert [r.arrival_ns for r in requests] == [0, 1_000_000]
    assert (trace.info.block_size, trace.info.block_size_source) == (16, "detected")
    _, trace = read(path, unit="s", block_size=16)
    assert (trace.info.unit_source, trace.info.block_size_source) == ("declared", "declared")
    ambiguous = write(jsonl(hashed(1, 33, 7, [1])))
    with pytest.raises(TraceError) as caught:
        read(ambiguous, unit="s")
    assert caught.value.code == "block_size_needed"
    conflicting = write(jsonl(hashed(1, 6758, 7, [*range(14)]), hashed(2, 6758, 7, [0, 1, 2])))
    with pytest.raises(TraceError) as caught:
        read(conflicting, unit="s")
    assert caught.value.code == "no_block_size_fits"
    with pytest.raises(TraceError) as caught:
        read(conflicting, unit="s", block_size=512)
    assert caught.value.params["line"] == 2


def test_llmservingsim_and_a_recorded_run(write: Write) -> None:
    rows = [{"input_toks": 5, "output_toks": 2, "arrival_time_ns": t} for t in (100, 350)]
    requests, trace = read(write(jsonl(*rows)))
    assert lengths(requests) == [(0, 5, 2), (250, 5, 2)]
    assert trace.info.unit == "ns"
    rows = [
        {"input_toks": 5, "output_toks": 2, "arrival_time": t}
        for t in (1777142838.338653, 1777142839)
    ]
    requests, trace = read(write(jsonl(*rows)))
    assert requests[1].arrival_ns == 661_347_000  # not what binary fractions would make of it
    assert (trace.info.format, trace.info.unit) == ("recorded-run", "s")


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
    assert [(r.chat, r.turn) for r in requests] == [("a_0", 1), ("a_0", 2)]


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


def test_the_hash_is_of_the_file_even_when_reading_stops_early(write: Write) -> None:
    text = (AZURE + "2023-11-16 18:17:05,1,1\n" * 20_000).encode()
    path = write(text)
    requests, trace = read(path, limit=3)
    assert len(requests) == 3
    info = trace.info
    assert (info.sha256, info.bytes) == (hashlib.sha256(text).hexdigest(), len(text))
    assert info.unread_rows
    packed = write(gzip.compress(text), "trace.gz")
    requests, trace = read(packed)
    assert len(requests) == 20_000
    assert trace.info.sha256 == hashlib.sha256(packed.read_bytes()).hexdigest()
    assert not trace.info.unread_rows


@pytest.mark.parametrize(("count", "unread"), [(1, 2), (2, 1), (3, 0), (4, 0)])
def test_a_head_of_a_file_has_the_hash_of_the_file(write: Write, count: int, unread: int) -> None:
    text = (AZURE + "2023-11-16 18:17:05,1,1\n" * 3).encode()
    for stream in (Head(TraceFile(write(text)), count), Tile(TraceFile(write(text)), count)):
        requests = list(stream)
        assert stream.info.sha256 == hashlib.sha256(text).hexdigest()
        assert stream.info.unread_rows == unread
        assert len(requests) == stream.info.accepted


def test_each_pass_begins_anew(write: Write) -> None:
    trace = TraceFile(write(AZURE + "2023-11-16 18:17:05,1,1\n"))
    assert list(trace) == list(trace)
    assert trace.info.rows == 1
    json.dumps(trace.info.to_json())


@given(
    rows=st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(max_size=9), lambda each: st.lists(each, max_size=3)
        ).map(lambda value: {"v": value}),
        max_size=9,
    ),
    size=st.integers(1, 40),
    indent=st.sampled_from([None, 0, 2]),
)
def test_a_list_read_in_pieces_is_the_list(
    rows: list[dict[str, Any]], size: int, indent: int | None
) -> None:
    import io

    text = json.dumps(rows, ensure_ascii=False, indent=indent).encode()

    class Slow(io.BytesIO):
        def read(self, _: int | None = -1) -> bytes:
            return super().read(size)

    assert [row for _, row in json_list_rows(Slow(text), Path("x"))] == rows


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


def test_a_block_size_that_would_need_one_block_more_does_not_fit() -> None:
    assert fitting_block_sizes([{"input_length": 65, "hash_ids": [1, 2]}]) == (64,)
    assert fitting_block_sizes([{"input_length": 64, "hash_ids": [1, 2]}]) == (32,)
    assert fitting_block_sizes([{"input_length": 64}]) is None


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
