"""``plan --from-log``: the figures of vLLM's start-up logs, and what to change after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sim_runs import Planned
from start_logs import OLD, STARTED, TOO_LONG

from experiment.commands.main import main
from experiment.report.facts.plan import log_lines
from experiment.simulate.setup import Memory
from experiment.simulate.start_log import plan_from_log
from experiment.text import Translator
from experiment.text.errors import ExitCode
from kvsim.sizing.start_log import read_start_log

GIB = 1 << 30
Plans = Callable[..., Planned]
LENGTHS = ("--prompt-tokens", "9", "--new-tokens", "9")
NO_MEMORY = """vLLM API server version 0.11.0 model='Qwen/Qwen3-8B'
ValueError: No available memory for the cache blocks.
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "start.log"


def test_a_started_server_is_planned_with_its_own_cache(log: Path) -> None:
    """Two GPUs with 11.25 GiB each: what vLLM printed."""
    log.write_text(STARTED, encoding="utf-8")
    found = plan_from_log(str(log))
    capacity = found["plan"]["capacity"]["middle"]
    assert found["plan"]["gpus"] == 2
    assert capacity["kv"] == 2 * 11.25 * GIB
    assert (capacity["tokens"], round(capacity["concurrency"], 2)) == (163_840, 4.0)
    assert found["log"]["weights"] == round(7.64 * GIB)
    assert found["plan"]["capacity"]["version"] == "0.11"


def test_a_length_that_does_not_fit_is_shortened_as_vllm_says(log: Path, planned: Plans) -> None:
    log.write_text(TOO_LONG, encoding="utf-8")
    found = plan_from_log(str(log))
    remedies = {each["name"]: each for each in found["log"]["remedies"]}
    assert next(iter(remedies)) == "max_length"
    assert found["log"]["longest"] - 16 <= remedies["max_length"]["value"] <= 37_680
    assert remedies["fp8"]["tokens"] == pytest.approx(2 * 37_680, abs=32)
    # 5 % more of 22.06 GiB, at 128 KiB a token.
    more = (4.60 + 0.05 * 22.06) * GIB / 131_072
    assert remedies["utilisation"]["tokens"] == pytest.approx(more, abs=32)
    for lang in ("en", "zh"):
        found = planned("--from-log", str(log), lang=lang)
        assert "--max-model-len 37664" in found.text
        assert len(found.lines) <= 15


def test_where_no_change_is_enough_the_cheapest_two_are_that_are(log: Path) -> None:
    """-1.50 GiB are left beside 14.96 GiB of weights; a request of 131,072 tokens needs 16 GiB."""
    log.write_text(
        TOO_LONG.partition("INFO Available")[0] + "INFO Available KV cache memory: -1.50 GiB\n"
        "ValueError: No available memory for the cache blocks.\n", "utf-8",
    )  # fmt: skip
    *singles, pair = plan_from_log(str(log))["log"]["remedies"]
    assert not any(each["enough"] or each["others"] for each in singles)
    assert (pair["name"], *(each["name"] for each in pair["others"])) == ("fp8", "gpus")
    assert pair["enough"] == 131_072
    # 8.48 GiB of weights in 8 bits, at 128 KiB a token; half of 16 bits on each GPU, at 64 KiB.
    found = {each["name"]: each["tokens"] for each in singles}
    assert found["weights"] == pytest.approx((14.96 - 8.48 - 1.5) * GIB / 131_072, rel=0.002)
    assert pair["tokens"] == pytest.approx(2 * (14.96 / 2 - 1.5) * GIB / 65_536, rel=0.002)
    for lang in ("en", "zh"):
        lines = log_lines(plan_from_log(str(log))["log"])
        (last,) = [Translator(lang).message(line) for line in lines[-1:]]
        assert "--kv-cache-dtype fp8" in last
        assert "--tensor-parallel-size 2" in last


def test_the_lines_of_older_versions_are_read() -> None:
    found = read_start_log(OLD)
    sizes = (found.total, found.weights, found.non_torch, found.activations, found.kv)
    assert [round(size / GIB, 2) for size in sizes if size] == [79.14, 14.99, 0.12, 1.19, 54.93]
    assert (found.utilisation, found.concurrency) == (0.9, 3.43)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("ValueError: No available memory for the cache blocks.", "no_memory"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "oom_profile"),
        ("Capturing CUDA graphs: 10%\ntorch.OutOfMemoryError: CUDA out of memory.", "oom_capture"),
        ("Free memory on device (3.1/23.5 GiB) on startup is less than desired GPU memory "
         "utilization (0.9, 21.2 GiB).", "little_free"),
    ],
)  # fmt: skip
def test_a_failed_start_is_told_with_what_to_change(
    text: str, failure: str, log: Path, planned: Plans
) -> None:
    log.write_text(f"vLLM API server version 0.11.0 model='Qwen/Qwen3-8B'\n{text}\n", "utf-8")
    assert read_start_log(text).failure == failure
    assert len(planned("--from-log", str(log)).lines) >= 2


