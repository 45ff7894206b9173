"""What is found in arms beside the paged one: slabs, a growing cache, engines that are not ours."""

from __future__ import annotations

import pytest
from made_up import SLABS, Figures, below, budget, cell, findings

from experiment.analysis.experiment_results import CellResult
from experiment.config.reading import load_config
from experiment.experiments.base import planned_cells
from experiment.experiments.registry import EXPERIMENTS
from experiment.files.shipped import CONFIGS
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import Message, arm_message, message


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
        name = arm_message(arm).model_dump()
        assert found[arm].verdict == verdict
        assert found[arm].text.params == {"fcfs": 12, "priority": urgent, "arm": name}
        assert below(found[arm])["priority.other_patient"] == {"fcfs": 11, "priority": 15}


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
    assert seen.verdict == verdict
    listed = Message.model_validate(seen.text.params["slabs"])
    for lang, comma in (("en", ", "), ("zh", "、")):
        shares = f"1.00 %{comma}{least * 100:.2f} %"
        assert Translator(lang).message(listed) == shares
    # Two cells each, of three slabs of 64 and of five blocks of 4.
    told = {"slabs_copied": 2 * 192, "paged_copied": 2 * 20}
    assert below(seen)[f"{name.replace('-', '_')}.slabs_copied"] == told
    paged = cell(0, {axis: 2}, paged={"saved": 0.3})
    assert "slabs" not in findings(name, paged)


def test_what_a_precision_brings_to_slabs_is_told_where_they_ran() -> None:
    def one(index: int, name: str, slabs: float, paged: float) -> CellResult:
        arms: dict[str, Figures] = {"slabs": {"running_mean": slabs}} if slabs else {}
        return cell(index, {"kv_dtype": name}, paged={"running_mean": paged}, **arms)

    seen = findings("quantised", one(0, "auto", 4, 8), one(1, "int8", 12, 14))["slabs"]
    told = {"own_slabs": 4, "other_slabs": 12, "own_paged": 8, "other_paged": 14}
    assert seen.text.params == {"kv_dtype": "int8", **told}
    assert "slabs" not in findings("quantised", one(0, "auto", 4, 8), one(1, "int8", 0, 14))


def test_what_a_precision_changes_names_its_arm_and_how_many_requests_there_were() -> None:
    """``running_mean`` of requests says nothing without how many there were to run."""
    figures: Figures = {
        "block_bytes": 64, "blocks": 8, "running_mean": 2.0, "preemptions": 0,
        "attention_error": 0.01, "logit_error": 0.02, "same_token": 1.0, "error_positions": 47,
        "tokens_per_s": [1, 2, 3],
    }  # fmt: skip
    smaller: Figures = {**figures, "block_bytes": 16}
    cells = [
        cell(0, {"kv_dtype": "auto"}, paged=figures),
        cell(1, {"kv_dtype": "int8"}, paged=smaller),
    ]
    digests = [_with_outputs(one, ["a", "b"]) for one in cells]
    seen = findings("quantised", *digests)
    for lang in LANGUAGES:
        t = Translator(lang)
        for name, finding in seen.items():
            assert t("arm_name.paged") in t.message(finding.whole), (lang, name)
    assert "of the run's 4 requests 2.0 ran" in Translator("en").message(seen["bytes"].whole)


def _quantised(steps: int, step_s: list[float], rates: list[float], preemptions: int) -> Figures:
    return {
        "attention_error": 0.01, "logit_error": 0.02, "same_token": 46 / 47,
        "error_positions": 47, "block_bytes": 64, "blocks": 8, "running_mean": 768 / steps,
        "preemptions": preemptions, "steps": steps, "step_s": step_s, "tokens_per_s": rates,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("step_s", "preemptions", "told"),
    [
        ([0.0023, 0.0024, 0.0025], 5, {"quantised.speed_step", "quantised.speed_fits"}),
        ([0.0023, 0.0024, 0.0025], 0, {"quantised.speed_step"}),
        ([0.0014, 0.0015, 0.0025], 5, set()),  # repeats overlap
        ([0.0009, 0.0010, 0.0011], 5, set()),
    ],
)
def test_a_precision_that_is_faster_by_room_alone_is_called_so(
    step_s: list[float], preemptions: int, told: set[str]
) -> None:
    """A step of it takes longer: it gains by how many run at a time."""
    own = _quantised(96, [0.0014, 0.0015, 0.0016], [100, 101, 102], preemptions)
    seen = findings(
        "quantised",
        cell(0, {"kv_dtype": "auto"}, paged=own),
        cell(1, {"kv_dtype": "int8"}, paged=_quantised(48, step_s, [124, 125, 126], 0)),
    )
    assert seen["speed"].verdict == "shown"
    below_it = below(seen["speed"])
    assert {key for key in below_it if key.startswith("quantised.")} == told
    if told:
        of = below_it["quantised.speed_step"]
        assert (of["own_steps"], of["other_steps"]) == (96, 48)
        assert (of["own_running_mean"], of["other_running_mean"]) == (8, 16)
        assert of["factor"] == pytest.approx(1.6)


def test_how_many_positions_an_error_rests_on_is_said() -> None:
    same = _quantised(96, [1, 1, 1], [1, 1, 1], 0)
    seen = findings(
        "quantised",
        cell(0, {"kv_dtype": "auto"}, paged=same),
        cell(1, {"kv_dtype": "int8"}, paged=same),
    )
    assert "46 of 47 positions of one prompt" in Translator("en").message(seen["error"].text)
    assert "47 个位置" in Translator("zh").message(seen["error"].text)


def _with_outputs(one: CellResult, outputs: list[str]) -> CellResult:
    arms = [arm.model_copy(update={"outputs": outputs}) for arm in one.arms]
    return one.model_copy(update={"arms": arms})


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
        assert ran.keys() == {"outputs", "recompute", "swap", arm}
        told = ran[arm].text.params
        assert (told["steps"], told["ample"], told["recomputed"]) == (179, 112, 42)
        assert told["time"]["key"] == "experiments.preemption.time_longer"
        same = below(ran[arm])["preemption.other_outputs"]
        cells = message("experiments.preemption.in_cell", cells=1).model_dump()
        assert same == {"equal": 1, "requests": 2, "outputs": 2, "cells": cells}


@pytest.mark.parametrize(
    ("seconds", "time"),
    [([2, 3, 4], "sooner"), ([12, 13, 14], "later"), ([8, 9, 12], "same"), ([2, 3], "few")],
)
def test_what_another_engine_finds_in_its_prefix_cache_is_told_where_it_ran(
    seconds: list[float], time: str
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
        told = ran[arm].text.params
        assert {name: told[name] for name in ("rows", "hits", "off", "on")} == {
            "rows": 25, "hits": 380, "off": 600, "on": 220,
        }  # fmt: skip
        assert f"prefix.other_{time}" in below(ran[arm])
        assert below(ran[arm])["prefix.other_outputs"] == {"equal": 1, "requests": 2}
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
    assert below(seen["at_once"])["capacity.at_once_growing"] == {"fits": 17}
    alone = findings("capacity", cell(0, {"requests": 24}, **arms))["at_once"]
    assert "capacity.at_once_growing" not in below(alone)
