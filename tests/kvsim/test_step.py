"""The contract: a plan survives JSON, and what is no plan is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.step import (
    BlockOp,
    Chunk,
    Finish,
    FinishReason,
    OpKind,
    PreemptionCause,
    StepPlan,
    Wait,
    WaitReason,
    plan_from_json,
    plan_to_json,
)

COUNTS = st.integers(0, 10**6)
IDS = st.lists(COUNTS, max_size=4).map(tuple)
OPS = st.builds(
    BlockOp, st.sampled_from(OpKind), st.one_of(st.none(), COUNTS), blocks=IDS, sources=IDS,
    cached=IDS, tokens=COUNTS,
)  # fmt: skip
CHUNKS = st.builds(Chunk, COUNTS, COUNTS, COUNTS, st.booleans(), COUNTS)
FINISHES = st.builds(Finish, COUNTS, st.sampled_from(FinishReason))
PLANS = st.builds(
    StepPlan,
    step=COUNTS,
    ops=st.lists(OPS, max_size=4).map(tuple),
    chunks=st.lists(CHUNKS, max_size=4).map(tuple),
    preempted=IDS,
    finished=st.lists(FINISHES, max_size=3).map(tuple),
    waiting=COUNTS,
    causes=st.lists(st.builds(PreemptionCause, COUNTS, COUNTS, COUNTS, COUNTS), max_size=3).map(
        tuple
    ),
    wait=st.none() | st.builds(Wait, COUNTS, st.sampled_from(WaitReason), COUNTS, COUNTS),
)
WHOLE: dict[str, Any] = {
    "step": 3,
    "finished": [[1, "stop"]],
    "preempted": [2],
    "ops": [["allocate", 0, [4, 5]], ["copy", 0, [4], [5]]],
    "chunks": [[0, 8, 2, 1], [3, 0, 2, 0, 6]],
    "waiting": 1,
    "causes": [[0, 2, 1, 14]],
    "wait": [2, "prompt", 3, 1],
}


@given(PLANS)
def test_a_plan_is_the_same_after_json(plan: StepPlan) -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_an_empty_plan_is_its_step_number_alone() -> None:
    assert plan_to_json(StepPlan(5)) == {"step": 5}
    assert plan_from_json({"step": 5}) == StepPlan(5)


def test_a_plan_is_written_as_short_rows() -> None:
    plan = plan_from_json(WHOLE)
    assert plan.finished == (Finish(1, FinishReason.STOP),)
    assert plan.ops[1] == BlockOp(OpKind.COPY, 0, (4,), (5,))
    assert plan.chunks == (Chunk(0, 8, 2, samples=True), Chunk(3, 0, 2, False, padding=6))
    assert plan_to_json(plan) == WHOLE


def test_tokens_are_those_computed_without_fillers() -> None:
    assert plan_from_json(WHOLE).tokens == 4
    assert StepPlan(0).tokens == 0


@pytest.mark.parametrize(
    "change",
    [
        {"step": -1},
        {"step": "3"},
        {"step": 3.0},
        {"step": True},
        {"step": None},
        {"waiting": -1},
        {"waiting": None},
        {"preempted": [-1]},
        {"preempted": [None]},
        {"preempted": 7},
        {"finished": [[1]]},
        {"finished": [[1, "tired"]]},
        {"finished": [[-1, "stop"]]},
        {"finished": [[1, "stop", 2]]},
        {"finished": [1]},
        {"ops": [["allocate", 0]]},
        {"ops": [["steal", 0, [1]]]},
        {"ops": [["allocate", -1, [1]]]},
        {"ops": [["allocate", 0, 1]]},
        {"ops": [["allocate", 0, [1.5]]]},
        {"ops": [["copy", 0, [1], [-2]]]},
        {"ops": [7]},
        {"ops": None},
        {"chunks": [[0, 0, 1]]},
        {"chunks": [[0, -1, 1, 1]]},
        {"chunks": [[0, 0, "1", 1]]},
        {"chunks": [[0, 0, 1, 1, -4]]},
        {"chunks": [None]},
    ],
)
def test_a_bad_part_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a step plan"):
        plan_from_json({**WHOLE, **change})


def test_a_plan_without_its_step_is_refused() -> None:
    with pytest.raises(ValueError, match="step"):
        plan_from_json({"chunks": []})
