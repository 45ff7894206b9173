"""Right input for each target, from which the fuzzers start: small, and of every kind."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from event_makers import whole_run
from made_up_machine import cuda_environment
from start_logs import ALL

from experiment.analysis.conclusions import evaluate
from experiment.bench.data import BenchData, LeftOut, Round
from experiment.bench.rows import Row
from experiment.compare.facts import side_of
from experiment.compare.results import Side
from experiment.events import encode
from experiment.gpucheck.result import CheckResult, GpuCheck, PartResult
from experiment.record.log import Record
from experiment.text.messages import message
from kvsim.sizing.models import MODELS

MODEL_FILES = (
    "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json",
)  # fmt: skip
CONFIGS = Path(__file__).parents[2] / "configs"


def _lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@cache
def side() -> Side:
    """What baselines and gates are held against."""
    record = Record(Path("run"), tuple(whole_run()))
    return side_of(record, evaluate(record))


@cache
def simulation() -> dict[str, Any]:
    """A record of a small simulation, as ``simulate`` writes it."""
    from experiment.commands import simulate as command
    from experiment.commands.parser import make_parser, parse
    from experiment.simulate.run import simulate_trace
    from experiment.text import Translator

    words = ["--trace", "sharegpt-like", "--requests", "12", "--rate", "5", "--model", "gpt2"]
    words += ["--gpu", "a100-80gb", "--policy", "max,paged", "--block-sizes", "8"]
    words += ["--budgets", "1GiB"]
    parser = make_parser(Translator("en"), "simulate", command.OPTIONS)
    return simulate_trace(command.question_of(parse(parser, words)))


def configs() -> list[bytes]:
    """Every config of a run that is shipped."""
    other = ("sweep-", "gate-")
    found = (path for path in sorted(CONFIGS.glob("*.toml")) if not path.name.startswith(other))
    return [path.read_bytes() for path in found]


def gates() -> list[bytes]:
    """The example, and every way to write a limit."""
    every = b'[limits]\n"paged/steps"={max="baseline + 5 %",min=1}\n"*/fits"={equal="baseline"}\n'
    return [(CONFIGS / "gate-example.toml").read_bytes(), every]


def baselines() -> list[bytes]:
    """The one that is shipped, and a small one."""
    kept = side()
    origin = {
        name: getattr(kept, name)
        for name in ("status", "schema_version", "version", "wall_ns", "utc_offset_s", "command")
    }
    figures = {n: f.value for n, f in kept.figures.items() if f.kind == "count" and f.value}
    small = {
        "kind": "pagedkv-baseline", "format": 1, "from": {"run": "x", **origin}, "machine": {},
        "versions": {}, "model": kept.model, "config": kept.config, "requests": kept.requests,
        "figures": figures,
    }  # fmt: skip
    return [(CONFIGS / "baseline-quick.json").read_bytes(), json.dumps(small).encode()]


def logs() -> list[bytes]:
    """A whole log, one that breaks off, and one of the run alone."""
    whole = [encode(event).encode() + b"\n" for event in whole_run()]
    return [b"".join(whole), b"".join(whole[:9])[:-20], whole[0]]


def simulations() -> list[bytes]:
    """One simulation."""
    return [json.dumps(simulation()).encode()]


def benches() -> list[bytes]:
    """A benchmark of two rounds, one arm left out."""
    rows = [
        Row(workload="A", round=n, arm=arm, status="complete", tokens_per_s=10.0 + n)
        for n in range(2)
        for arm in ("paged", "contiguous.batch")
    ]
    data = BenchData(
        version="1", started="2026-01-01T00:00:00", seconds=3.0, rows=rows,
        rounds=[Round(workload="A", round=n, arms=["paged"], directory="x") for n in range(2)],
        left_out=[LeftOut(workload="A", arm="vllm", rounds=2, reason=message("vllm.missing"))],
        machine={"cpu": {"model": "x"}, "device": "cpu", "device_name": "x", "ram_bytes": 1},
        settings={"threads": 2},
    )  # fmt: skip
    return [data.model_dump_json().encode()]


def gpu_checks() -> list[bytes]:
    """A check of a machine with a GPU: a part that passed."""
    found = cuda_environment()
    check = CheckResult(id="a", passed=True, text=message("gpucheck.passed", n=1))
    part = PartResult(
        part="kernels", verdict="pass", seconds=1.5, limit_s=9.0,
        reason=message("gpucheck.passed", n=1), checks=(check,),
    )  # fmt: skip
    data = GpuCheck(
        program="1", wall_ns=10**18, utc_offset_s=3600, minutes=8, device=found.device,
        device_name=found.device_name, environment=found, parts=(part,),
    )  # fmt: skip
    return [data.model_dump_json().encode()]


def traces() -> list[bytes]:
    """A few rows of every format, and one that is packed."""
    hashed = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    chat = {"chat_id": 1, "parent_chat_id": -1, "turn": 1}
    talk = [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c d e"}]
    plain = [
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,20,3\n"
        b"2024-05-10 00:00:01,5,7\n",
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,4,2,6,x\n"
        b"45,GPT-4,7,9,16,x\n",
        b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,3\n1.25e0,4,4\n",
        _lines(hashed, hashed | {"timestamp": 27}),
        _lines(hashed | chat | {"hash_ids": [*range(38)]}, hashed | chat | {"hash_ids": None}),
        _lines({"input_toks": 5, "output_toks": 2, "arrival_time_ns": 5}),
        _lines({"input_toks": 5, "output_toks": 2, "arrival_time": 5.5}),
        _lines({"prompt": "a b c", "max_tokens": 4}, {"prompt": "d"}),
        json.dumps([{"id": "x", "conversations": talk}, {"id": 2, "conversations": []}]).encode(),
    ]
    return [*plain, gzip.compress(plain[0], mtime=0)]


def latencies() -> list[bytes]:
    """Both kinds of a latency model."""
    linear = {"kind": "LinearLatency", "fixed_s": 0.01, "per_decode_token_s": 1e-4}
    roof = {
        "kind": "Roofline", "weight_bytes": 1e9, "kv_token_bytes": 1e4, "token_flops": 1e9,
        "pair_flops": 1e4, "bandwidth": 1e12, "flops": 1e14,
        "efficiencies": {"weights": 0.7, "cache": 0.8, "products": 0.6, "attention": 0.5},
    }  # fmt: skip
    return [json.dumps({"latency": each}).encode() for each in (linear, roof)]


def request_records() -> list[bytes]:
    """Requests with their times, as benchmarks of serving write them."""
    rows = [
        {
            "input_toks": 10 + n, "output_toks": 5 + n % 3, "queued_ts": n * 0.1,
            "scheduled_ts": n * 0.1 + 0.01, "first_token_ts": n * 0.1 + 0.05,
            "last_token_ts": n * 0.1 + 0.4 + n * 0.01,
        }
        for n in range(12)
    ]  # fmt: skip
    bench = {
        "model_id": "tiny",
        "request_throughput": 2.5,
        "input_lens": [10 + n for n in range(12)],
        "output_lens": [3] * 12,
        "ttfts": [0.05] * 12,
        "itls": [[0.01, 0.02]] * 12,
        "start_times": [n * 0.1 for n in range(12)],
        "generated_texts": ["a"] * 12,
    }
    return [_lines(*rows), json.dumps(bench).encode()]


def sweeps() -> list[bytes]:
    """The grids that are shipped, and a small one."""
    small = b'[sweep]\npolicy=["paged","max"]\nmodel="gpt2"\ngpu="a100-80gb"\n'
    small += b'trace="alpaca-like"\nrequests=3\n'
    return [path.read_bytes() for path in sorted(CONFIGS.glob("sweep-*.toml"))] + [small]


def models() -> list[bytes]:
    """Files of a model's directory, by their names: of GPT-2 and of a newer family."""
    sizes = {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2}
    gpt2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
    llama = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "max_position_embeddings": 512, "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "num_labels": 2,
        "id2label": {"0": "a"}, "dtype": "float16",
    }  # fmt: skip
    beside = {
        "generation_config.json": {"eos_token_id": [2, 3]},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "tokenizer.json": {
            "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
        },
    }  # fmt: skip
    return [json.dumps({"config.json": sizes | kind, **beside}).encode() for kind in (gpt2, llama)]


