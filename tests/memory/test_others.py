"""What others use while an arm runs: all of the system without the arm and without the runner."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from event_makers import record
from made_up_machine import cpu_environment
from memory_fakes import until

from experiment.analysis.results import Watch
from experiment.analysis.watched import watch
from experiment.events import Step, Usage
from experiment.machine import background_load as noise
from experiment.memory import usage
from experiment.memory.devices import GpuReader
from experiment.memory.process_tree import CpuSeconds, ProcessTree
from experiment.memory.usage import UsageMeter
from experiment.replay.arm_events import split_by_arm
from experiment.text.messages import message
from kvsim.core.step import StepPlan

Tree = Mapping[str, tuple[float, float]]
# Of each process its own seconds and those of its children that have ended.
ROOT: Tree = {"root": (5.0, 0.0)}
Taken = tuple[Tree, float, tuple[float, float] | None]


def taken(monkeypatch: pytest.MonkeyPatch, *looks: Taken) -> list[Usage]:
    """What it makes of a tree, the runner's seconds and the system's, every half second."""
    left = list(looks)

    def cpu_times(_: ProcessTree) -> dict[Any, CpuSeconds]:
        return {name: CpuSeconds(*seconds) for name, seconds in left[0][0].items()}

    monkeypatch.setattr(ProcessTree, "cpu_times", cpu_times)
    monkeypatch.setattr(usage.time, "process_time", lambda: left[0][1])
    monkeypatch.setattr(usage, "system_seconds", lambda: left[0][2])
    now = [10.0]
    environment = cpu_environment()
    meter = UsageMeter(
        "paged", environment, ProcessTree(os.getpid()), GpuReader(environment, None),
        clock=lambda: now[0],
    )  # fmt: skip
    assert meter.take() is None
    found = []
    while len(left) > 1:
        left.pop(0)
        now[0] += 0.5
        one = meter.take()
        assert one is not None
        found.append(one)
    return found


def test_it_is_the_system_without_the_arm_and_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    after: Tree = {"root": (5.5, 0.0), "child": (0.2, 0.0)}
    (one,) = taken(monkeypatch, (ROOT, 1.0, (100.0, 800.0)), (after, 1.1, (101.3, 804.0)))
    # 1.3 s of all, 0.7 of the tree (its new process too), 0.1 of the runner: half a second.
    assert one.others_cores == pytest.approx(1.0)
    assert one.cpu_cores == pytest.approx(1.4)
    assert one.others_reason is None


def test_of_a_sample_it_may_be_below_nothing_by_rounding_and_of_a_mean_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one,) = taken(
        monkeypatch, (ROOT, 1.0, (100.0, 800.0)), ({"root": (5.5, 0.0)}, 1.0, (100.4, 801.0))
    )
    # Cut off at nothing one by one, samples around it would have a mean above it.
    assert one.others_cores == pytest.approx(-0.2)
    step = Step(arm=one.arm, plan=StepPlan(0), started_ns=0, t_ns=one.t_ns + 1)

    def watched(*usages: Usage) -> Watch:
        (arm,) = split_by_arm(record([step, *usages]))
        return watch(arm, None)

    near = one.model_copy(update={"others_cores": 0.04})
    assert watched(one, near).others_cores == 0
    last = one.model_copy(
        update={"others_cores": None, "others_reason": message("memory.child_ended")}
    )
    known = watched(one, near, last)
    assert (known.others_cores, known.others_reason) == (0, None)


CHILD: Tree = {"root": (5.0, 0.0), "child": (9.0, 0.0)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CHILD, {"root": (5.0, 0.0)}),
        (CHILD, {"root": (5.0, 9.4), "child": (9.0, 0.0)}),
        (ROOT, {"root": (5.0, 0.0), "new": (0.0, 0.4)}),
    ],
    ids=["gone", "never seen", "below a new one"],
)
def test_what_a_process_of_the_arm_used_that_ended_is_not_called_somebody_elses(
    monkeypatch: pytest.MonkeyPatch, before: Tree, after: Tree
) -> None:
    """In that interval; the next one is known again."""
    ended, known = taken(
        monkeypatch,
        (before, 1.0, (100.0, 800.0)),
        (after, 1.0, (100.5, 801.0)),
        (after, 1.0, (100.6, 802.0)),
    )
    assert (ended.others_cores, ended.others_reason) == (None, message("memory.child_ended"))
    assert ended.cpu_cores is not None
    assert known.others_cores == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("first", "second"), [(None, (101.0, 801.0)), ((100.0, 800.0), None), ((0.0, 0.0), (0.0, 0.0))]
)
def test_a_system_that_does_not_tell_is_unknown_and_not_idle(
    monkeypatch: pytest.MonkeyPatch,
    first: tuple[float, float] | None,
    second: tuple[float, float] | None,
) -> None:
    (one,) = taken(monkeypatch, (ROOT, 1.0, first), (ROOT, 1.0, second))
    assert (one.others_cores, one.others_reason) == (None, message("memory.no_system_times"))
    assert one.cpu_cores == 0


def test_of_the_systems_times_idle_ones_and_those_counted_twice_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = "user nice system idle iowait irq softirq steal guest guest_nice"
    times = namedtuple("times", names)(1, 2, 4, 8, 16, 32, 64, 128, 1, 2)  # type: ignore[call-arg]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [times] * 3)
    monkeypatch.setattr(noise, "usable_cores", lambda: [1])
    assert noise.system_seconds() == (1 + 2 + 4 + 32 + 64, 255)
    monkeypatch.setattr(noise, "usable_cores", lambda: None)
    assert noise.system_seconds() == (3 * (1 + 2 + 4 + 32 + 64), 3 * 255)

    def refused(percpu: bool) -> None:
        raise OSError

    monkeypatch.setattr(psutil, "cpu_times", refused)
    assert noise.system_seconds() is None


@contextmanager
def started(code: str) -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def seconds_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_what_a_child_used_is_there_once_it_was_waited_for() -> None:
    tree, me = ProcessTree(os.getpid()), psutil.Process()
    before = tree.cpu_times()[me].ended
    with started("while True: pass") as child:
        until(lambda: seconds_of(child) > 0.2)
        during = tree.cpu_times()[me].ended
    assert during == before
    assert tree.cpu_times()[me].ended - before >= 0.2
