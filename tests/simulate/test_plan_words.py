"""``plan`` and ``calibrate``: the answer is kvsim's own, and what is pasted is complete."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from event_makers import PAGED, arm_events, head, paged_arm, whole_run
from sim_runs import MODEL, Planned, simulated

from experiment.commands.main import main
from experiment.events import CellStarted, TurnStarted, WorkloadReady
from experiment.record.log import EventLog
from experiment.simulate.calibrate import step_records
from experiment.simulate.latency_file import read_latency
from experiment.text.errors import ExitCode, UserError
from kvsim.accounting.ledger import PoolShape
from kvsim.core.blocks import BlockPool
from kvsim.core.request import final_tokens
from kvsim.core.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.latency.request_times import read_request_records
from kvsim.latency.roofline import BatchLatency, LinearLatency, StepWork
from kvsim.planning.plan import PlanQuestion, kv_budget, make_plan
from kvsim.planning.speed import Traffic, running_at, speed
from kvsim.sizing.gpus import find_gpu
from kvsim.sizing.models import find_model
from kvsim.sizing.vllm_capacity import vllm_capacity

SERVED = Path(__file__).resolve().parents[1] / "corpus" / "served"
WORDS = ("--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--prompt-tokens", "500",
         "--new-tokens", "300")  # fmt: skip
Plans = Callable[..., Planned]


def test_the_answer_is_kvsim_s(planned: Plans) -> None:
    answer = planned(*WORDS, "--rate", "2", "--details")
    plan, text = answer.data["plan"], answer.text
    model, gpu = find_model("llama-3.1-8b"), find_gpu("rtx-4090")
    budget = kv_budget(model, gpu)
    found = make_plan(PlanQuestion(model, gpu, [(500, 300)], budget=budget))
    assert plan["policies"]["paged"]["running"] == found.policies["paged"].running
    blocks = budget.kv // (16 * 131_072)
    assert plan["blocks"] == blocks
    assert plan["policies"]["paged"]["guaranteed"] == blocks // -(-final_tokens(500, 300) // 16)
    printed = vllm_capacity(blocks, 16, 800)
    for part in (
        f"GPU KV cache size: {printed.tokens:,} tokens", f"{printed.max_concurrency:.2f}x",
        "vllm serve meta-llama/Llama-3.1-8B --max-model-len 800 --block-size 16",
        f"--kv-cache-memory-bytes {budget.kv}", "At 2 requests per second",
    ):  # fmt: skip
        assert part in text
    low, high = answer.data["load"]["running"], planned(*WORDS, "--rate", "99", "--details")
    assert low < plan["policies"]["paged"]["running"]
    assert high.data["load"]["running"] is None
    assert "99 requests per second" in high.text


def test_dtype_and_budget_reach_the_arguments(planned: Plans) -> None:
    words = (*WORDS, "--dtype", "float16", "--kv-dtype", "fp8", "--kv-budget", "2GiB")
    data = planned(*words).data
    assert data["setup"]["bytes_per_token"] == 65_536
    args = " ".join(data["plan"]["vllm_args"])
    for part in ("--kv-cache-dtype fp8", "--kv-cache-memory-bytes 2147483648", "--dtype float16"):
        assert part in args


@pytest.mark.parametrize(
    ("model", "words", "dtype", "element"),
    [
        ("gpt2", (), "float16", 2),  # published in float32
        ("gpt2", ("--dtype", "float32"), "float32", 4),
        ("llama-3.1-8b", (), "bfloat16", 2),
        ("llama-3.1-8b", ("--dtype", "float16"), "float16", 2),
        ("deepseek-v3", ("--gpu", "h200", "--gpus", "8"), "float8", 1),
    ],
)
def test_weights_are_named_in_the_dtype_that_was_counted(
    model: str, words: tuple[str, ...], dtype: str, element: int, planned: Plans
) -> None:
    answer = planned(*WORDS, "--model", model, *words, "--details")
    setup = answer.data["setup"]
    assert setup["model"]["dtype"] == dtype
    assert setup["budget"]["weights"] == find_model(model).parameters * element
    assert f"weights in {dtype}" in answer.text


def test_little_s_law_is_solved_for_the_requests_that_run() -> None:
    latency = LinearLatency(fixed_s=0.01, per_decode_token_s=1e-4)
    traffic = Traffic.of([(100, 50)])
    running = running_at(lambda n: speed(latency, traffic, n), 5.0, 200.0)
    found = speed(latency, traffic, running)
    assert found
    assert found.rate == pytest.approx(5.0, rel=0.05)
    # 50 steps of 10 to 20 ms each: some four at a time.
    assert running == pytest.approx(5 * 50 * (0.01 + running * 1e-4), rel=0.05)


def test_a_trace_gives_lengths_and_rate(planned: Plans) -> None:
    words = (*MODEL, "--trace", "sharegpt-like", "--rate", "1")
    data = planned(*words).data
    assert data["load"]["rate"] == pytest.approx(1, rel=0.1)
    # The paper's Fig. 13: 7 requests at a time by reserving the maximum, some 30 paged.
    assert data["plan"]["policies"]["max"]["running"] == pytest.approx(7, rel=0.05)
    assert data["plan"]["policies"]["paged"]["running"] > 27


def requests_file(path: Path) -> Path:
    """One request after another under 10 ms a step: the truth is known."""
    draw, now, rows = random.Random(0), 0.0, []
    for _ in range(60):
        prompt, output = draw.randint(50, 900), draw.randint(5, 60)
        first = now + 0.01 + 1e-4 * prompt
        last = first + 0.01 * (output - 1)
        times = {"queued_ts": now, "scheduled_ts": now, "first_token_ts": first}
        rows.append({"input_toks": prompt, "output_toks": output, **times, "last_token_ts": last})
        now = last + 0.5
    rows.append({"input_toks": 0})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_calibrate_finds_the_times_that_made_the_record(
    lang: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "latency.json"
    record = requests_file(tmp_path / "requests.jsonl")
    found = calibrated(out, record, lang=lang)
    printed = " ".join(capsys.readouterr().out.split())
    assert ("line 61" if lang == "en" else "第 61 行") in printed
    assert found["sha256"] == hashlib.sha256(record.read_bytes()).hexdigest()
    assert found["sha256"] in printed.replace(" ", "")
    assert found["errors"]["latency"]["held_out"]["mean_percent"] < 0.5
    assert found["latency"]["per_prefill_token_s"] == pytest.approx(1e-4, rel=0.05)
    assert all(abs(found["replay"][name]) < 0.5 for name in ("span", "first_token", "latency"))
    latency = read_latency(out)
    assert isinstance(latency, LinearLatency)
    step = latency.fixed_s + latency.per_decode_token_s + 500 * latency.per_kv_token_s
    assert step == pytest.approx(0.01, rel=0.05)


def calibrated(out: Path, *words: object, lang: str = "en") -> dict[str, Any]:
    """Run ``calibrate``; return what it wrote."""
    given = (*words, "--out", out, "--lang", lang)
    assert main(["calibrate", *map(str, given)]) == ExitCode.OK
    return dict(json.loads(out.read_bytes()))


def simulated_as_served(out: Path, rate: str, latency: Path) -> dict[str, Any]:
    """Simulate a benchmark on its server's pool of 80 blocks; 36,864 bytes a token of GPT-2."""
    words = (
        "--trace", str(SERVED / f"rate-{rate}.json.gz"), "--latency", str(latency), "--model",
        "gpt2", "--gpu", "a100-80gb", "--kv-budget", str(80 * 32 * 36_864), "--block-size", "32",
        "--policy", "paged", "--max-num-seqs", "32", "--max-num-batched-tokens", "512", "--quiet",
    )  # fmt: skip
    return simulated(out, *words)