def layers() -> list[bytes]:
    """Configs with layers of every kind."""
    names = (
        "gpt2", "mixtral-8x7b", "gemma-3-27b", "gemma-4-31b", "llama-4-scout", "deepseek-v3.2",
        "qwen3-next-80b-a3b", "nemotron-h-8b", "jamba-1.5-mini", "kimi-linear-48b-a3b", "lfm2-1.2b",
        "minimax-text-01", "mimo-v2-flash", "granite-4.0-h-tiny",
    )  # fmt: skip
    return [json.dumps(dict(MODELS[name].config)).encode() for name in names]


def start_logs() -> list[bytes]:
    """Start-up logs of vLLM that name a model of the catalogue."""
    return [text.encode() for text in ALL if "model='" in text]


def weights() -> list[bytes]:
    """The weights of a model: a header, and the numbers behind it."""
    header = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b.bias": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
    }
    text = json.dumps(header).encode()
    return [len(text).to_bytes(8, "little") + text + bytes(22)]


def prompts() -> list[bytes]:
    """Prompts as lines and as conversations."""
    talk = [{"conversations": [{"from": "human", "value": "Hello"}]}]
    return [_lines({"prompt": "Hello"}, {"prompt": "你好"}), json.dumps(talk).encode()]


def assignments() -> list[bytes]:
    """What may stand behind ``--set``, one on each line."""
    texts = (
        "cache.block_size=16", "cache.budget=64MiB", "run.arms=['paged']", "model.name=gpt2",
        "workload.lengths=[[3,4],[5,6]]", "workload.arrivals=[0.0,1.5]", "sampling.top_p=0.9",
        "experiment.values=[1,2]", "vllm.args={a=1}", "engine.swap_space='1 GiB'",
        "experiment.name='capacity'", "experiment.quick.cache.block_size=8",
    )  # fmt: skip
    return ["\n".join(texts).encode(), *(text.encode() for text in texts)]


