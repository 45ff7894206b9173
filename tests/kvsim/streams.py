"""Streams of requests that a test writes down, and what every step of a simulation recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvsim.sim.metrics import SimResult
from kvsim.sim.recorder import Recorder
from kvsim.sim.simulator import SimConfig, simulate
from kvsim.traces import TraceInfo, TraceRequest


class Listed:
    """Requests of (arrival in ns, prompt, new tokens), or whole ones."""

    def __init__(self, requests: Sequence[tuple[int, int, int] | TraceRequest]) -> None:
        self.requests = [
            each if isinstance(each, TraceRequest) else TraceRequest(number, *each)
            for number, each in enumerate(requests)
        ]

    @property
    def info(self) -> TraceInfo:
        return TraceInfo(
            "listed", "generated", "declared", "ns", "declared", None, "none",
            accepted=len(self.requests), seed=0, sha256="0",
        )  # fmt: skip

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)


@dataclass
class Seen:
    """A step as it was recorded: when, the levels by name, who ran and waited, and how long."""

    now: int
    levels: dict[str, int]
    running: int
    waiting: int
    duration: int


@dataclass
class Watched:
    result: SimResult
    steps: list[Seen] = field(default_factory=list)

    def of(self, name: str) -> list[int]:
        return [step.levels[name] for step in self.steps]


def watched(stream: Listed, config: SimConfig, patch: pytest.MonkeyPatch) -> Watched:
    """Simulate without jumps and keep every step."""
    seen: list[Seen] = []

    class Log(Recorder):
        def see(self, levels: Any, running: int, waiting: int, duration: int) -> None:
            named = dict(zip(self.names, levels, strict=True))
            seen.append(Seen(self.now, named, running, waiting, duration))

        def step(self, levels: Any, running: int, waiting: int, duration: int) -> None:
            self.see(levels, running, waiting, duration)
            super().step(levels, running, waiting, duration)

        def run(self, levels: Any, slopes: Any, running: int, waiting: int, line: Any) -> None:
            assert line.steps == 1
            self.see(levels, running, waiting, line.duration)
            super().run(levels, slopes, running, waiting, line)

    with patch.context() as change:
        change.setattr("kvsim.sim.simulator.Recorder", Log)
        result = simulate(stream, config, jump=False)
    return Watched(result, seen)
