"""Runs on disk, as a program of the same version would have left them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from event_makers import PAGED, SLOT_BYTES, arm_events, head, plans_of, whole_run

from experiment.config.schema import make_config
from experiment.events import (
    Event,
    RunFinished,
    WorkloadReady,
    WorkloadRequest,
    encode,
)
from experiment.events.pace import KEYFRAME_EVERY
from experiment.record.log import EVENTS_FILE
from kvsim.accounting.ledger import PoolShape
from kvsim.core.limits import SchedulerConfig


def sample_run(directory: Path) -> Path:
    """Write the event log of two small arms; returns the directory."""
    return _written(directory, whole_run())


def long_run(directory: Path, requests: int, new: int, together: int = 1) -> Path:
    """Write the event log of one paged arm in which ``together`` requests run at a time.

    With ``together`` 1 it has ``requests * new`` steps.
    """
    prompt, shape = 20, PoolShape(64, 16, SLOT_BYTES)
    limits = SchedulerConfig(max_num_seqs=together)
    plans = plans_of([(prompt, new)] * requests, shape.blocks, shape.block_size, limits)
    started, model, _ = head()
    config = make_config({"engine": {"max_num_seqs": together}}).model_dump(mode="json")
    workload = WorkloadReady(
        requests=[
            WorkloadRequest(id=i, prompt="x", token_ids=[1] * prompt, max_new_tokens=new)
            for i in range(requests)
        ],
        max_length=prompt + new,
        block_size=shape.block_size,
        budget_bytes=shape.slots * SLOT_BYTES,
    )
    tokens = {request: [5] * new for request in range(requests)}
    return _written(
        directory,
        [
            started.model_copy(update={"config": config}),
            model,
            workload,
            *arm_events(PAGED, shape, plans, tokens, KEYFRAME_EVERY),
            RunFinished(status="complete"),
        ],
    )


def _written(directory: Path, events: Iterable[Event]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(encode(event) + "\n" for event in events)
    (directory / EVENTS_FILE).write_text(text, encoding="utf-8")
    return directory
