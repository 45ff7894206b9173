"""Cells: which there are, that they are computed once, and that anyone gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvsim.sweep import CellStore, SweepCell, SweepError, cells_summary, compute, expand, run_cell
from kvsim.sweep import cell as cell_module
from kvsim.sweep.processes import run_in_processes
from kvsim.sweep.ray_cluster import run_on_ray
from kvsim.traces import ArrivalProcess, SyntheticTrace, from_preset

GRID: dict[str, Any] = {
    "model": "opt-13b",
    "gpu": "a100-40gb",
    "budget_bytes": 4 << 30,
    "policy": ["max", "paged"],
    "block_size": [8, 16],
    "trace": "alpaca-like",
    "requests": 60,
    "seed": 7,
}


def grid(**changes: Any) -> list[SweepCell]:
    return expand(GRID | changes)


def by_itself(cells: list[SweepCell]) -> dict[str, bytes]:
    return {cell.id: run_cell(cell) for cell in cells}


def test_a_policy_without_blocks_is_one_cell_for_all_block_sizes() -> None:
    settings = [dict(cell.settings) for cell in grid()]
    assert [(s["policy"], s.get("block_size")) for s in settings] == [
        ("max", None),
        ("paged", 8),
        ("paged", 16),
    ]


def test_ids_are_stable_and_cover_what_results_depend_on() -> None:
    ids = {cell.id for cell in grid()}
    assert ids == {cell.id for cell in grid()}
    for change in ({"seed": 8}, {"requests": 61}, {"budget_bytes": 5 << 30}, {"rate": 2.0}):
        assert not ids & {cell.id for cell in grid(**change)}, change
    cell = grid()[0]
    assert SweepCell(cell.settings, cell.trace_sha256, "another program").id != cell.id
    # 2 and 2.0 are one rate.
    assert [c.id for c in grid(rate=2)] == [c.id for c in grid(rate=2.0)]


def test_a_trace_file_counts_by_content_not_by_place(tmp_path: Path) -> None:
    one, two = tmp_path / "a" / "t.csv", tmp_path / "b" / "t.csv"
    for path in (one, two):
        path.parent.mkdir()
        path.write_text(
            "arrived_at,num_prefill_tokens,num_decode_tokens\n0,20,5\n1,30,4\n", encoding="utf-8"
        )
    here, there = (grid(trace=str(path), policy="paged", requests=[1, 2]) for path in (one, two))
    assert by_itself(here) == by_itself(there)
    two.write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0,20,5\n1,30,6\n", encoding="utf-8"
    )
    with pytest.raises(RuntimeError, match="another trace"):
        run_cell(there[0])
    assert not {c.id for c in here} & {
        c.id for c in grid(trace=str(two), policy="paged", requests=[1, 2])
    }


def test_another_program_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = grid()[0]
    monkeypatch.setattr(cell_module, "code_digest", lambda: "changed")
    with pytest.raises(RuntimeError, match="another version"):
        run_cell(cell)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"colour": "red"}, "unknown_axis"),
        ({"policy": []}, "no_values"),
        ({"policy": "best"}, "bad_value"),
        ({"block_size": 0}, "bad_value"),
        ({"block_size": True}, "bad_value"),
        ({"rate": -1}, "bad_value"),
        ({"preemption": "forget"}, "bad_value"),
        ({"trace": "nowhere.csv"}, "no_file"),
    ],
)
def test_a_grid_that_makes_no_cells_says_why(change: dict[str, Any], code: str) -> None:
    with pytest.raises(SweepError) as error:
        grid(**change)
    assert error.value.code == code


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="another system")
def test_a_trace_without_a_size_is_not_read_to_its_end() -> None:
    cells = grid(trace="/proc/self/pagemap", policy="paged", block_size=16)
    assert cells[0].trace_sha256 == hashlib.sha256(b"").hexdigest()


def test_a_grid_has_a_hundred_thousand_cells_at_most() -> None:
    with pytest.raises(SweepError, match="too_many"):
        grid(seed=list(range(100_001)), policy="max")
    assert len(grid(seed=[7] * 100_001, policy="max", block_size=8)) == 1


@pytest.mark.parametrize("axis", ["policy", "model", "gpu", "trace", "requests"])
def test_a_needed_axis_is_missed_by_name(axis: str) -> None:
    with pytest.raises(SweepError) as error:
        expand({name: values for name, values in GRID.items() if name != axis})
    assert (error.value.code, error.value.params["axes"]) == ("missing_axes", axis)


def test_without_a_maximum_length_it_is_the_longest_request_s() -> None:
    """Slabs of the model's 131,072 positions would not fit the pool at all."""
    cells = grid(policy=["slabs", "max"], model="llama-3.1-8b", gpu="rtx-4090", block_size=16)
    for cell in cells:
        result = json.loads(run_cell(cell))["result"]
        trace = from_preset("alpaca-like", 60, ArrivalProcess(None), seed=7, max_length=131_072)
        longest = max(one.prompt_tokens + one.output_tokens for one in SyntheticTrace(trace))
        assert result["config"]["max_length"] == longest
        assert result["requests"]["finished"] == 60
    (told,) = grid(policy="slabs", block_size=16, max_length=2048)
    assert json.loads(run_cell(told))["result"]["config"]["max_length"] == 2048


