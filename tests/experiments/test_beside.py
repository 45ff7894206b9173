"""What single experiments measure beside the requests: attention through tables, and holes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from in_process import run, tiny_config
from made_up import why

from experiment.engine.arena import Arena, ArenaRequest, Buddy, FirstFit, run_arena
from experiment.engine.attention.kernels import KERNELS
from experiment.engine.attention.lookup import layouts, queries
from experiment.text.messages import message
from kvsim.latency.roofline import LinearLatency
from kvsim.sim.arena import FITS, Fit, replay_arena
from kvsim.sim.config import SimConfig, SimulationError
from kvsim.sim.simulator import simulate
from kvsim.sizing.geometry import KVGeometry
from kvsim.traces.types import NANOSECONDS, TraceInfo, TraceRequest

CPU = torch.device("cpu")
SLOT = 1024


def test_a_request_waits_for_a_hole_though_enough_is_free() -> None:
    # 4 + 4 + 4 slots fill the arena; the first and the last end, and 6 in a row are nowhere.
    requests = [ArenaRequest(4, 1), ArenaRequest(2, 3), ArenaRequest(4, 1), ArenaRequest(6, 1)]
    holes = run_arena(requests, Arena(12, 8, CPU), FirstFit(12), max_running=8)
    assert (holes.first_step, holes.free, holes.largest, holes.needed) == (1, 8, 4, 6)
    assert holes.refused_steps == 2
    assert (holes.steps, holes.running_peak) == (4, 3)


def test_two_requests_in_the_same_memory_are_noticed() -> None:
    arena = Arena(8, 4, CPU)
    arena.write(0, 4, 1)
    with pytest.raises(RuntimeError, match="hold"):
        arena.write(3, 2, 1)


def test_the_buddy_arena_does_what_the_simulator_foretells() -> None:
    pattern = [(40, 30), (150, 60), (20, 90), (200, 20), (70, 50), (30, 15)]
    lengths = [ArenaRequest(*pattern[i % 6], arrival=2 * i) for i in range(18)]
    found = run_arena(lengths, Arena(512, 4, CPU), Buddy(512), max_running=64)
    config = SimConfig(
        policy="oracle", budget_bytes=512, slot_bytes=1, max_length=512, max_num_seqs=64,
        max_num_batched_tokens=100_000, latency=LinearLatency(fixed_s=1.0),
    )  # fmt: skip
    said = simulate(_Stream(lengths), config)
    assert found.steps == round(said.busy_s)
    assert found.running_peak == said.running.max
    assert found.refused_steps > 0
    assert said.states["hole"].peak_slots > 0


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


def test_where_no_hole_refuses_the_prediction_says_so_too(tmp_path: Path) -> None:
    holes = tiny_config(
        "holes", experiment__values=[2], experiment__options={"every": 1, "lengths": [[4, 4]]},
        cache__max_length=128, cache__block_size=4, cache__budget=128 * SLOT,
    )  # fmt: skip
    ran = run(holes, tmp_path / "holes")
    assert not ran.result.problems
    first = ran.figure(ran.cell(requests=2), "paged", "first_fit_first_step")
    assert (first.value, first.foretold, first.exact) == (None, None, None)
    assert first.reason == first.unforetold == message("experiments.reason.no_hole")


REQUESTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 25), st.integers(0, 60)), min_size=1, max_size=24
)


@pytest.mark.parametrize("fit", FITS)
@given(drawn=REQUESTS, slots=st.integers(64, 130), max_running=st.integers(1, 12))
def test_arithmetic_foretells_what_is_counted_from_the_bytes_of_an_arena(
    fit: Fit, drawn: list[tuple[int, int, int]], slots: int, max_running: int
) -> None:
    """Bytes of a device, and ends by a calendar: nothing is shared but the buddy allocator."""
    lengths = [ArenaRequest(*one) for one in sorted(drawn, key=lambda one: one[2])]
    allocator = Buddy(slots) if fit == "buddy" else FirstFit(slots)
    try:
        seen = run_arena(lengths, Arena(slots, 4, CPU), allocator, max_running)
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
