"""What the lookup is timed by on a GPU, with a device and clocks that are made up."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from experiment.engine.attention import kernels, lookup
from experiment.engine.attention.lookup import Lookup, layouts, queries, time_lookup
from kvsim.sizing.geometry import KVGeometry

SHAPE = KVGeometry(1, 2, 8, 4)
LAUNCH_S = 1e-5


class Device:
    """Does what it is asked for one after another, and has clocks of its own.

    Calls are captured once; a replay takes ``call_s`` of each, by the bytes of a block.
    """

    def __init__(self, call_s: dict[int, float]) -> None:
        self.call_s = call_s
        self.host = self.busy_until = 0.0
        self.read: list[tuple[int, int]] = []  # address and bytes of each call
        self.captured: list[list[tuple[int, int]]] = []
        self.held: list[weakref.ref[torch.Tensor]] = []

    def attend(self, q: torch.Tensor, kv: torch.Tensor, inputs: Any, scale: float) -> torch.Tensor:
        self.read.append((kv.data_ptr(), kv.nbytes))
        self.held.append(weakref.ref(kv))
        self.took = self.call_s[kv.shape[3]]
        return q

    def capture(self, device: torch.device) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def capture(work: Callable[[], None]) -> Callable[[], None]:
            self.read = []
            work()
            self.captured.append(self.read)
            takes = self.took * len(self.read)

            def replay() -> None:
                assert all(kv() is not None for kv in self.held), "a graph would read freed memory"
                self.host += LAUNCH_S
                self.busy_until = max(self.busy_until, self.host) + takes

            return replay

        return capture

    def event(self, enable_timing: bool) -> Any:
        device = self

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = max(device.busy_until, device.host)

            def synchronize(self) -> None:
                device.host = max(device.host, self.at)

            def elapsed_time(self, end: Any) -> float:
                return 1e3 * float(end.at - self.at)

        assert enable_timing
        return Event()


def timed(
    monkeypatch: pytest.MonkeyPatch, call_s: dict[int, float], cache: int, context: int = 16
) -> tuple[Device, Lookup | None]:
    device = Device(call_s)
    monkeypatch.setitem(kernels.KERNELS, "made up", device.attend)
    monkeypatch.setattr(lookup, "_l2_bytes", lambda device: cache)
    monkeypatch.setattr(lookup, "cuda_capture", device.capture)
    monkeypatch.setattr("torch.cuda.Event", device.event)
    monkeypatch.setattr("time.perf_counter", lambda: device.host)
    given = layouts(SHAPE, 3, context, 4, torch.empty(0))
    return device, time_lookup("made up", queries(3, 2, given[0].kv), given, rounds=3)


def test_what_is_timed_is_the_device_and_not_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slab has one block of 16 slots; both other layouts have blocks of 4."""
    _, found = timed(monkeypatch, {16: 8e-6, 4: 9e-6}, cache=60_000)
    assert found is not None
    assert found.contiguous_s == pytest.approx(8e-6)
    assert (found.ordered_s, found.scattered_s) == pytest.approx((9e-6, 9e-6))


@pytest.mark.parametrize("call_s", [1e-9, 1e-7])
def test_where_the_device_waits_for_the_host_there_is_no_verdict(
    call_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten calls in a graph take less than it takes to launch the graph."""
    assert timed(monkeypatch, {16: 8e-6, 4: call_s}, cache=30_000)[1] is None


@drawn(cache=st.integers(1, 300_000), context=st.integers(1, 64))
def test_copies_exceed_the_cache_together_and_are_read_in_rotation(
    cache: int, context: int
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        sizes = dict.fromkeys(range(1, 65), 0.001)
        device, found = timed(monkeypatch, sizes, cache, context)
    assert found is not None
    assert len(device.captured) == 3
    for calls in device.captured:
        copies = dict(calls)
        assert sum(copies.values()) > 2 * cache
        assert len(calls) == max(5, len(copies))
        assert len({address for address, _ in calls[: len(copies)]}) == len(copies)


def test_calls_that_cannot_be_captured_give_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Device, device: torch.device) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Device, "capture", refuse)
    assert timed(monkeypatch, {}, cache=1000)[1] is None


def test_on_a_cpu_nothing_is_captured_or_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    given = layouts(SHAPE, 2, 9, 4, torch.empty(0))
    seen: list[int] = []

    def attend(q: torch.Tensor, kv: torch.Tensor, inputs: Any, scale: float) -> torch.Tensor:
        seen.append(kv.data_ptr())
        return kernels.torch_kernel(q, kv, inputs, scale)

    monkeypatch.setitem(kernels.KERNELS, "seen", attend)
    found = time_lookup("seen", queries(2, 4, given[0].kv), given, rounds=2)
    assert found is not None
    assert min(found.contiguous_s, found.ordered_s, found.scattered_s) > 0
    assert seen == [each.kv.data_ptr() for each in given for _ in range(5)] * 3