SERVER_LOG = """\
INFO non-default args: {'block_size': 32, 'max_num_batched_tokens': 512, 'max_num_seqs': 32}
INFO [kv_cache_utils.py:2327] CPU KV cache size: 2,592 tokens
"""


def test_a_benchmark_is_calibrated_with_the_server_s_log_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = SERVED / "rate-6.json.gz"
    log, latency = tmp_path / "vllm.log", tmp_path / "latency.json"
    log.write_text(SERVER_LOG, encoding="utf-8")
    found = calibrated(latency, served, "--from-log", log)
    assert "80 blocks of 32 tokens" in " ".join(capsys.readouterr().out.split())
    (cell,) = simulated_as_served(tmp_path / "out", "6", latency)["cells"]
    records, _ = read_request_records(served)
    recorded = sum(each.first_s - each.queued_s for each in records) / len(records)
    error = 100 * (cell["result"]["first_token_s"]["mean"] / recorded - 1)
    assert error == pytest.approx(found["replay"]["first_token"], abs=0.1)
    assert cell["result"]["preemptions"]["total"] == found["replay"]["preemptions"] > 10


def test_a_common_prefix_is_given_where_the_log_has_hits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    log, out = tmp_path / "vllm.log", tmp_path / "latency.json"
    hits = "Prefix cache hit rate: {}%, ".format
    log.write_text(SERVER_LOG + f"enable_prefix_caching=True\n{hits(1.0)}\n{hits(35.0)}\n", "utf-8")
    words = (SERVED / "shared-prefix-192.json.gz", "--from-log", log, "--shared-prefix")
    found = {}
    for prefix in ("0", "192"):
        found[prefix] = calibrated(out, *words, prefix)
        said = " ".join("".join(capsys.readouterr()).split())
        assert ("--shared-prefix" in said) == ("35.0 %" in said) == (prefix == "0")
    assert all(abs(found["192"]["replay"][name]) < 2 for name in ("span", "first_token", "latency"))
    assert found["0"]["replay"]["latency"] < -10
    assert "250" in refused("calibrate", *words, "250")  # above the shortest prompt


