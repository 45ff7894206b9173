"""Small runs and hand-made sides to be compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from event_makers import (
    BATCH,
    NEW,
    PAGED,
    PROMPTS,
    SLOT_BYTES,
    TOKENS,
    arm_events,
    batch_arm,
    head,
    plans_of,
)

from experiment.compare.results import Figure, Side
from experiment.events import (
    EnvironmentProbed,
    Event,
    RunFinished,
    RunStarted,
    WorkloadReady,
    encode,
)
from experiment.record.log import EVENTS_FILE
from kvsim.accounting.ledger import PoolShape

MACHINE = {"device_name": "Test CPU", "cpu": {"model": "Test CPU", "usable_cores": 2}, "gpus": []}


def paged(block_size: int) -> list[Event]:
    """16 slots in blocks of this size; at the end 10 are live."""
    shape = PoolShape(16 // block_size, block_size, SLOT_BYTES)
    plans = plans_of([(prompt, NEW) for prompt in PROMPTS], shape.blocks, block_size)
    return arm_events(PAGED, shape, plans, TOKENS)


def events(block_size: int = 2, began: int = 1, **machine: Any) -> list[Event]:
    """A whole run of a padded batch and of blocks of this size."""
    started, *others = head()
    assert isinstance(started, RunStarted)
    config = {"cache": {"block_size": block_size}}
    begun = started.model_copy(update={"wall_ns": began * 10**9, "config": config})
    probed = EnvironmentProbed(environment={**MACHINE, **machine})
    others = [e.model_copy(update={"block_size": block_size}) if isinstance(e, WorkloadReady) else e
              for e in others]  # fmt: skip
    arms = [*batch_arm(BATCH), *paged(block_size)]
    return [begun, probed, *others, *arms, RunFinished(status="complete")]


def write(directory: Path, log: Iterable[Event]) -> Path:
    """A run directory with this event log and nothing else."""
    directory.mkdir(parents=True)
    text = "".join(encode(event) + "\n" for event in log)
    (directory / EVENTS_FILE).write_text(text, encoding="utf-8")
    return directory


def figure(name: str, *values: float, **changes: Any) -> Figure:
    """A figure of the arm ``a``: the first value, or the median of several."""
    data = {
        "id": f"a/{name}", "arm": "a", "metric": name, "unit": "seconds", "kind": "time",
        "better": "less", "value": sorted(values)[len(values) // 2] if values else None,
        "values": list(values) if len(values) > 1 else [], **changes,
    }  # fmt: skip
    return Figure.model_validate(data)


def side(*figures: Figure, **changes: Any) -> Side:
    """A side that holds these figures."""
    data = {
        "name": "run", "kind": "run", "schema_version": 1, "version": "1", "wall_ns": 0,
        "utc_offset_s": 0, "status": "complete", "command": [], "machine": {"cpu": "one"},
        "model": {"name": "tiny"}, "requests": {"": "same"},
        "figures": {one.id: one for one in figures}, **changes,
    }  # fmt: skip
    return Side.model_validate(data)
