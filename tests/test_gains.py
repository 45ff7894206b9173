"""The ladder of arms: what each step is called, and what it is called when a rung is missing."""

from __future__ import annotations

from typing import Any

import pytest
from event_makers import BATCH, record, whole_run

from experiment.analysis.arm_results import arm_results
from experiment.analysis.conclusions import evaluate
from experiment.analysis.gains import disturbed, gains, withhold_disturbed_factors
from experiment.analysis.results import ArmResult, Gain
from experiment.analysis.throughput_claim import throughput
from experiment.machine.background_load import BUSY_CORES
from experiment.text.messages import message

PACKED = {"layers": 9, "kept": 0, "fused": 2, "few_rows": 9, "embeddings": 1, "gelus": 0,
          "bytes": 4096, "reason": None}  # fmt: skip
PLAIN = dict.fromkeys(PACKED, 0) | {"reason": message("packing.off").model_dump()}


def finished_arm(name: str, rate: float | None, packing: dict[str, Any] | None = None) -> ArmResult:
    some = arm_results(record(whole_run()))[0]
    assert (some.arm, some.status) == (BATCH, "finished")
    return some.model_copy(update={"arm": name, "tokens_per_s": rate, "packing": packing})


def steps(*rates: tuple[str, float | None]) -> list[tuple[str, str | None, float | None]]:
    found: list[Gain] = gains([finished_arm(name, rate) for name, rate in rates])
    return [(gain.arm, gain.step, gain.factor) for gain in found]


def test_only_the_step_from_slabs_to_blocks_is_called_paging() -> None:
    whole = (
        ("contiguous.sequential", 10.0), ("contiguous.batch", 30.0), ("contiguous.growing", 12.0),
        ("slabs", 60.0), ("paged", 90.0), ("vllm", 180.0),
    )  # fmt: skip
    assert steps(*whole) == [
        ("contiguous.sequential", None, None),
        ("contiguous.batch", "batching", 3.0),
        ("slabs", "engine", 2.0),
        ("paged", "paging", 1.5),
        ("vllm", "other_engine", 2.0),
    ]


@pytest.mark.parametrize(
    ("slabs", "paged", "found"),
    [
        (PLAIN, PLAIN, [("engine", False), ("paging", False)]),
        (PACKED, PACKED, [("engine", True), ("paging", False)]),
        (PACKED, PLAIN, [("engine", True), ("mixed", True)]),
        (PACKED, PACKED | {"few_rows": 0}, [("engine", True), ("mixed", True)]),
        (None, None, [("engine", None), ("paging", None)]),
    ],
)
def test_matrix_products_are_named_by_what_each_arm_packed(
    slabs: dict[str, Any] | None, paged: dict[str, Any] | None, found: list[tuple[str, bool | None]]
) -> None:
    """Between slabs and blocks they are the same, or the step is none of paging alone."""
    arms = [
        finished_arm(BATCH, 10.0), finished_arm("slabs", 20.0, slabs),
        finished_arm("paged", 40.0, paged), finished_arm("vllm", 80.0),
    ]  # fmt: skip
    _, *above, other = gains(arms)
    assert [(gain.step, gain.products_differ) for gain in above] == found
    assert other.products_differ is (None if paged is None else True)
    apart = any("gains.products" in gain.differing for gain in above)
    assert apart is any(differ is True for _, differ in found)
    claim = throughput(evaluate(record(whole_run())).model_copy(update={"arms": arms}))
    assert (claim.text.key == "claim.throughput.unlike") is (found[-1][0] == "mixed")


@pytest.mark.parametrize("missing", ["slabs", "paged"])
def test_a_step_over_a_missing_rung_is_called_mixed(missing: str) -> None:
    whole = (("contiguous.batch", 30.0), ("slabs", 60.0), ("paged", 90.0), ("vllm", 180.0))
    found = steps(*(rung for rung in whole if rung[0] != missing))
    assert "mixed" in {step for _, step, _ in found}
    assert "paging" not in {step for _, step, _ in found}


def test_the_order_of_the_run_does_not_matter_and_an_arm_without_a_rate_is_no_rung() -> None:
    assert steps(("paged", 9.0), ("slabs", 6.0)) == [
        ("slabs", None, None),
        ("paged", "paging", 1.5),
    ]
    assert steps(("slabs", None), ("paged", 9.0)) == []


@pytest.mark.parametrize(
    ("cores", "before", "expected"),
    [
        (None, None, []), (0.0, None, []), (BUSY_CORES, None, []), (0.3, None, ["paged"]),
        # What was seen before the run decides where no sample says what went on while it generated.
        (None, 0.3, ["paged", "none"]), (0.1, 0.3, ["none"]),
    ],
)  # fmt: skip
def test_an_arm_beside_which_others_kept_a_core_busy_is_disturbed(
    cores: float | None, before: float | None, expected: list[str]
) -> None:
    arm = finished_arm("paged", 9.0)
    assert arm.watch is not None
    watched = arm.watch.model_copy(update={"others_cores": cores})
    one = arm.model_copy(update={"watch": watched})
    none = arm.model_copy(update={"arm": "none", "watch": None})
    assert disturbed([one, none], {"load": {"others_cores": before}}) == expected
    if before is None:
        assert disturbed([one, none], None) == expected


def test_a_factor_of_an_arm_that_began_on_a_busy_machine_is_not_told() -> None:
    """Of two arms neither may be; the rate of each stands as it is."""
    rates = {"contiguous.batch": 30.0, "slabs": 60.0, "paged": 90.0, "vllm": 180.0}
    found = gains([finished_arm(*rung) for rung in rates.items()])
    why = message("experiments.busy")
    for busy, gone in (
        ([], []),
        (["contiguous.batch"], ["slabs"]),
        (["slabs"], ["slabs", "paged"]),
        (["vllm"], ["vllm"]),
        (["contiguous.growing"], []),
    ):
        told = withhold_disturbed_factors(found, busy, why)
        assert [gain.arm for gain in told if gain.reason == why] == gone
        for gain, before in zip(told, found, strict=True):
            assert gain.factor == (None if gain.arm in gone else before.factor)
            assert (gain.tokens_per_s, gain.step) == (before.tokens_per_s, before.step)
