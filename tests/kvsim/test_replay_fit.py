"""Step costs from the times of requests: a replay under them takes as long as the run."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streams import Listed

from kvsim.latency.request_times import RequestRecord, read_request_records
from kvsim.latency.roofline import BatchLatency, LinearLatency, StepWork
from kvsim.latency.token_times import fit_tokens
from kvsim.planning.replay_fit import (
    PoolTooSmallError,
    ReplayError,
    ReplayFit,
    fit_replay,
    replay_error,
)
from kvsim.sim.config import SimConfig
from kvsim.sim.simulator import simulate
from kvsim.traces import TraceFile
from kvsim.traces.types import TraceError

GPU_RUN = Path(__file__).resolve().parents[3] / "shared/traces/vllm_rtxpro6000_llama-3.1-8b"
SERVED = Path(__file__).resolve().parents[1] / "corpus" / "served"
COSTS = LinearLatency(8e-3, 2e-4, 1e-3, 4e-7, request_s=0.02)
POOL = SimConfig(
    "paged", 80 * 32, 1, 1024, COSTS, block_size=32, max_num_seqs=32, max_num_batched_tokens=512
)


def largest(error: ReplayError) -> float:
    return max(abs(error.span), abs(error.first_token), abs(error.latency))


def stream(rate: float, count: int, seed: int) -> Listed:
    """Requests at random times; ``rate`` a second."""
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1e9 / rate, count)).astype(np.int64)
    prompts, outputs = draw.integers(80, 320, count), draw.integers(40, 160, count)
    rows = zip(arrivals - arrivals[0], prompts, outputs, strict=True)
    return Listed([(int(at), int(prompt), int(output)) for at, prompt, output in rows])


def simulated(rate: float, seed: int, config: SimConfig = POOL) -> tuple[list[RequestRecord], int]:
    """Records of a simulated run, and its preemptions."""
    requests = stream(rate, 150, seed)
    found = simulate(requests, config)
    records = [
        RequestRecord(row.prompt_tokens, row.output_tokens, row.arrival_s, first, last)
        for row, first, last in zip(
            requests, found.rows["first_token_s"], found.rows["finished_s"], strict=True
        )
    ]
    return records, found.preemptions.total


def test_a_crowded_run_is_replayed_as_it_was_and_stalls_are_no_step_time() -> None:
    engine = replace(POOL, latency=replace(COSTS, request_s=0.0))
    records, preemptions = simulated(4.5, 1, engine)
    assert preemptions > 20
    found = fit_replay(records, POOL)
    assert largest(found.replay) < 2
    # A pool without end has no stalls to explain the seconds with.
    endless = fit_replay(records, replace(POOL, budget_bytes=150 * 15 * 32))
    assert endless.preemptions == 0
    step = StepWork(0, 8, 2000, 2000)
    assert endless.costs.seconds(step) != pytest.approx(COSTS.seconds(step), rel=0.3)
    assert found.costs.seconds(step) == pytest.approx(COSTS.seconds(step), rel=0.1)


def test_costs_are_not_below_their_bounds() -> None:
    records, _ = simulated(2.0, 1, replace(POOL, latency=replace(COSTS, request_s=0.0)))
    least = LinearLatency(0.01, 3e-4, 0.0, 5e-7)
    found = fit_replay(records, POOL, least)
    for name in LinearLatency.__dataclass_fields__:
        assert getattr(found.costs, name) >= getattr(least, name)
    # Such a machine is slower than the one that was recorded.
    assert largest(found.replay) > 2


def test_the_engine_has_a_request_after_the_host_s_time() -> None:
    (record, *_), _ = simulated(1.0, 4)
    step = COSTS.seconds(StepWork.of([(0, record.prompt_tokens, False)]))
    assert record.first_s == pytest.approx(0.02 + step)


def test_a_pool_that_holds_not_every_request_is_of_another_run() -> None:
    with pytest.raises(PoolTooSmallError):
        fit_replay(simulated(2.0, 1)[0], replace(POOL, budget_bytes=10 * 32))


def test_bad_records_are_counted(tmp_path: Path) -> None:
    good = {"input_toks": 5, "output_toks": 2, "queued_ts": 1, "first_token_ts": 2,
            "last_token_ts": 3}  # fmt: skip
    rows = [good, good | {"first_token_ts": 0}, good | {"output_toks": 0},
            good | {"last_token_ts": 2}, good | {"last_token_ts": 10**12},
            good | {"output_toks": 10**7}]  # fmt: skip
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    records, refused = read_request_records(path)
    assert records == [RequestRecord(5, 2, 1.0, 2.0, 3.0)]
    assert [(r.reason, r.count, r.first_line) for r in refused] == [
        ("clock_backwards", 1, 2), ("output_not_positive", 1, 3), ("no_duration", 1, 4),
        ("time_too_late", 1, 5), ("output_too_large", 1, 6),
    ]  # fmt: skip


BENCH = {
    "model_id": "tiny", "request_rate": "inf", "request_throughput": 2.0,
    "input_lens": [9, 5, 7], "output_lens": [3, 0, 2], "ttfts": [0.5, 0.0, 0.25],
    "itls": [[0.1, 0.2], [], [0.5]], "start_times": [12.0, 11.0, 10.0],
    "generated_texts": ["a] }", "", "c"], "errors": ["", "lost", ""],
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_a_benchmark_s_result_is_a_record_and_a_trace(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "result.json"
    data = json.dumps(BENCH, indent=1 if packed else None).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    records, refused = read_request_records(path)
    assert [each[:5] for each in records] == [
        (7, 2, 10.0, 10.25, 10.75), (9, 3, 12.0, 12.5, pytest.approx(12.8)),
    ]  # fmt: skip
    assert [tuple(each.gaps_s) for each in records] == [(0.5,), (0.1, 0.2)]
    assert [(each.reason, each.count) for each in refused] == [("output_not_positive", 1)]
    good = {key: value[::2] for key, value in BENCH.items() if isinstance(value, list)}
    path.write_text(json.dumps(BENCH | good), encoding="utf-8")
    trace = TraceFile(path)
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in trace] == [
        (0.0, 7, 2), (2.0, 9, 3),
    ]  # fmt: skip
    assert (trace.info.format, trace.info.unit) == ("vllm-bench", "s")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"start_times": None}, "no_details"),
        ({"itls": [[]]}, "no_details"),
        ({"start_times": [{}, {}, {}]}, "nothing_accepted"),
        ({"itls": [[-1], ["x"], 3]}, "nothing_accepted"),
        ({"itls": [[1e300], [10**400], [[]]]}, "nothing_accepted"),
    ],
)
def test_a_result_without_the_times_of_requests_is_refused(
    tmp_path: Path, change: dict[str, Any], code: str
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(BENCH | change), encoding="utf-8")
    with pytest.raises(TraceError) as error:
        read_request_records(path)
    assert error.value.code == code


@pytest.mark.parametrize("end", [b"", b"]", b"}}", b', "a" 1}', b", 1: 2}", b", [", b"} []"])
def test_a_damaged_result_is_refused(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(json.dumps(BENCH).encode()[:-1] + end)
    with pytest.raises(TraceError) as error:
        read_request_records(path)
    assert error.value.code in ("not_json", "content_after_list")


def test_a_real_run_of_vllm_on_a_gpu_is_replayed_as_it_was() -> None:
    if not GPU_RUN.exists():
        pytest.skip("the recorded vLLM run is not beside this checkout (../shared/traces)")
    records, refused = read_request_records(GPU_RUN / "requests.jsonl")
    assert (len(records), refused) == (300, ())
    server = SimConfig("paged", 320_000, 1, 131_072, max_num_seqs=128, max_num_batched_tokens=2048)
    found = fit_replay(records, server)
    assert largest(found.replay) < 0.5
    assert found.latency.held_out.mean_percent < 2
    assert found.latency.constant.mean_percent > 20
    # 16 GB of weights at 1.8 TB/s take 9 ms.
    assert 0.009 < found.costs.fixed_s < 0.014


def recorded(rate: str) -> list[RequestRecord]:
    """Requests at a rate, without prefix caching; see :func:`served_by_vllm`.

    vLLM preempted 66 times at 6 requests a second, 56 times at 8, twice at 2.
    """
    return served_by_vllm(f"rate-{rate}")


@cache
def fitted_at(rate: str) -> ReplayFit:
    """What is fitted to the run at a rate."""
    return fit_replay(recorded(rate), POOL)


def served_by_vllm(name: str) -> list[RequestRecord]:
    """Requests of ``vllm bench serve`` as vLLM 0.32 served them on a CPU.

    45 million random parameters, a Llama at given rates and a GPT-2 otherwise; 81 blocks of 32,
    the null block among them. Times are rounded to 0.1 ms.
    """
    records, refused = read_request_records(SERVED / f"{name}.json.gz")
    assert not refused
    return records


@pytest.mark.parametrize(("rate", "preemptions"), [("1.2", 0), ("2", 2), ("6", 66), ("8", 56)])
def test_a_real_run_of_vllm_is_replayed_within_2_percent(rate: str, preemptions: int) -> None:
    found = fitted_at(rate)
    assert largest(found.replay) < 2
    assert found.preemptions == pytest.approx(preemptions, rel=0.2, abs=1)


def test_a_real_run_with_a_shared_prefix_is_replayed_within_2_percent() -> None:
    """Prompts of 192 equal tokens and 100 others; on the same server, prompts of 300 others."""
    records = served_by_vllm("shared-prefix-192")
    cached = [each._replace(cached_tokens=192) for each in records]
    found = fit_replay(cached, replace(POOL, policy="paged+prefix"))
    assert largest(found.replay) < 2
    assert largest(fit_replay(records, POOL).replay) > 10  # if all tokens were computed
    alone = fit_replay(served_by_vllm("no-prefix"), replace(POOL, policy="paged+prefix"))
    assert largest(alone.replay) < 2
    assert found.costs.per_prefill_token_s == pytest.approx(
        alone.costs.per_prefill_token_s, rel=0.15
    )


@pytest.mark.parametrize(
    ("fitted", "asked", "far"),
    [
        ("1.2", "2", False), ("2", "1.2", False), ("2", "6", False), ("2", "8", False),
        ("6", "8", False), ("8", "6", False), ("1.2", "6", True), ("6", "2", True),
        ("8", "1.2", True),
    ],
)  # fmt: skip
def test_a_real_run_at_another_rate_is_predicted_within_5_percent_or_named_as_far(
    fitted: str, asked: str, far: bool
) -> None:
    costs, records = fitted_at(fitted).costs, recorded(asked)
    ordered = sorted(records, key=lambda record: record.queued_s)
    began = ordered[0].queued_s
    asked_for = [(round(1e9 * (each.queued_s - began)), *each[:2]) for each in ordered]
    found = simulate(Listed(asked_for), replace(POOL, latency=costs))
    assert found.running.busy_mean is not None
    assert isinstance(costs, BatchLatency)
    assert costs.is_extrapolated(found.running.busy_mean) is far
    assert far or largest(replay_error(records, POOL, costs)) < 5


@pytest.mark.parametrize("prompt_s", [3e-4, 3e-3])
def test_no_batch_is_faster_than_the_bounds(prompt_s: float) -> None:
    least = LinearLatency(0.01, prompt_s, 0.0, 5e-7)
    bounds = np.array([0.01, prompt_s, 0.0, 5e-7, 0.0, 0.0])
    found = fit_tokens(recorded("2"), bounds)
    assert found.fixed_s >= least.fixed_s  # a replay's fit moves it down to its bound
    for batch in range(40):
        step = StepWork(1, batch, 100 * batch, 0)
        assert found.seconds(step) >= least.seconds(step)