@pytest.mark.parametrize("text", [TOO_LONG, NO_MEMORY])
def test_the_page_of_a_failed_start_is_what_to_change(text: str, log: Path) -> None:
    log.write_text(text, encoding="utf-8")
    page = log.with_suffix(".html")
    for _ in range(2):  # the second replaces the first
        assert main(["plan", "--from-log", str(log), "--out", str(page)]) == ExitCode.OK
    body = page.read_text(encoding="utf-8")
    assert "--tensor-parallel-size" in body
    assert 'id="what-if"' not in body


def test_what_is_no_log_of_vllm_is_named(log: Path, refused: Callable[..., str]) -> None:
    for text, part in (("Nothing.", "no start-up log"), ("sglang: max_total_num_tokens", "sglang")):
        log.write_text(text, encoding="utf-8")
        assert part in refused("plan", "--from-log", log)


def test_a_model_of_another_machine_is_known_by_its_name_alone(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    """A directory that a log names may be anyone's: it is not opened."""
    strangers = tmp_path / "models" / "mine"
    strangers.mkdir(parents=True)
    (strangers / "config.json").write_text("{", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    log.write_text(STARTED.replace("Qwen/Qwen3-8B", "/models/Qwen3-8B/"), encoding="utf-8")
    assert plan_from_log(str(log))["plan"]["model"] == "qwen3-8b"
    for name in (str(strangers), "models/mine", "./models/mine", "mine", "C:\\models\\mine"):
        log.write_text(STARTED.replace("Qwen/Qwen3-8B", name), encoding="utf-8")
        assert f"model {name}" in refused("plan", "--from-log", log)


ARGUMENTS = """
INFO [api_server.py:1896] vLLM API server version 0.10.2
INFO [utils.py:328] non-default args: {'model_tag': 'Qwen/Qwen2.5-7B-Instruct', 'max_model_len': 16384}
INFO [gpu_model_runner.py:2653] Model loading took 14.2488 GiB and 5.1 seconds
INFO [gpu_worker.py:298] Available KV cache memory: 4.62 GiB
INFO [kv_cache_utils.py:1028] GPU KV cache size: 86,480 tokens
"""  # noqa: E501


def test_a_model_in_the_arguments_and_the_tokens_of_the_log(log: Path) -> None:
    """4.62 GiB are rounded: 86,496 tokens would fit in them."""
    log.write_text(ARGUMENTS, encoding="utf-8")
    found = plan_from_log(str(log), gpu="rtx-4090")
    assert (found["plan"]["model"], found["plan"]["max_length"]) == ("qwen2.5-7b", 16_384)
    assert found["plan"]["capacity"]["middle"]["tokens"] == 86_480
    total = 0.9 * 23.5 * GIB  # of an RTX 4090, as CUDA reports it
    rest = total - (14.2488 + 4.62) * GIB
    assert found["log"]["rest"] == pytest.approx(rest, abs=0.2 * GIB)


def test_a_question_of_ones_own_is_answered_after_a_failure(log: Path, planned: Plans) -> None:
    log.write_text(TOO_LONG, encoding="utf-8")
    assert "plan" not in plan_from_log(str(log))
    answer = planned("--from-log", str(log), "--context", "32768")
    found = answer.data
    assert found["plan"]["capacity"]["middle"]["requests"] == 1
    enough = {each["name"]: each["enough"] for each in found["log"]["remedies"]}
    assert enough["gpus"] == 131_072
    assert enough["fp8"] is None
    assert "32,768" in answer.text


def test_what_the_log_and_the_user_say_of_the_server(
    log: Path, refused: Callable[..., str]
) -> None:
    log.write_text(STARTED + "non-default args: {'max_num_seqs': 2}\n", encoding="utf-8")
    found = plan_from_log(str(log), context=2048)["plan"]["capacity"]
    assert (found["max_num_seqs"], found["limit"]) == (2, "sequences")
    stages = replace(Memory().server, pipeline_parallel=2)
    staged = plan_from_log(str(log), memory=Memory(gpus=2, server=stages))
    assert staged["plan"]["gpus"] == 4  # the log's two ranks in each stage
    for words in (("--slo", "tpot=1s"), ("--price", "2"), ("--rate", "2", *LENGTHS)):
        assert "--gpu" in refused("plan", "--from-log", log, *words)
