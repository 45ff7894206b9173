"""Simulated requests per second: ``python -m kvsim.bench --traces DIR``.

Every row is a process of its own that reads a trace, tiles it, simulates it with the full ledger
and computes all metrics; its time is that of the whole process. The time of a process that only
imports the same modules is reported separately and not subtracted.

    round 1   azure-code paged │ azure-code paged+prefix │ mooncake paged │ ...
    round 2   azure-code paged │ ...                       interleaved, so that background
    ...                                                    load affects every row

The model is Llama-3.1-8B in 16 bits on two H100: on one, Mooncake's prompts of 12,000 tokens would
measure preemption only. Blocks have 16 slots, steps 8,192 tokens, the watermark is 1 % of the pool,
and the latency model is the roofline.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.base.files import write_whole
from kvsim.sim.config import SimConfig, catalogue_config
from kvsim.sim.simulator import simulate
from kvsim.traces import Tile, TraceFile

TRACES = {
    "azure-code": "AzureLLMInferenceTrace_code.csv",
    "mooncake-conversation": "mooncake_conversation_trace.jsonl",
}
POLICIES = ("paged", "paged+prefix", "max", "pow2", "oracle", "static")
CURVE = (10_000, 30_000, 100_000, 300_000, 1_000_000)
MODEL, GPU, GPUS = "llama-3.1-8b", "h100", 2
_MAX_LENGTH = 131_072


def configuration(policy: Any) -> SimConfig:
    """Return the configuration of every row."""
    config = catalogue_config(
        policy, MODEL, GPU, GPUS, max_length=_MAX_LENGTH, max_num_batched_tokens=8192
    )
    watermark = config.shape.blocks // 100 if config.paged else 0
    return replace(config, watermark_blocks=watermark)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows, print them and write them to a file."""
    args = _parser().parse_args(arguments)
    if args.one:
        print(json.dumps(_child_row(args)))
        return 0
    files = [TRACES[name] for name in args.trace]
    missing = [name for name in files if not (args.traces / name).exists()]
    if missing:
        print(f"{args.traces}: no {', '.join(missing)}; say where with --traces", file=sys.stderr)
        print("Where they come from: docs/simulator.md, Speed.", file=sys.stderr)
        return 2
    rows = []
    cells = _cells(args)
    for number in range(args.rounds):
        for trace, policy, requests in cells:
            row = _measured_row(args, trace, policy, requests) | {"round": number}
            rows.append(row)
            print(_line(row), flush=True)
            _write(args.out, rows, args)
    return 0


def _cells(args: argparse.Namespace) -> list[tuple[str, str, int]]:
    if args.curve:
        return [(trace, "paged", size) for size in CURVE for trace in args.trace]
    return [(trace, policy, args.requests) for policy in args.policy for trace in args.trace]


def _measured_row(
    args: argparse.Namespace, trace: str, policy: str, requests: int
) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "kvsim.bench", "--traces", str(args.traces)]
    start_s = _timed([*command, "--one", "nothing"])[0]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    wall_s, output = _timed(
        [*command, "--one", trace, "--policy", policy, "--requests", str(requests)]
    )
    return dict(json.loads(output)) | {
        "trace": trace,
        "policy": policy,
        "requests": requests,
        "seconds": wall_s,
        "startup_seconds": start_s,
        "load": load,
    }


def _timed(command: list[str]) -> tuple[float, str]:
    root = str(Path(__file__).resolve().parents[1])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    began = time.perf_counter()
    done = subprocess.run(  # noqa: S603 - our own command
        command, stdout=subprocess.PIPE, check=True, encoding="utf-8", env=environment
    )
    return time.perf_counter() - began, done.stdout


def _child_row(args: argparse.Namespace) -> dict[str, Any]:
    if args.one == "nothing":
        return {}
    stream = Tile(TraceFile(args.traces / TRACES[args.one]), args.requests)
    result = simulate(stream, configuration(args.policy[0]))
    cpu_s = time.process_time()
    data = result.to_json()
    return {
        "cpu_seconds": cpu_s,
        "peak_rss_bytes": _peak_rss_bytes(),
        "finished": data["requests"]["finished"],
        "refused": sum(each["count"] for each in data["requests"]["refused"]),
        "steps": data["steps"],
        "preemptions": data["preemptions"]["total"],
        "simulated_seconds": data["span_s"],
        "running_busy_mean": data["running"]["busy_mean"],
        "live_percent": data["states"]["live"]["mean_percent"],
        "sha256": data["trace"]["sha256"],
    }


def _peak_rss_bytes() -> int | None:
    """Return this process's peak resident memory in bytes; None on Windows.

    On Linux, getrusage includes the parent's memory at the fork; the status file does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _line(row: dict[str, Any]) -> str:
    speed, cpu = row["requests"] / row["seconds"], row["requests"] / row["cpu_seconds"]
    peak, load = row["peak_rss_bytes"], row["load"]
    return (
        f"{row['trace']:22} {row['policy']:13} {row['requests']:8,} {row['seconds']:7.2f} s"
        f" {speed:9,.0f}/s {cpu:9,.0f}/s cpu"
        f" {'-' if peak is None else f'{peak / 2**20:.0f}':>6} MiB"
        f"  start {row['startup_seconds']:.2f} s  load {'-' if load is None else f'{load:.1f}'}"
    )


def _write(path: Path, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    cells: dict[tuple[str, str, int], list[float]] = {}
    for row in rows:
        key = (row["trace"], row["policy"], row["requests"])
        cells.setdefault(key, []).append(row["requests"] / row["seconds"])
    medians = [
        {
            "trace": trace, "policy": policy, "requests": requests, "rounds": len(speeds),
            "requests_per_second": statistics.median(speeds),
            "lowest": min(speeds), "highest": max(speeds),
        }
        for (trace, policy, requests), speeds in cells.items()
    ]  # fmt: skip
    about = {
        "model": MODEL, "gpu": GPU, "gpus": GPUS, "curve": args.curve, "cores": os.cpu_count(),
        "python": sys.version.split()[0], "config": configuration("paged").to_json(),
    }  # fmt: skip
    text = json.dumps({"about": about, "medians": medians, "rows": rows}, indent=1)
    write_whole(path, f"{text}\n".encode())


def _file(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(
            f"{path} is a directory; name a file, e.g. {path / 'sim.json'}"
        )
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvsim.bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--out", type=_file, default=Path("reports/bench/sim.json"))
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES[:2]))
    parser.add_argument("--trace", nargs="+", choices=list(TRACES), default=list(TRACES))
    parser.add_argument("--curve", action="store_true", help="10 thousand to 1 million, paged")
    parser.add_argument("--one", choices=["nothing", *TRACES], help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