def test_rates_far_from_the_calibrated_ones_are_named(tmp_path: Path) -> None:
    log, latency = tmp_path / "vllm.log", tmp_path / "latency.json"
    log.write_text(SERVER_LOG, encoding="utf-8")
    calibrated(latency, SERVED / "rate-1.2.json.gz", "--from-log", log)
    for rate, named in (("2", 0), ("6", 1)):
        notes = simulated_as_served(tmp_path / rate, rate, latency)["notes"]
        assert [note["key"] for note in notes] == named * ["sim.note.latency_range"]


@pytest.mark.parametrize("batches", [[[2, 0.1], [1, 0.1]], [[1, -1]], [[0, 0.1]], [1], [["a", 1]]])
def test_batches_that_are_none_are_refused(tmp_path: Path, batches: Any) -> None:
    path = tmp_path / "latency.json"
    good = {"kind": "BatchLatency", "fixed_s": 0.01, "batches": [[1, 0.1], [2.0, 0]]}
    path.write_text(json.dumps({"latency": good}), encoding="utf-8")
    assert read_latency(path) == BatchLatency(0.01, batches=((1, 0.1), (2.0, 0)))
    path.write_text(json.dumps({"latency": good | {"batches": batches}}), encoding="utf-8")
    with pytest.raises(UserError):
        read_latency(path)


def test_costs_are_bounded_by_model_and_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = requests_file(tmp_path / "requests.jsonl")
    out = tmp_path / "latency.json"
    calibrated(out, record, "--model", "llama-3.1-70b", "--gpu", "a100-80gb", "--gpus", "2")
    assert "physical minimum" in capsys.readouterr().out
    # 141 GB of weights at 4,078 GB/s.
    latency = read_latency(out)
    assert isinstance(latency, LinearLatency)
    assert latency.fixed_s >= 0.0346


ROOFLINE = {
    "kind": "Roofline", "weight_bytes": 1e9, "kv_token_bytes": 36000, "token_flops": 1e9,
    "pair_flops": 1e5, "bandwidth": 1e12, "flops": 1e14,
}  # fmt: skip
SHARES = {"weights": 0.7, "cache": 0.9, "products": 0.8, "attention": 0.7}
LINEAR = {"kind": "LinearLatency"}