def command_lines() -> list[bytes]:
    """Words of every command, one on each line."""
    lines = (
        "--yes --config configs/quick.toml --arms paged,contiguous --max-new-tokens 4",
        "--yes --prompt Hello --device cpu --lang zh --quiet --ascii --offline --seed 3",
        "--yes --quick --config configs/capacity.toml --set experiment.repeats=1",
        "render none --lang en", "selfcheck --help", "--version", "--list-experiments",
        "simulate --trace sharegpt-like --requests 4 --rate 2 --model gpt2 --gpu a100-80gb --cv 0",
        "simulate --list models",
        "simulate --trace alpaca-like --tile 2 --head 3 --model gpt2 --gpu h",
        "plan --model gpt2 --gpu a100-80gb --prompt-tokens 10 --new-tokens 5 --gpus 2",
        "plan --model gpt2 --gpu h100 --compare kv-dtype,weights --slo ttft=1s,tpot=50ms --price 2",
        "plan --model gpt2 --users 9 --context 99 --price h100=2.5,l40s=1 --data-parallel-size 2",
        "plan --model gpt2 --gpu h100 -tp=2 --pipeline-parallel-size 2 --max-model-len 512 --json",
        "plan --model llama-3.1-8b --gpu h100 --trace alpaca-like --requests 9 --kv-dtype fp8",
        "calibrate none --folds 3 --arm paged", "sweep --set policy=['paged'] --workers 1",
        "bench --show none --rounds 2 --minutes 1", "bench --workloads A,B --arms paged",
        "compare a b --details", "compare a --gate g --baseline b --write-baseline w",
        "claims --quick", "paper --seeds 3", "gpucheck --minutes 1 --out none",
        "--kv-budget 12GiB --block-size 8 --threads 2 --dtype float16",
    )  # fmt: skip
    return ["\n".join(line.split(" ")).encode() for line in lines]
