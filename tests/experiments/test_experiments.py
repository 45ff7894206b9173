"""Each experiment at tiny size on the real arms: counts foretold, findings as they must be."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import run, tiny_config
from made_up import sides

from experiment.experiments.base import drawn_lengths
from experiment.report.page.parts import conditions
from experiment.text.messages import Message, message

FORKS = "transformers_paged"
SLOT = 1024  # bytes of a token's K and V in the tiny model


def test_block_size_wastes_nothing_at_one_and_shortens_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDKV_VLLM_PYTHON", str(tmp_path / "none"))
    config = tiny_config(
        "block-size",
        experiment__values=[1, 16, 32],
        workload__lengths=[[5, 4], [17, 6], [30, 3]],
        cache__max_length=64,
        run__arms=["paged", "transformers_paged", "vllm"],
    )
    ran = run(config, tmp_path / "run")
    ran.assert_sound(skipped=("transformers_paged", "vllm"))
    assert ran.verdicts()["waste"] == "shown"
    assert ran.figure(ran.cell(block_size=1), "paged", "waste").value == 0
    entries = [ran.figure(cell, "paged", "table_entries").value for cell in ran.result.cells]
    assert entries == sorted(entries, reverse=True)  # type: ignore[type-var]
    # Of each size that another engine does not have it is said why.
    why = {
        (c.block_size, a.arm): a.reason.key for c in ran.result.cells for a in c.arms if a.reason
    }
    assert why.pop((1, "transformers_paged")) == "skip.transformers_block"
    assert why.pop((1, "vllm")) == why.pop((16, "vllm")) == "skip.vllm_blocks"
    assert why.keys() == {(32, "vllm")}
    other = ran.finding("transformers_paged")
    theirs, ours = sides(other), sides(other.beside[0])
    assert theirs["16"] == ran.figure(ran.result.cells[1], "transformers_paged", "waste").value
    assert theirs == ours
    assert (theirs["32"] or 0) > (theirs["16"] or 0) > 0


def test_lengths_says_where_paging_gains_nothing(tmp_path: Path) -> None:
    config = tiny_config(
        "lengths",
        experiment__options={
            "total": 256, "short": [[5, 3]], "mixed": [[5, 3], [20, 12]], "long": [[56, 8]],
        },
        cache__max_length=64,
        cache__budget=4 * 64 * SLOT,
        cache__block_size=8,
        run__arms=["slabs", "paged"],
    )  # fmt: skip
    ran = run(config, tmp_path / "run")
    ran.assert_sound()
    verdicts = ran.verdicts()
    assert verdicts.pop("shapes") is None
    assert verdicts == {"short": "shown", "mixed": "shown", "long": "not_shown"}
    short = ran.cell(shape="short")
    assert short.requests == 32
    assert ran.figure(short, "slabs", "running_peak").value == 4
    assert ran.figure(short, "paged", "running_peak").value == 32


def test_parallel_sampling_saves_what_the_formula_says(tmp_path: Path) -> None:
    draw = {"workload": "alpaca-like", "requests": 4, "seed": 0, "max_length": 128}
    config = tiny_config(
        "parallel-sampling",
        experiment__values=[2, 3],
        experiment__options={"draw": draw},
        cache__block_size=4,
        cache__max_length=128,
        run__arms=["slabs", "paged", FORKS],
    )
    ran = run(config, tmp_path / "run")
    ran.assert_sound()
    verdicts = ran.verdicts()
    assert verdicts["formula"] == verdicts["slabs"] == "shown"
    # Transformers parts samples before the last token: what is not full then is copied.
    uneven = sum((prompt - 1) % 4 > 0 for prompt, _ in drawn_lengths(config))
    copied = []
    for cell in ran.result.cells:
        assert ran.figure(cell, "paged", "copied_slots").value
        assert ran.figure(cell, "paged", "shared_slots").value
        copied.append((cell.values["samples"] - 1) * uneven * 4)
        assert ran.figure(cell, FORKS, "copied_slots").value == copied[-1] > 0
        # The arms' blocks differ in size, so what stands in one row is counted in slots.
        sizes = [ran.figure(cell, arm, "block_slots").value for arm in ("slabs", "paged")]
        assert sizes == [cell.max_length, 4]
        slots = [ran.figure(cell, arm, "usable_slots").value for arm in ("slabs", "paged")]
        assert slots[0] == slots[1] // sizes[0] * sizes[0]
        for arm in ("slabs", "paged"):
            held, apart = (
                ran.figure(cell, arm, name).value for name in ("held_slots", "unshared_slots")
            )
            assert ran.figure(cell, arm, "saved").value == pytest.approx(1 - held / apart)
        saved = [ran.figure(cell, arm, "saved").value for arm in (FORKS, "paged")]
        assert saved[0] == pytest.approx(saved[1], abs=0.05)
    counts = conditions(ran.shown)
    keys = {value.key: value.params for value in counts if isinstance(value, Message)}
    assert "report.subject.requests" not in keys
    samples = keys["report.subject.samples"]
    assert samples["n"] == 4 * samples["each"]
    assert list(sides(ran.finding(FORKS).beside[1]).values()) == copied


@pytest.mark.parametrize("swap_space", [0, 64 * SLOT])
def test_preemption_counts_and_outputs(tmp_path: Path, swap_space: int) -> None:
    config = tiny_config(
        "preemption",
        experiment__values=[4],
        workload__lengths=[[9, 12], [14, 12], [6, 12]],
        cache__max_length=32,
        cache__budget=44 * SLOT,
        engine__swap_space=swap_space,
    )
    ran = run(config, tmp_path / "run")
    ran.assert_sound()
    ways = ("ample", "recompute", "swap", "first_chunk")
    cells = {way: ran.cell(preemption=way) for way in ways}

    def counts(figure: str) -> list[int]:
        return [int(ran.figure(one, "paged", figure).value or 0) for one in cells.values()]

    ample, recompute, swap, first_chunk = counts("preemptions")
    assert (ample, recompute > 0, swap > 0, first_chunk >= recompute) == (0, True, True, True)
    assert [bool(n) for n in counts("recomputed")] == [False, True, not swap_space, True]
    assert [bool(n) for n in counts("swapped_blocks")] == [False, False, bool(swap_space), False]
    assert ran.verdicts()["outputs"] == "shown"
    more, *budgets = counts("budget_bytes")
    assert budgets == [44 * SLOT] * 3 < [more] * 3
    assert counts("usable_blocks")[1:] == [44 // 4] * 3


def test_quantised_counts_blocks_and_measures_the_error(tmp_path: Path) -> None:
    config = tiny_config(
        "quantised",
        workload__lengths=[[20, 6], [30, 6], [12, 6], [25, 6]],
        cache__max_length=64,
        cache__budget=64 * SLOT,
    )
    ran = run(config, tmp_path / "run")
    own, int8, fp8 = ran.result.cells
    assert not ran.result.problems
    assert [arm.reason and arm.reason.key for arm in fp8.arms] == ["error.kv_dtype.cpu"]
    assert ran.verdicts()["bytes"] == "shown"
    assert ran.figure(own, "paged", "blocks").value == 4
    assert ran.figure(int8, "paged", "blocks").exact
    assert (ran.figure(int8, "paged", "blocks").value or 0) > 8
    assert 0 < (ran.figure(int8, "paged", "attention_error").value or 0) < 0.1
    missing = ran.figure(own, "paged", "attention_error")
    assert (missing.value, missing.reason) == (None, message("experiments.reason.own_precision"))


def test_context_says_how_long_one_may_be_beside_others(tmp_path: Path) -> None:
    config = tiny_config(
        "context",
        model__name="tiny-qwen2",
        experiment__values=[32, 128, 184, 400],
        experiment__options={"new": 4, "others": [[12, 4], [12, 4]]},
        cache__block_size=8,
        cache__budget=192 * 512,
        run__arms=["contiguous.growing", "slabs", "paged", "transformers_paged"],
    )
    ran = run(config, tmp_path / "run")
    assert not ran.result.problems
    alone = {arm.arm: arm.reason for arm in ran.cell(context=184).arms}
    assert alone["contiguous.growing"] is alone["slabs"] is alone["paged"] is None
    # It keeps two of the 24 blocks for itself; a run of the other arms is whole all the same.
    why = message("error.transformers_paged_small", blocks=22, needed=23, tokens=184)
    assert alone["transformers_paged"] == why
    together = ran.finding("together")
    assert (together.verdict, sides(together)) == ("shown", {"slabs": 32, "paged": 128})
    too_long = ran.cell(context=400)
    # Nothing that has a budget goes beyond it, whatever it reserves beforehand.
    assert [arm.reason.key for arm in too_long.arms if arm.reason] == [
        "error.workload.no_growth",
        "error.workload.no_slab",
        "error.workload.no_blocks",
        "error.transformers_paged_small",
    ]


def test_beams_share_blocks_and_are_planned_anew(tmp_path: Path) -> None:
    draw = {"workload": "alpaca-like", "requests": 3, "seed": 0, "max_length": 96}
    config = tiny_config(
        "beam",
        experiment__values=[2, 3],
        experiment__options={"draw": draw},
        cache__block_size=4,
        cache__max_length=96,
        run__arms=["contiguous.batch", "slabs", "paged"],
    )
    ran = run(config, tmp_path / "run")
    assert not ran.result.problems
    verdicts = ran.verdicts()
    assert verdicts["plans"] == verdicts["slabs"] == "shown"
    for cell in ran.result.cells:
        batch, slabs, paged = cell.arms
        assert batch.status == "skipped"
        assert slabs.outputs == paged.outputs
        saved = ran.figure(cell, "paged", "saved")
        assert 0 < (saved.value or 0) < 1
        assert (saved.foretold, saved.unforetold is None) == (None, False)
        peak = ran.figure(cell, "paged", "running_peak").value
        assert peak == 3 * cell.values["beam_width"]
