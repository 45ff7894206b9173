"""``plan --from-log``: the figures of vLLM's start-up logs, and what to change after a failure."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim_runs import Planned
from start_logs import (
    CUT,
    LITTLE_FREE,
    OLD,
    OLD_TOO_LONG,
    OOM_AT,
    SERVING,
    SMALL_SHARE,
    STARTED,
    TOO_LONG,
)

from experiment.commands.main import main
from experiment.report.facts.plan import log_lines
from experiment.simulate.from_log import plan_from_log
from experiment.simulate.setup import Memory
from experiment.text import Translator
from experiment.text.errors import ExitCode
from kvsim.sizing.overhead import ServerOptions
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
    assert remedies["max_length"]["value"] == 37_680
    assert remedies["fp8"]["tokens"] == pytest.approx(2 * 37_680, abs=32)
    # 5 % more of 22.06 GiB, at 128 KiB a token.
    more = (4.60 + 0.05 * 22.06) * GIB / 131_072
    assert remedies["utilisation"]["tokens"] == pytest.approx(more, abs=32)
    for lang in ("en", "zh"):
        found = planned("--from-log", str(log), lang=lang)
        assert "--max-model-len 37680" in found.text
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
        ("torch.OutOfMemoryError: CUDA out of memory.", "oom"),
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
    for text, part in (("Nothing.", "no start-up log"), ("sglang: max_total_num_tokens", "SGLang")):
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
    stages, three = (replace(Memory().server, pipeline_parallel=n) for n in (2, 3))
    staged = plan_from_log(str(log), memory=Memory(gpus=2, server=stages))
    assert staged["plan"]["gpus"] == 4  # the log's two ranks in each stage
    # The log's own stages count, with the weights of one stage on each GPU.
    both = STARTED.replace("parallel_size=2", "parallel_size=2, pipeline_parallel_size=2")
    both = both.replace("7.64", "4.10").replace("163,840", "327,680")
    log.write_text(both, encoding="utf-8")
    cases = ((Memory(), set()), (Memory(gpus=9, server=three), {"stages", "gpus"}),
             (Memory(gpus=4), set()))  # fmt: skip
    for memory, differs in cases:
        found = plan_from_log(str(log), memory=memory)
        assert (found["plan"]["gpus"], found["log"]["ranks"]) == (4, 4)
        assert {each["name"] for each in found["log"]["differences"]} == differs
    many = STARTED.replace("parallel_size=2", "parallel_size=2, pipeline_parallel_size=999999999")
    log.write_text(many, encoding="utf-8")
    assert plan_from_log(str(log))["plan"]["gpus"] == 2
    log.write_text(both, encoding="utf-8")
    for words in (("--slo", "tpot=1s"), ("--price", "2"), ("--rate", "2", *LENGTHS)):
        assert "--gpu" in refused("plan", "--from-log", log, *words)


def plan_of(log: Path, text: str, **asked: Any) -> dict[str, Any]:
    log.write_text(text, encoding="utf-8")
    return plan_from_log(str(log), **asked)


def remedies(log: Path, text: str, **asked: Any) -> dict[str, Any]:
    """Value and tokens of each change that comes alone, in order."""
    found = plan_of(log, text, **asked)["log"]["remedies"]
    return {each["name"]: (each["value"], each["tokens"]) for each in found if not each["others"]}


@pytest.mark.parametrize("stage", OOM_AT)
def test_what_helps_depends_on_the_stage_that_ran_out_of_memory(stage: str, log: Path) -> None:
    """What is freed before the cache is allocated, vLLM gives to the cache."""
    found = remedies(log, OOM_AT[stage])
    assert plan_from_log(str(log))["log"]["failure"] == stage
    before = stage in ("oom_load", "oom_profile")
    assert ("gpus" in found, "weights" in found) == (before, before)
    assert found.get("utilisation", (None,))[0] == (None if before else 0.85)
    steps = [each["name"] == "max_num_seqs" for each in plan_from_log(str(log))["log"]["remedies"]]
    assert any(steps) == (stage != "oom_load")
    assert ("eager" in found) == (stage == "oom_capture")


def test_more_gpus_are_as_many_as_the_weights_need(log: Path) -> None:
    """131 GiB of weights on GPUs of 23.5 GiB: neither 8 bits nor two of them."""
    found = remedies(log, OOM_AT["oom_load"], model="llama-3.1-70b", gpu="rtx-4090")
    assert found == {"gpus": (8, None)}


def test_smaller_steps_are_smaller_than_the_log_s(log: Path) -> None:
    small = "INFO non-default args: {'max_num_batched_tokens': 2048, 'max_num_seqs': 256}\n"
    assert "max_num_seqs" in remedies(log, small + OOM_AT["oom_profile"])
    (steps, *_) = plan_from_log(str(log))["log"]["remedies"]
    assert (steps["name"], steps["others"]) == ("max_num_seqs", [])
    small = small.replace("256", "64")
    assert [*remedies(log, small + OOM_AT["oom_profile"])] == ["weights", "gpus"]


def test_a_larger_share_is_the_first_remedy_for_no_cache(log: Path) -> None:
    """0.35 more of 23.52 GiB, less what is missing, at 128 KiB a token."""
    tokens = (0.35 * 23.52 - 2.03) * GIB / 131_072
    name, (value, found) = next(iter(remedies(log, SMALL_SHARE, gpu="rtx-4090").items()))
    assert (name, value) == ("utilisation", 0.95)
    assert found == pytest.approx(tokens, abs=32)
    assert next(iter(remedies(log, SMALL_SHARE).items())) == ("utilisation", (0.95, None))


def test_the_share_that_is_free_is_named(log: Path) -> None:
    text = LITTLE_FREE.replace("3.1/23.5", "15.40/23.52")
    assert remedies(log, text)["utilisation"][0] == 0.65


@pytest.mark.parametrize("gpu", [None, "rtx-4090"])
def test_the_log_s_blocks_and_longest_length_come_first(gpu: str | None, log: Path) -> None:
    """5.06 GiB are 41,451 tokens; both logs say 41,408."""
    newer = TOO_LONG.replace("4.60", "5.06").replace("37680", "41408")
    for text in (OLD_TOO_LONG, newer):
        found = remedies(log, text, gpu=gpu)
        assert found["max_length"] == (41_408, 41_408)
        assert found["fp8"][1] == pytest.approx(2 * 41_408, abs=16)


def test_of_several_starts_the_last_counts(log: Path) -> None:
    failed = OOM_AT["oom_capture"].replace("14.9889", "15.5")
    found = plan_of(log, failed + SERVING)
    assert (found["log"]["starts"], found["log"]["failure"]) == (2, None)
    assert found["plan"]["capacity"]["middle"]["tokens"] == 41_408
    found = plan_of(log, SERVING + failed)
    assert (found["log"]["failure"], found["log"]["graphs"]) == ("oom_capture", None)
    assert found["log"]["weights"] == 15.5 * GIB
    assert [each.key for each in log_lines(found["log"])].count("plan.log.starts") == 1
    assert plan_of(log, SERVING)["log"]["starts"] == 1


def printed_by(process: str, model: str, kv: float, tokens: str) -> list[str]:
    """Lines of an engine's process in vLLM 0.11."""
    said = (
        f"Initializing a V1 LLM engine (v0.11.0) with config: model='{model}', max_seq_len=16384",
        "Model loading took 15.27 GiB and 12.3 seconds",
        f"Available KV cache memory: {kv} GiB",
        f"GPU KV cache size: {tokens} tokens",
    )
    return [f"({process}) INFO 10-14 09:12:01 [core.py:77] {line}" for line in said]