@pytest.mark.parametrize(
    "latency",
    [
        ROOFLINE | {"bandwidth": 1e-200, "efficiencies": SHARES | {"weights": 1e-200}},
        ROOFLINE | {"bandwidth": 1e-300},
        ROOFLINE | {"flops": 5e-324},
        ROOFLINE | {"efficiencies": SHARES | {"products": 1.5}},
        ROOFLINE | {"efficiencies": {"weights": 0.5}, "flops": 0},
        ROOFLINE | {"efficiencies": 0.5},
        ROOFLINE | {"expert_share": 1e20, "expert_bytes": 1},
        ROOFLINE | {"expert_share": -0.5, "expert_bytes": 1},
        ROOFLINE | {"efficiencies": None},
        ROOFLINE | {"weight_bytes": 10**400},
        LINEAR | {"per_pair_s": 5e-324},
        LINEAR | {"fixed_s": 1e29},
        LINEAR | {"fixed_s": True},
        LINEAR,
    ],
)
def test_a_latency_that_no_machine_has_is_refused(
    latency: dict[str, Any], tmp_path: Path, refused: Callable[..., str]
) -> None:
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"latency": latency}), encoding="utf-8")
    for words in (("plan", *WORDS), ("simulate", *WORDS[:4], "--trace", "sharegpt-like")):
        assert "is not a latency model" in refused(*words, "--latency", path)


def test_what_the_prefix_cache_of_a_run_had_is_no_cost_of_its_steps(tmp_path: Path) -> None:
    scheduler = Scheduler(BlockPool(8, 2), SchedulerConfig(prefix_caching=True))
    plans = []
    for request, prompt in enumerate((3, 5)):  # the first two tokens are the same
        keys = ["same", *((request, place) for place in range(1, 8))]
        scheduler.add(Request(request, prompt, 3, lambda n, keys=keys: keys[:n]))
        plans.append(scheduler.schedule())
        scheduler.complete(plans[-1])
    with EventLog(tmp_path) as log:
        for event in (*head(), *arm_events(PAGED, PoolShape(8, 2, 4), plans, {})):
            log.write(event)
    _, records = step_records(tmp_path, None)
    # Slots read are those found, too.
    assert [record.work for record in records] == [
        StepWork(3, 0, 3, 6), StepWork(3, 1, 5 + 4, 3 + 4 + 5 + 4),
    ]  # fmt: skip


def test_the_steps_of_a_cell_are_those_of_its_own_prompts(tmp_path: Path) -> None:
    """An experiment's cells have requests of their own, with the numbers of the first cell's."""
    begun = head()
    (ready,) = (event for event in begun if isinstance(event, WorkloadReady))
    longer = [r.model_copy(update={"token_ids": [1] * 99}) for r in ready.requests]
    cells = [
        CellStarted(index=n, of=2, values={"n": n}, overrides={}, arms=[PAGED]) for n in (0, 1)
    ]
    turn = TurnStarted(cell=1, arm=PAGED, repeat=0, group=0)
    run = [event for event in begun if event is not ready]
    run += [cells[1], ready, cells[0], ready.model_copy(update={"requests": longer})]
    with EventLog(tmp_path) as log:
        for event in (*run, turn, *paged_arm()):
            log.write(event)
    _, records = step_records(tmp_path, None)
    assert [r.work.decode_tokens for r in records] == [0, 2, 2]


def test_steps_of_our_own_log_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    with EventLog(tmp_path) as log:
        for event in whole_run():
            log.write(event)
    arm, records = step_records(tmp_path, None)
    assert arm == "paged"
    # Prompts of 2 and 4 tokens in the first step, then two decodes each.
    assert records[0].work == StepWork(6, 0, 6, 3 + 10)
    assert [(r.work.prefill_tokens, r.work.decode_tokens) for r in records[1:]] == [(0, 2)] * 2
    assert {record.seconds for record in records} == {1.0}
    calibrated(tmp_path / "latency.json", tmp_path, "--folds", "2")
    printed = capsys.readouterr().out
    assert "arm paged: 3 steps" in " ".join(printed.split())
    assert str(tmp_path / "latency.json") in printed
    below_a_file = str(tmp_path / "latency.json" / "other.json")
    assert main(["calibrate", str(tmp_path), "--folds", "2", "--out", below_a_file]) == (
        ExitCode.UNWRITABLE
    )
    assert below_a_file in capsys.readouterr().err
    for words, named in (
        (("--arm", "vllm"), "contiguous.batch, paged"),
        (("--max-num-seqs", "4"), "--max-num-seqs"),
        (("--folds", "2", "--gpus", "2"), "--model (--list models), --gpu (--list gpus)"),
    ):
        assert named in refused("calibrate", tmp_path, *words)
