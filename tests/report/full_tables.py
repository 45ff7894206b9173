"""Claims, a check of the paper and a benchmark in which everything is that a page can show."""

from __future__ import annotations

from itertools import product
from typing import Any

from experiment.analysis.experiment_results import (
    CellArm,
    CellResult,
    ExperimentResult,
    FigureValue,
)
from experiment.bench.data import BenchData, LeftOut, Round
from experiment.bench.profiles import Profile
from experiment.bench.rows import Row
from experiment.config.reading import load_config
from experiment.experiments.base import planned_cells
from experiment.experiments.claims import CLAIMS, Judged, Part, Seen
from experiment.experiments.figures import FIGURES
from experiment.experiments.registry import EXPERIMENTS
from experiment.files.shipped import CONFIGS
from experiment.text.messages import message
from kvsim.paper.claims import PaperClaim, Tolerance
from kvsim.paper.memory import closed_form_claims
from kvsim.paper.result import PaperResult
from kvsim.sweep import AXES
from kvsim.sweep.summary import MEASURES

_VLLM_CORES = "0,1"
# Of each unit what takes much room to write on an axis.
LARGE = {"count": 12_500, "mean": 1_250.0, "share": 0.9, "bytes": 1.3e9, "seconds": 0.45,
         "rate": 12_500.0}  # fmt: skip


def full_claims() -> list[Judged]:
    """Counts, times with their repeats, figures made of parts, and a reason for none."""
    parts = (Part("batching", 1.5), Part("samples", 0.061, least=0.06, of=4))
    seen = [Seen(0.5 + n, n / 3, n + 1.25, parts if n % 2 else ()) for n in range(len(CLAIMS))]
    judged = [Judged(claim, one, "shown") for claim, one in zip(CLAIMS, seen, strict=True)]
    why = message("claims.why.contradicts", n=3)
    return [*judged[:-1], Judged(CLAIMS[-1], None, "untested", why)]


def full_paper() -> dict[str, Any]:
    """What follows from shapes, and a claim of every tolerance over two seeds."""
    tolerances = {
        "absolute": 3.0, "relative": 0.15, "at_least": 1.5, "at_most": 2.5, "covers": 2.0,
        "none": None,
    }  # fmt: skip
    drawn = [
        PaperClaim(
            f"fig2.{kind}", "Fig. 2", "live", f"vLLM {kind}", unit, 96.3, (95.25, 96.5),
            Tolerance(kind, value), (0, 1), fitted=kind == "absolute", assumed=kind == "relative",
        )
        for kind, value in tolerances.items()
        for unit in ("percent",)
    ]  # fmt: skip
    return {"program": "1"} | PaperResult((*closed_form_claims(), *drawn), (0, 1)).to_json()


def full_bench() -> BenchData:
    """Two workloads, three rounds of one: profiles, vLLM in two modes, reasons."""
    rows = [row for number in range(3) for row in _round(number)]
    rows.append(
        _row("B", "paged", 0, useful_tokens_per_s=121.5, mean_running=31.5, recomputed_tokens=12,
             preemptions=3)
    )  # fmt: skip
    rows.append(_row("B", "vllm", 0, useful_tokens_per_s=99.25, equal_first_tokens=3))
    profiles = [_profile(number) for number in range(2)]
    return BenchData(
        version="1", started="2026-03-01T10:00:00+01:00", seconds=1234.5,
        settings={"threads": 2, "poisoned": False},
        machine={"device_name": "CPU 9000", "cpu": {"usable_cores": 2}, "load_average": 1.25,
                 "others_cores": 0.125},
        versions={"python": "3.11.7", "torch": "2.13.0", "transformers": "5.1.0", "numba": None},
        model={"name": "gpt2", "dtype": "float32", "source": "random"},
        vllm=_vllm(), rows=rows, profiles=profiles,
        rounds=[_limits(name, number) for name, number in (("A", 0), ("A", 1), ("A", 2), ("B", 0))],
        left_out=[
            LeftOut(workload="B", arm="vllm", rounds=0, reason=message("bench.left_out_slow"))
        ],
        warnings=[message("bench.busy", cores=cores) for cores in (0.5, 1.25)],
    )  # fmt: skip


def _round(number: int) -> list[Row]:
    rate = 100.5 + 7 * number
    return [
        _row("A", "paged", number, useful_tokens_per_s=rate, pack_s=0.75 + number,
             packing={"reason": None}),
        _row("A", "slabs", number, useful_tokens_per_s=rate / 2, process_peak_bytes=2**30,
             packing={"reason": message("bench.not_run").model_dump()}),
        _row("A", "vllm", number, useful_tokens_per_s=rate / 1.5, equal_requests=3,
             reference="slabs" if number else "contiguous.batch"),
        Row(workload="A", arm="transformers_paged", round=number, status="failed", requests=4,
            reason=message("bench.problem.lacking", n=number + 2)),
    ]  # fmt: skip


