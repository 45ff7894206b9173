"""What experiments measure in addition to requests, and in arms other than the paged one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_process import run, tiny_config
from made_up import Figures, beside, cell, findings, sides, why, with_outputs

from experiment.analysis.experiment_results import CellResult
from experiment.config.reading import load_config
from experiment.engine.arena import Arena, ArenaRequest, run_arena
from experiment.engine.attention.kernels import KERNELS
from experiment.engine.attention.lookup import layouts, queries
from experiment.experiments.base import planned_cells
from experiment.experiments.registry import EXPERIMENTS
from experiment.files.shipped import CONFIGS
from experiment.text.messages import message
from kvsim.latency.roofline import LinearLatency
from kvsim.sim.arena import FITS, Fit, Pieces, replay_arena
from kvsim.sim.config import SimConfig, SimulationError
from kvsim.sim.simulator import simulate
from kvsim.sizing.geometry import KVGeometry
from kvsim.traces.types import NANOSECONDS, TraceInfo, TraceRequest

CPU = torch.device("cpu")
SLOT = 1024


def test_a_request_waits_for_a_hole_though_enough_is_free() -> None:
    # 4 + 4 + 4 slots fill the arena; the first and the last end, and 6 in a row are nowhere.
    requests = [ArenaRequest(4, 1), ArenaRequest(2, 3), ArenaRequest(4, 1), ArenaRequest(6, 1)]
    holes = run_arena(requests, Arena(12, 8, CPU), Pieces(12, "first_fit"), max_running=8)
    assert (holes.first_step, holes.free, holes.largest, holes.needed) == (1, 8, 4, 6)
    assert holes.refused_steps == 2
    assert (holes.steps, holes.running_peak) == (4, 3)


def test_two_requests_in_the_same_memory_are_noticed() -> None:
    arena = Arena(8, 4, CPU)
    arena.write(0, 4, 1)
    with pytest.raises(RuntimeError, match="hold"):
        arena.write(3, 2, 1)


def test_all_layouts_hold_the_same_keys_and_values() -> None:
    shape = KVGeometry(1, 2, 8, 4)
    given = layouts(shape, 3, 21, 4, torch.empty(0))
    q = queries(3, 4, given[0].kv)
    outs = [KERNELS["reference"](q, each.kv, each.inputs, 0.3) for each in given]
    torch.testing.assert_close(outs[1], outs[0])
    torch.testing.assert_close(outs[2], outs[0])
    tables = [each.inputs.sequences[0].table.tolist() for each in given]
    assert tables[0] == [0]
    assert tables[1] == [0, 1, 2, 3, 4, 5]
    assert sorted(tables[2]) != tables[2]


def test_lookup_and_holes_on_the_real_arm(tmp_path: Path) -> None:
    lookup = tiny_config(
        "lookup",
        experiment__values=[32],
        experiment__options={"requests": 2, "new": 3},
    )
    ran = run(lookup, tmp_path / "lookup")
    assert not ran.result.problems
    assert {why(f) for f in ran.result.findings if f.verdict == "untested"} == {"few"}
    for name in ("lookup_contiguous_s", "lookup_ordered_s", "lookup_scattered_s"):
        assert (ran.figure(ran.cell(context=32), "paged", name).value or 0) > 0
    pattern = [[10, 8], [38, 15], [5, 23], [50, 5], [18, 13], [8, 4]]
    holes = tiny_config(
        "holes",
        experiment__values=[12],
        experiment__options={"every": 1, "lengths": pattern},
        cache__max_length=128,
        cache__block_size=4,
        cache__budget=128 * SLOT,
    )
    ran = run(holes, tmp_path / "holes")
    assert not ran.result.problems
    assert ran.verdicts()["refused"] == "shown"
    cell = ran.cell(requests=12)
    free, largest, needed = (
        ran.figure(cell, "paged", f"first_fit_{name}").value or 0
        for name in ("free", "largest", "needed")
    )
    assert largest < needed <= free
    arenas = [name for name in cell.arms[0].figures if name.startswith(FITS)]
    assert len(arenas) == 12
    for name in ("steps", *arenas):
        assert ran.figure(cell, "paged", name).exact, name


def test_a_lookup_that_cannot_be_timed_gives_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.arms.micro_benchmarks.time_lookup", lambda *arguments: None)
    config = tiny_config(
        "lookup", experiment__values=[32], experiment__options={"requests": 2, "new": 3}
    )
    ran = run(config, tmp_path)
    assert not ran.result.problems
    assert set(ran.verdicts().values()) == {"untested"}
    assert ran.figure(ran.cell(context=32), "paged", "lookup_of_step").value is None


REQUESTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 25), st.integers(0, 60)), min_size=1, max_size=24
)


@pytest.mark.parametrize("fit", FITS)
@given(drawn=REQUESTS, slots=st.integers(64, 130), max_running=st.integers(1, 12))
def test_arithmetic_foretells_what_is_counted_from_the_bytes_of_an_arena(
    fit: Fit, drawn: list[tuple[int, int, int]], slots: int, max_running: int
) -> None:
    """Bytes of a device, and ends by a calendar: nothing is shared but the allocator."""
    lengths = [ArenaRequest(*one) for one in sorted(drawn, key=lambda one: one[2])]
    try:
        seen = run_arena(lengths, Arena(slots, 4, CPU), Pieces(slots, fit), max_running)
    except ValueError:  # one is longer than any hole that there could be
        with pytest.raises(SimulationError):
            replay_arena(_Stream(lengths), slots, max_running, fit)
        return
    said = replay_arena(_Stream(lengths), slots, max_running, fit)
    assert said == seen


def test_arithmetic_says_of_the_buddy_what_the_whole_simulator_says() -> None:
    lengths = [ArenaRequest(30 + 7 * n % 90, 10 + 13 * n % 40, arrival=2 * n) for n in range(40)]
    config = SimConfig(
        policy="oracle", budget_bytes=512, slot_bytes=1, max_length=512, max_num_seqs=64,
        max_num_batched_tokens=100_000, latency=LinearLatency(fixed_s=1.0),
    )  # fmt: skip
    simulated, said = (
        simulate(_Stream(lengths), config),
        replay_arena(_Stream(lengths), 512, 64, "buddy"),
    )
    assert said.steps == round(simulated.busy_s)
    assert said.running_peak == simulated.running.max
    tokens = sum(one.new for one in lengths)
    assert tokens / said.steps == pytest.approx(simulated.running.busy_mean)
    assert said.refused_steps > 0


class _Stream:
    """Requests as the simulator reads them."""

    def __init__(self, lengths: list[ArenaRequest]) -> None:
        self._lengths = lengths
        self.info = TraceInfo("test", "generated", "declared", None, "none", None, "none")

    def __iter__(self):  # type: ignore[no-untyped-def]
        for index, one in enumerate(self._lengths):
            yield TraceRequest(index, round(one.arrival * NANOSECONDS), one.prompt, one.new)


@pytest.mark.parametrize("arm", ["slabs", "vllm"])
@pytest.mark.parametrize(("urgent", "verdict"), [(3.5, "shown"), (12, "not_shown"), (None, None)])
def test_what_another_arm_does_with_priorities_is_told_where_it_ran(
    arm: str, urgent: float | None, verdict: str | None
) -> None:
    def steps(urgent: float, patient: float) -> Figures:
        return {"urgent_first_steps": urgent, "patient_first_steps": patient}

    ours = [cell(0, {"policy": "fcfs"}, **{"paged": steps(9, 9), arm: steps(12, 11)})]
    arms = {"paged": steps(2, 14)} | ({arm: steps(urgent, 15)} if urgent else {})
    found = findings("priority", *ours, cell(1, {"policy": "priority"}, **arms))
    assert found["urgent"].verdict == "shown"
    assert {"slabs", "vllm"} & found.keys() == ({arm} if verdict is not None else set())
    if verdict is not None:
        assert found[arm].verdict == verdict
        assert sides(found[arm]) == {"fcfs": 12, "priority": urgent}
        patient = beside(found[arm])["patient_first_steps"]
        assert sides(patient) == {"fcfs": 11, "priority": 15}


@pytest.mark.parametrize(("least", "verdict"), [(0.02, "shown"), (0.3, "not_shown")])
@pytest.mark.parametrize(
    ("name", "axis"), [("parallel-sampling", "samples"), ("beam", "beam_width")]
)
def test_what_slabs_share_is_told_where_they_ran(
    name: str, axis: str, least: float, verdict: str
) -> None:
    def one(index: int, width: int, slabs: float) -> CellResult:
        return cell(
            index, {axis: width},
            slabs={"saved": slabs, "copied_slots": 192}, paged={"saved": 0.3, "copied_slots": 20},
        )  # fmt: skip

    seen = findings(name, one(0, 2, 0.01), one(1, 4, least))["slabs"]
    assert (seen.verdict, sides(seen)) == (verdict, {"2": 0.3, "4": 0.3})
    assert sides(beside(seen)["pair saved slabs"]) == {"2": 0.01, "4": least}
    copied = [sides(beside(seen)[f"pair copied_slots {arm}"]) for arm in ("slabs", "paged")]
    assert copied == [{"2": 192, "4": 192}, {"2": 20, "4": 20}]
    paged = cell(0, {axis: 2}, paged={"saved": 0.3})
    assert "slabs" not in findings(name, paged)


def test_what_a_precision_brings_to_slabs_is_told_where_they_ran() -> None:
    def one(index: int, name: str, slabs: float, paged: float) -> CellResult:
        arms: dict[str, Figures] = {"slabs": {"running_mean": slabs}} if slabs else {}
        return cell(index, {"kv_dtype": name}, paged={"running_mean": paged}, **arms)

    seen = findings("quantised", one(0, "auto", 4, 8), one(1, "int8", 12, 14))["slabs"]
    assert sides(seen) == {"auto": 4, "int8": 12}
    assert sides(beside(seen)["running_mean"]) == {"auto": 8, "int8": 14}
    assert "slabs" not in findings("quantised", one(0, "auto", 4, 8), one(1, "int8", 0, 14))


def test_what_giving_way_cost_another_engine_is_told_where_it_ran() -> None:
    def one(index: int, way: str, steps: int, again: int, arm: str) -> CellResult:
        figures: Figures = {
            "preemptions": int(again > 0), "recomputed": again, "steps": steps,
            "generate_s": [steps, steps + 1, steps + 2],
        }  # fmt: skip
        made = cell(index, {"block_size": 4, "preemption": way}, **{arm: figures})
        return with_outputs(made, ["a", way])

    for arm in ("transformers_paged", "vllm"):
        ran = findings(
            "preemption", one(0, "ample", 112, 0, arm), one(1, "recompute", 179, 42, arm)
        )
        assert ran.keys() == {"outputs", "recompute", "swap", "first_chunk", arm}
        assert sides(ran[arm]) == {"recompute": 179, "ample": 112}
        rows = beside(ran[arm])
        assert {"preemptions": 1, "recomputed": 42} in [sides(row) for row in rows.values()]
        assert (rows["generate_s"].estimate, why(rows["generate_s"])) == (180 / 113, None)
        assert (rows["same_outputs"].estimate, rows["same_outputs"].n) == (1, 2)


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [([2, 3, 4], None), ([12, 13, 14], None), ([8, 9, 12], "overlap"), ([2, 3], "few")],
)
def test_what_another_engine_finds_in_its_prefix_cache_is_told_where_it_ran(
    seconds: list[float], reason: str | None
) -> None:
    def one(index: int, caching: str, arm: str, **figures: float | list[float]) -> CellResult:
        made = cell(index, {"rows": 25, "prefix_cache": caching}, **{arm: figures})
        return with_outputs(made, ["a", caching])

    for arm in ("transformers_paged", "vllm"):
        off = one(0, "off", arm, computed=600, later_ttft_s=[9, 10, 11])
        on = one(1, "on", arm, computed=220, prefix_hits=380, later_ttft_s=seconds)
        ran = findings("prefix", off, on)
        assert ran.keys() == {"later", "tokens", "whole", "outputs", arm}
        assert sides(ran[arm]) == {"off": 600, "on": 220}
        rows = beside(ran[arm])
        assert sides(rows[arm]) == {"prefix_hits": 380}
        assert why(rows["later_ttft_s"]) == reason
        assert (rows["same_outputs"].estimate, rows["same_outputs"].n) == (1, 2)
        unknown = one(1, "on", arm, computed=220, later_ttft_s=seconds)
        assert arm not in findings("prefix", off, unknown)


@pytest.mark.parametrize("name", ["preemption", "block-size"])
def test_on_a_gpu_vllm_has_the_usual_blocks_of_16_and_none_of_8(name: str) -> None:
    told = {"experiment": {"values": [8, 16, 64]}, "run": {"arms": ["paged", "vllm"]}}
    config = load_config(CONFIGS / f"{name}.toml", told)
    for device, multiple in (("cuda", 16), ("cpu", 32)):
        why = message("skip.vllm_blocks", multiple=multiple)
        for each in planned_cells(EXPERIMENTS[name], config, device):
            size = int(each.values["block_size"])
            swaps = each.values.get("preemption") == "swap"
            assert (each.absent.get("vllm") == why) is (size % multiple != 0 and not swaps), each
