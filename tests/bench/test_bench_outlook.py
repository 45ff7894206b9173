"""How long a benchmark will take is said before it begins, where an earlier one tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiment.bench.data import BenchData, write_data
from experiment.bench.order import Pace
from experiment.bench.plan import Options
from experiment.bench.rows import Row
from experiment.bench.run import Bench
from experiment.events import Notice

MODEL = {"name": "gpt2", "dtype": "float32"}
MACHINE = {"device": "cpu"}
SETTINGS = {"threads": 2, "tiny": False}


def told(out: Path, limit_s: float | None = 600.0) -> list[tuple[str, dict[str, Any]]]:
    """What is said before the first round."""
    options = Options(
        workloads=("B",), arms=("paged", "vllm"), named=True, rounds=3, least=2, limit_s=limit_s,
        threads=2, tiny=False, profile=False, out=out,
    )  # fmt: skip
    said: list[Any] = []
    bench = Bench(options, lambda text: None, said.append, lambda row: None)
    bench.data = BenchData(
        version="1",
        started="2026-11-22T04:33:57+00:00",
        model=MODEL,
        machine=MACHINE,
        settings=SETTINGS,
    )
    bench._say_how_long(Pace(limit_s, 3, 2), {"B": {"paged", "vllm"}}, 0, 0.0)
    assert all(isinstance(event, Notice) for event in said)
    return [(event.text.key, event.text.params) for event in said]


def earlier(out: Path, **changes: Any) -> None:
    rows = [
        Row(workload="B", arm=arm, round=0, status="finished", wall_s=seconds)
        for arm, seconds in (("paged", 100.0), ("vllm", 50.0))
    ]
    given = {"model": MODEL, "machine": MACHINE, "settings": SETTINGS}
    write_data(out, BenchData(version="1", started="then", rows=rows, **(given | changes)))


def test_the_floor_is_always_told_where_a_clock_decides(tmp_path: Path) -> None:
    assert told(tmp_path) == [("bench.floor", {"n": 2, "minutes": 10.0})]
    assert told(tmp_path, limit_s=None) == []


def test_an_earlier_benchmark_tells_how_long_this_one_will_take(tmp_path: Path) -> None:
    earlier(tmp_path)
    assert told(tmp_path)[1:] == [("bench.outlook", {"n": 3, "time": 450.0})]
    # Two rounds whatever the time, and a third that would end too late.
    assert told(tmp_path, 440.0)[1:] == [("bench.outlook", {"n": 2, "time": 300.0})]


@pytest.mark.parametrize(
    "other",
    [
        {"model": {**MODEL, "name": "tiny-gpt2"}},
        {"machine": {"device": "cuda"}},
        {"settings": {**SETTINGS, "threads": 8}},
    ],
    ids=["model", "device", "threads"],
)
def test_a_benchmark_of_something_else_tells_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    earlier(tmp_path, **other)
    assert [key for key, _ in told(tmp_path)] == ["bench.floor"]
