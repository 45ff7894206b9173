"""What is found in arms beside the paged one: slabs, a growing cache, engines that are not ours."""

from __future__ import annotations

import pytest
from made_up import SLABS, Figures, beside, budget, cell, findings, sides, why

from experiment.analysis.experiment_results import CellResult
from experiment.config.reading import load_config
from experiment.experiments.base import planned_cells
from experiment.experiments.registry import EXPERIMENTS
from experiment.files.shipped import CONFIGS
from experiment.text.messages import message


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
    assert (seen.verdict, sides(seen)) == (verdict, {"2": 0.01, "4": least})
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


def test_a_precision_that_is_faster_by_room_alone_shows_its_steps() -> None:
    """A step of it takes longer: it gains by how many run at once."""

    def ran(steps: int, step_s: list[float], rates: list[float]) -> Figures:
        return {"running_mean": 768 / steps, "preemptions": 5, "steps": steps, "step_s": step_s,
                "tokens_per_s": rates}  # fmt: skip

    seen = findings(
        "quantised",
        cell(0, {"kv_dtype": "auto"}, paged=ran(96, [0.0014, 0.0015, 0.0016], [100, 101, 102])),
        cell(1, {"kv_dtype": "int8"}, paged=ran(48, [0.0023, 0.0024, 0.0025], [124, 125, 126])),
    )["speed"]
    assert (seen.verdict, sides(seen)) == ("shown", {"auto": 101, "int8": 125})
    assert sides(beside(seen)["steps"]) == {"auto": 96, "int8": 48}
    assert beside(seen)["step_s"].estimate == pytest.approx(1.6)


def test_what_giving_way_cost_another_engine_is_told_where_it_ran() -> None:
    def one(index: int, way: str, steps: int, again: int, arm: str) -> CellResult:
        figures: Figures = {
            "preemptions": int(again > 0), "recomputed": again, "steps": steps,
            "generate_s": [steps, steps + 1, steps + 2],
        }  # fmt: skip
        made = cell(index, {"block_size": 4, "preemption": way}, **{arm: figures})
        told = [each.model_copy(update={"outputs": ["a", way]}) for each in made.arms]
        return made.model_copy(update={"arms": told})

    for arm in ("transformers_paged", "vllm"):
        ran = findings(
            "preemption", one(0, "ample", 112, 0, arm), one(1, "recompute", 179, 42, arm)
        )
        assert ran.keys() == {"outputs", "recompute", "swap", "first_chunk", arm}
        assert sides(ran[arm]) == {"preemptions": 1, "recomputed": 42}
        rows = beside(ran[arm])
        assert sides(rows["steps"]) == {"recompute": 179, "ample": 112}
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
        told = [each.model_copy(update={"outputs": ["a", caching]}) for each in made.arms]
        return made.model_copy(update={"arms": told})

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


def test_each_arm_gives_way_in_cells_that_it_has() -> None:
    config = load_config(CONFIGS / "preemption.toml", {})
    cells = EXPERIMENTS["preemption"].cells(config)
    arms = {tuple(each.values.values()): each.arms for each in cells}
    assert arms[64, "ample"] == arms[64, "recompute"] == ("paged", "transformers_paged", "vllm")
    assert arms[16, "ample"] == arms[16, "recompute"] == ("paged", "transformers_paged")
    assert arms[16, "swap"] == arms[64, "swap"] == ("paged",)
    for each in cells:  # of each other one it is said why not
        assert set(each.arms or ()) ^ set(each.absent) == set(config.arm_names)
    absent = {tuple(each.values.values()): each.absent for each in cells}
    assert absent[64, "ample"] == {}
    assert absent[16, "ample"]["vllm"].key == "skip.vllm_blocks"
    assert {why.key for why in absent[64, "swap"].values()} == {"skip.no_swap"}
    assert arms[64, "first_chunk"] == ("paged", "vllm")


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


def test_what_a_growing_cache_has_room_for_is_said_though_it_runs_one_at_a_time() -> None:
    arms = {"slabs": SLABS, "paged": budget(8.0, [140, 141, 142])}
    growing: Figures = {"fits": 17, "running_mean": 1.0}
    seen = findings("capacity", cell(0, {"requests": 24}, contiguous__growing=growing, **arms))
    assert sides(beside(seen["at_once"])["contiguous_growing"]) == {"fits": 17}
