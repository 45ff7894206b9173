"""``plan --from-log``: the figures of vLLM's start-up logs, and what to change after a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.commands.main import main
from experiment.simulate.start_log import plan_from_log
from experiment.text.errors import ExitCode
from kvsim.sizing.start_log import NotALogError, read_start_log

GIB = 1 << 30
STARTED = """
INFO [core.py:69] Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-8B', \
max_seq_len=40960, tensor_parallel_size=2
INFO [gpu_model_runner.py:2338] Model loading took 7.64 GiB and 3.2 seconds
INFO [gpu_worker.py:298] Available KV cache memory: 11.25 GiB
INFO [kv_cache_utils.py:864] GPU KV cache size: 163,840 tokens
INFO [kv_cache_utils.py:868] Maximum concurrency for 40,960 tokens per request: 4.00x
INFO [gpu_model_runner.py:3118] Graph capturing finished in 7 secs, took 0.61 GiB
"""
TOO_LONG = """
INFO LLM engine (v0.10.2) with config: model='meta-llama/Llama-3.1-8B-Instruct', \
max_seq_len=131072, tensor_parallel_size=1
INFO Free memory on device (21.8/22.06 GiB) on startup. Desired GPU memory utilization is (0.9, 19.85 GiB).
INFO Available KV cache memory: 4.60 GiB
ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV \
cache is needed, which is larger than the available KV cache memory (4.60 GiB). Based on the \
available memory, the estimated maximum model length is 37680.
"""  # noqa: E501
OLD = """
INFO worker.py:267] the current vLLM instance can use total_gpu_memory (79.14GiB) x \
gpu_memory_utilization (0.90) = 71.23GiB
INFO worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.12GiB; PyTorch \
activation peak memory takes 1.19GiB; the rest of the memory reserved for KV Cache is 54.93GiB.
INFO executor_base.py:110] # CUDA blocks: 28124, # CPU blocks: 2048
INFO executor_base.py:115] Maximum concurrency for 131072 tokens per request: 3.43x
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


def test_a_length_that_does_not_fit_is_shortened_as_vllm_says(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        assert main(["plan", "--from-log", str(log), "--lang", lang]) == ExitCode.OK
        out = capsys.readouterr().out
        assert "--max-model-len 37664" in out
        assert len(out.splitlines()) <= 15


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
    text: str, failure: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(f"vLLM API server version 0.11.0 model='Qwen/Qwen3-8B'\n{text}\n", "utf-8")
    assert read_start_log(text).failure == failure
    assert main(["plan", "--from-log", str(log), "--lang", "en"]) == ExitCode.OK
    assert capsys.readouterr().out.count("\n") >= 3


def test_what_is_no_log_of_vllm_is_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, part in (("Nothing.", "no start-up log"), ("sglang: max_total_num_tokens", "sglang")):
        log.write_text(text, encoding="utf-8")
        with pytest.raises(NotALogError):
            read_start_log(text)
        assert main(["plan", "--from-log", str(log), "--lang", "en"]) == ExitCode.USAGE
        assert part in capsys.readouterr().err