def test_data_parallel_engines_are_those_of_one_server(log: Path) -> None:
    asked = "(APIServer pid=9) vLLM API server version 0.11.0 args: {'data_parallel_size': 2}"
    both = [printed_by(f"EngineCore_DP{rank} pid=10{rank}", "Qwen/Qwen3-8B", kv, tokens)
            for rank, kv, tokens in ((0, 4.07, "29,632"), (1, 3.5, "25,472"))]  # fmt: skip
    for first in ([asked], []):  # with vLLM's Python interface there is no API server
        mixed = [*first, *(line for pair in zip(*both[::-1], strict=True) for line in pair)]
        found = plan_of(log, "\n".join(mixed))
        assert (found["log"]["starts"], found["log"]["tokens"]) == (1, 29_632)
        assert found["plan"]["engines"] == (2 if first else 1)
    assert "--data-parallel-size" in plan_of(log, "\n".join([asked, *both[0]]))["plan"]["vllm_args"]


def test_a_failure_of_any_engine_is_one_of_the_server(log: Path) -> None:
    both = [printed_by(f"EngineCore_DP{rank} pid=10{rank}", "Qwen/Qwen3-8B", 4.07, "29,632")
            for rank in (0, 1)]  # fmt: skip
    failed = "(EngineCore_DP1 pid=101) ERROR torch.OutOfMemoryError: CUDA out of memory"
    assert plan_of(log, "\n".join([*both[0], *both[1][:2], failed]))["log"]["failure"]
    # A second node, or a log for each engine.
    found = plan_of(log, "\n".join(both[1]))
    assert (found["log"]["failure"], found["log"]["tokens"]) == (None, 29_632)


def test_a_restart_in_a_container_has_the_same_processes(log: Path) -> None:
    api = "(APIServer pid=1) vLLM API server version 0.11.0"
    first = printed_by("EngineCore_DP0 pid=50", "Qwen/Qwen3-8B", 4.07, "29,632")
    again = printed_by("EngineCore_DP0 pid=50", "Qwen/Qwen3-4B", 11.2, "81,552")
    found = plan_of(log, "\n".join([api, *first, api, *again]))
    assert (found["log"]["starts"], found["log"]["tokens"]) == (2, 81_552)
    assert found["log"]["model"] == "Qwen/Qwen3-4B"