def _row(workload: str, arm: str, number: int, **figures: Any) -> Row:
    told = {
        "workload": workload, "arm": arm, "round": number, "status": "finished", "requests": 4,
        "equal_requests": 4, "reference": "contiguous.batch" if number else "slabs",
        "first_token_median_s": 0.125 * (number + 1), "prefill_share": 0.81, "decode_share": 0.375,
        "decode_step_s": 0.025,
        "peak_kv_bytes": 150_994_944, "peak_allocated_bytes": (27 + number**2) * 2**20,
        "process_peak_bytes": 1_290_637_312, "loading_peak_bytes": 1_323_040_768,
        "preemptions": 0, "recomputed_tokens": 0, "cores": [0, 1],
        "variables": {"OMP_NUM_THREADS": "2", "VLLM_NO_USAGE_STATS": "1"},
    }  # fmt: skip
    return Row.model_validate(told | figures)


def _profile(number: int) -> Profile:
    return Profile(
        workload="A", arm="paged", round=number, steps=16, requests=4, step_ms=60.0 + number,
        matrix_ms=30.5, attention_ms=5.0, other_ms=2.0, rest_ms=3.0, trace=None,
        plain_step_ms=40.0 + number, plain_steps=16,
    )  # fmt: skip


def _limits(workload: str, number: int) -> Round:
    limits = {"read_bytes_per_s": 28.9e9 - 1e9 * number, "flops_per_s": 147.7e9}
    return Round(
        workload=workload, round=number, arms=["paged"], directory=f"runs/{workload}-{number}",
        limits=limits,
    )  # fmt: skip


def _vllm() -> dict[str, Any]:
    why = message("bench.problem.lacking", n=2).model_dump()
    return {
        "eager": False, "bind": _VLLM_CORES, "reason": message("note.vllm_eager").model_dump(),
        "probes": [
            {"eager": True, "bind": "auto", "rates": [128.5], "reason": why},
            {"eager": False, "bind": _VLLM_CORES, "rates": [152.25], "reason": None},
        ],
        "finals": {
            "A": [
                {"eager": True, "bind": "auto", "rates": [109.75, 111.5], "reason": None},
                {"eager": False, "bind": _VLLM_CORES, "rates": [98.5, 97.25], "reason": None},
            ],
        },
        "modes": {"A": {"eager": True, "bind": "auto"}},
    }  # fmt: skip


def full_experiment(name: str, size: str) -> ExperimentResult:
    """The shipped cells of an experiment, each arm with figures of some size."""
    config = load_config(CONFIGS / f"{name}.toml", {"experiment.size": size})
    spec = EXPERIMENTS[name]
    figures = [FIGURES[figure].info for figure in spec.charts]
    cells = [
        CellResult(
            index=index, values=dict(cell.values), requests=4, max_length=64, block_size=4,
            budget_bytes=1024,
            arms=[
                CellArm(
                    arm=arm, status="finished", reason=None, repeats=3,
                    figures={
                        one.figure: FigureValue(value=LARGE[one.unit] * (index + 1) / (place + 1))
                        for one in figures
                    },
                )
                for place, arm in enumerate(cell.arms or config.arm_names)
            ],
        )
        for index, cell in enumerate(planned_cells(spec, config))
    ]  # fmt: skip
    return ExperimentResult(
        name=name, size=config.experiment.size, repeats=3, cells_planned=len(cells), focus=0,
        figures=figures, charts=list(spec.charts), cells=cells, findings=[],
        problems=[], notes=[], without=[],
    )  # fmt: skip


def full_sweep() -> list[dict[str, Any]]:
    """Cells that differ in policy and budget; two of them cannot be simulated."""
    return [
        _cell(place, policy, budget)
        for place, (policy, budget) in enumerate(product(("max", "paged"), (1024, 2**32)))
    ]


def _cell(place: int, policy: str, budget: int) -> dict[str, Any]:
    same = {"model": "opt-13b", "gpu": "a100-40gb", "trace": "alpaca-like", "seed": 0}
    row = dict.fromkeys(["id", *AXES, "trace_sha256", "error", "error_params", *MEASURES]) | same
    row |= {"id": f"c{place}", "policy": policy, "budget_bytes": budget}
    if budget == 1024:
        params = {"budget": 1024, "needed": 2**20 * (1 + place)}
        return row | {"error": "pool_too_small", "error_params": params}
    return row | {
        "live_percent": 20.4 + 10 * place, "running_busy_mean": 1.5 + place, "preemptions": place,
        "latency_p50_s": 12.25, "requests_per_s": 1999.5,
    }  # fmt: skip