def test_a_summary_has_a_row_for_each_cell(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,5\n", encoding="utf-8"
    )
    (of_file,) = expand({k: v for k, v in GRID.items() if k not in ("requests", "seed")}
                        | {"policy": "paged", "block_size": 16, "trace": str(file)})  # fmt: skip
    contiguous, paged, _ = grid()
    (tiny,) = grid(policy="paged", block_size=16, budget_bytes=1000)
    rows = cells_summary([run_cell(cell) for cell in (contiguous, paged, of_file, tiny)])
    # A policy that cannot preempt has no number of preemptions.
    of_blocks = ("preemptions", "recomputed_tokens", "swapped_bytes")
    unknown = [[row[name] is None for name in of_blocks] for row in rows[:2]]
    assert unknown == [[True] * 3, [False] * 3]
    assert (len(rows[0]["trace_sha256"]), rows[0]["seed"]) == (64, 7)
    assert rows[2]["trace_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    # What cannot be simulated is a result.
    found = [rows[3][name] for name in ("error", "trace_sha256", "finished")]
    assert found == ["pool_too_small", None, None]


def test_a_rate_may_be_a_multiple_of_the_trace_s_own(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    rows = "".join(f"{n},10,5\n" for n in range(20))
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows, encoding="utf-8")
    told = {k: v for k, v in GRID.items() if k not in ("requests", "seed", "block_size")}
    told |= {"policy": "paged", "trace": str(file)}
    cells = expand(told | {"rate": ["2x", "4.0X", 4, "2.0x"]})
    assert [cell.settings["rate"] for cell in cells] == ["2.0x", "4.0x", 4.0]
    spans = [json.loads(run_cell(cell))["result"]["trace"]["span_ns"] for cell in cells]
    # 19 s apart; 4 requests a second are four times the trace's own rate of one.
    assert spans == [9_500_000_000, 4_750_000_000, 4_750_000_000]
    for wrong in ("x", "0x", "-1x", "infx", "2"):
        with pytest.raises(SweepError, match="bad_value"):
            expand(told | {"rate": wrong})
    with pytest.raises(SweepError, match="no_rate_to_scale"):
        grid(rate="2x")


def test_finished_cells_are_kept_and_broken_files_are_not(tmp_path: Path) -> None:
    cells, store = grid(), CellStore(tmp_path)
    assert store.begin(cells) == cells
    for cell in cells:
        store.put(compute(cell))
    assert store.begin(cells) == []
    (tmp_path / "cells" / f"{cells[0].id}.json").write_bytes(b'{"id": "')
    shutil.copy(
        tmp_path / "cells" / f"{cells[2].id}.json", tmp_path / "cells" / f"{cells[1].id}.json"
    )
    assert store.begin(cells) == cells[:2]
    assert not list(tmp_path.rglob(".*"))


def test_a_killed_process_takes_no_cell_with_it() -> None:
    cells = grid(requests=1500, seed=list(range(4)), policy="paged", block_size=16)
    me = os.getpid()
    killed: list[int] = []

    def kill() -> None:
        import psutil

        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            for child in psutil.Process(me).children():
                if "spawn_main" in " ".join(child.cmdline()):
                    time.sleep(0.3)
                    child.send_signal(signal.SIGKILL)
                    killed.append(child.pid)
                    return
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    found = {done.id: done.content for done in run_in_processes(cells, 2)}
    thread.join()
    assert killed
    assert found == by_itself(cells)


def test_an_address_at_which_nobody_listens_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whatever Ray would do there is not asked for.
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(shutdown=lambda: None))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "127.0.0.1:99999"):
        with pytest.raises(SweepError) as found:
            next(run_on_ray(grid(), address))
        assert found.value.code == "ray_unreachable"
        assert found.value.params["why"]


def test_ray_survives_the_loss_of_a_node(tmp_path: Path) -> None:
    # Where it was installed for the sake of this test, its absence is no reason to leave it out.
    if os.environ.get("PAGEDKV_NEED_RAY"):
        import ray
    else:
        ray = pytest.importorskip("ray", reason="ray is not installed: make ray")
    from ray.cluster_utils import Cluster

    trace = tmp_path / "t.csv"
    rows = "".join(f"{n},{20 + n % 90},{5 + n % 70}\n" for n in range(400))
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows, encoding="utf-8")
    cells = grid(trace=str(trace), policy="paged", block_size=[1, 8, 16], requests=[400, 399, 398])
    # Long ones, so that a node that is lost was at work.
    cells += grid(requests=2000, seed=list(range(8)), policy="paged", block_size=4)
    before, heard = signal.getsignal(signal.SIGTERM), list[int]()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        first, _ = (cluster.add_node(num_cpus=1) for _ in range(2))
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        found: dict[str, bytes] = {}
        nodes: set[str] = set()
        lost_at = None
        for done in run_on_ray(cells, cluster.address):
            nodes.add(done.by)
            found[done.id] = done.content
            if lost_at is None and len(nodes) == 2:
                cluster.remove_node(first, allow_graceful=False)
                lost_at = len(found)
            signal.raise_signal(signal.SIGTERM)  # it is the sweep's to answer, not Ray's
        signal.raise_signal(signal.SIGTERM)
    finally:
        ray.shutdown()
        cluster.shutdown()
        signal.signal(signal.SIGTERM, before)
    assert len(heard) == len(found) + 1
    assert lost_at is not None
    assert lost_at < len(cells) - 4
    assert found == by_itself(cells)