def test_engines_that_are_asked_for_and_logged_differ(log: Path) -> None:
    log.write_text("args: {'data_parallel_size': 2}\n" + SERVING, encoding="utf-8")
    server = ServerOptions(data_parallel=4)
    found = plan_from_log(str(log), memory=Memory(server=server))
    assert {"name": "engines", "log": 2, "plan": 4} in found["log"]["differences"]


def test_lines_of_another_server_in_between_are_not_the_last_one_s(log: Path) -> None:
    one = printed_by("EngineCore_DP0 pid=100", "Qwen/Qwen3-8B", 4.07, "29,632")
    other = printed_by("EngineCore_DP0 pid=200", "Qwen/Qwen3-4B", 11.2, "81,552")
    for last, model, tokens in ((other, "Qwen/Qwen3-4B", 81_552), (one, "Qwen/Qwen3-8B", 29_632)):
        first = one if last is other else other
        api = [f"(APIServer pid={pid}) vLLM API server version 0.11.0" for pid in (1, 2)]
        # The older one serves, and says something after the start of the other one.
        lines = [api[0], *first, api[1], first[0], *last]
        found = plan_of(log, "\n".join(lines))
        assert (found["log"]["model"], found["log"]["tokens"]) == (model, tokens)
        found = plan_of(
            log, "\n".join(line for pair in zip(first, last, strict=True) for line in pair)
        )
        assert found["log"]["starts"] == 2
        assert (found["log"]["model"], found["log"]["tokens"]) == (model, tokens)


@pytest.mark.parametrize(
    ("asked", "differs"),
    [
        ({}, set()),
        ({"gpu": "rtx-4090"}, set()),
        ({"model": "llama-3.1-8b"}, set()),
        ({"model": "qwen3-8b"}, {"tokens"}),
        ({"gpu": "h100"}, {"memory"}),
        ({"memory": Memory(gpus=2)}, {"gpus"}),
        ({"memory": Memory(kv_dtype="fp8")}, {"tokens"}),
    ],
)
def test_what_contradicts_the_log_is_named(
    asked: dict[str, Any], differs: set[str], log: Path
) -> None:
    found = plan_of(log, SERVING, **asked)["log"]
    assert {each["name"] for each in found["differences"]} - {"model"} == differs
    assert ("plan.log.differs" in [each.key for each in log_lines(found)]) == bool(differs)


def test_a_log_of_fp8_keys_and_values_is_planned_so(log: Path) -> None:
    text = SERVING.replace("41,408", "82,816")
    assert plan_of(log, text)["log"]["differences"]
    text = text.replace("max_seq_len=32768", "max_seq_len=32768, kv_cache_dtype=fp8")
    assert not plan_of(log, text)["log"]["differences"]


def test_a_model_that_cannot_be_the_log_s_is_refused(
    log: Path, refused: Callable[..., str]
) -> None:
    log.write_text(SERVING, encoding="utf-8")
    said = refused("plan", "--from-log", log, "--model", "qwen3-32b")
    assert "Llama-3.1-8B-Instruct" in said
    assert "14.99 GiB" in said


def test_the_command_serves_the_model_of_the_log(log: Path) -> None:
    args = plan_of(log, SERVING)["plan"]["vllm_args"]
    assert args[1] == "meta-llama/Llama-3.1-8B-Instruct"
    args = plan_of(log, SERVING, model="llama-3.1-8b")["plan"]["vllm_args"]
    assert args[1] == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize("line", ["GPU KV cache size: 41,408 tokens", "# GPU blocks: 2588, # CPU"])
def test_tokens_alone_are_enough_with_a_model(line: str, log: Path) -> None:
    capacity = plan_of(log, line, model="llama-3.1-8b")["plan"]["capacity"]["middle"]
    assert (capacity["tokens"], capacity["kv"]) == (41_408, 41_408 * 131_072)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("KV Cache is allocated. #tokens: 41408, K size: 2.53 GB", "SGLang"),
        ("INFO text_generation_launcher: Setting KV-cache blocks to 41408", "TGI"),
        ("Setting max batch total tokens. KV-cache blocks: 41408, size: 1", "TGI"),
        ("llama_model_loader: loaded meta data with 29 key-value pairs", "llama.cpp"),
        (CUT, "NCCL error"),
    ],
)
def test_another_engine_or_what_ended_the_log_is_named(
    text: str, part: str, log: Path, refused: Callable[..., str]
) -> None:
    log.write_text(text, encoding="utf-8")
    assert part in refused("plan", "--from-log", log)


def test_compressed_logs_and_those_of_powershell_are_read(
    log: Path, refused: Callable[..., str]
) -> None:
    packed = gzip.compress(SERVING.encode())
    for data in (SERVING.encode("utf-16"), packed):
        log.write_bytes(data)
        assert plan_from_log(str(log))["log"]["tokens"] == 41_408
    log.write_bytes(packed[:-20])
    assert log.name in refused("plan", "--from-log", log)


def test_lines_after_the_error_are_not_its_stage() -> None:
    """Other ranks go on until they are ended."""
    text = OOM_AT["oom_profile"] + "(Worker_TP1 pid=9) Capturing CUDA graphs (decode, FULL):   3%\n"
    assert read_start_log(text).failure == "oom_profile"
