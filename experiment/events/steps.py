"""Events of an arm's block pool and of its steps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator

from experiment.events.base import ArmEvent, Int, Name
from kvsim.core.step import StepPlan, plan_from_json, plan_to_json


class PoolReserved(ArmEvent):
    """The KV cache of an arm is reserved: its shape, and the bytes of its tensors.

    ``scale_bytes`` are bytes of a block in addition to its slots. ``kv_dtype`` is None if the cache
    has the model's dtype.
    """

    event: Literal["pool"] = "pool"
    blocks: Int
    block_size: Int
    slot_bytes: Int
    watermark_blocks: Int = 0
    elastic: bool = False
    engine_blocks: Int = 0
    tensor_bytes: Int | None
    budget_bytes: Int
    scale_bytes: Int = 0
    kv_dtype: Name | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, scales included."""
        return self.block_size * self.slot_bytes + self.scale_bytes

    @property
    def bytes_per_slot(self) -> float:
        """Bytes of a block divided by its number of slots."""
        return self.block_bytes / self.block_size


def _plan(value: Any) -> StepPlan:
    return value if isinstance(value, StepPlan) else plan_from_json(value)


# An object of rows; later versions append to a row or add a name.
LoggedPlan = Annotated[
    StepPlan, PlainValidator(_plan), PlainSerializer(plan_to_json, return_type=dict[str, Any])
]


class Step(ArmEvent):
    """A step was executed: ``plan``, encoded by :func:`kvsim.core.step.plan_to_json`.

    ``t_ns`` is the end of the step; ``t_ns - started_ns`` is its duration on the arm's clock. That
    clock pauses during measurements, so the wall-clock start is earlier by the pauses. The duration
    includes scheduling and finishing requests. ``written_slots`` is the number of written slots in
    the poisoned tensors, None if not counted.
    """

    event: Literal["step"] = "step"
    plan: LoggedPlan
    started_ns: Int
    written_slots: Int | None = None


class Keyframe(ArmEvent):
    """Block tables and written slots after ``step``; a replay is checked against them."""

    event: Literal["keyframe"] = "keyframe"
    step: Int
    tables: dict[Int, list[Int]]
    written: dict[Int, Int]


class TokenMapping(ArmEvent):
    """Physical location of one token, read from the block table while the arm runs."""

    event: Literal["mapping"] = "mapping"
    step: Int
    request: Int
    position: Int
    logical: Int
    physical: Int
    offset: Int
