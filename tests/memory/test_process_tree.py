"""The tree sampler against real processes.

An allocation of 64 MiB must show within 8 MiB: the rest is what the interpreter does meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
from memory_fakes import PatternProcess, until

from experiment.memory.figure import MemoryFigure, UnreadableError
from experiment.memory.process_tree import ProcessTree
from experiment.process import process_tree as cleanup
from experiment.process.process_tree import descendants

MIB = 2**20
SIZE = 64 * MIB
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def size(figure: MemoryFigure) -> int:
    assert figure.bytes is not None
    return figure.bytes


def reasons(tree: ProcessTree) -> set[str]:
    """Why each figure of a tree cannot be read."""
    found = set()
    for read in (tree.rss, *tree.details().values(), tree.high_water):
        with pytest.raises(UnreadableError) as caught:
            read()
        found.add(caught.value.reason.key)
    return found


def test_grandchildren_count_once_the_tree_is_walked_again(child: PatternProcess) -> None:
    tree = ProcessTree(child.pid, refresh_s=3600)
    alone = size(tree.rss())
    child.play("child")
    (grandchild,) = child.below()
    assert size(tree.rss()) - alone < SIZE / 2
    assert size(tree.rss(fresh=True)) - alone > SIZE
    assert tree.pids() == {child.pid, grandchild.pid}


def test_the_tree_is_walked_again_by_itself(child: PatternProcess) -> None:
    tree = ProcessTree(child.pid)
    alone = size(tree.rss())
    child.play("child")
    until(lambda: size(tree.rss()) - alone > SIZE)


def test_a_child_that_ends_leaves_the_sum(child: PatternProcess) -> None:
    tree = ProcessTree(child.pid, refresh_s=3600)
    child.play("child")
    (grandchild,) = child.below()
    both = size(tree.rss(fresh=True))
    grandchild.kill()
    child.play("drop")
    # The tree still lists the process that is gone.
    assert grandchild.pid in tree.pids()
    assert both - size(tree.rss()) > SIZE


@linux_only
def test_a_root_that_ended_and_was_not_waited_for_is_unknown(child: PatternProcess) -> None:
    tree = ProcessTree(child.pid)
    assert size(tree.rss()) > 0
    child.process.kill()
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert reasons(tree) == {"memory.process_gone"}


def test_a_root_that_is_gone_is_unknown_even_while_its_children_live(child: PatternProcess) -> None:
    tree = ProcessTree(child.pid)
    child.play("child")
    (grandchild,) = child.below()
    assert size(tree.rss(fresh=True)) > SIZE
    child.process.kill()
    child.process.wait()
    try:
        assert reasons(tree) == reasons(tree) == {"memory.process_gone"}
        assert tree.pids() == frozenset()
    finally:
        grandchild.kill()


def test_no_permission_is_a_reason(child: PatternProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_info", refuse)
    with pytest.raises(UnreadableError) as caught:
        ProcessTree(child.pid).rss()
    assert caught.value.reason.key == "memory.process_denied"


def test_both_ways_of_finding_processes_find_the_same(
    child: PatternProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    child.play("child")
    (grandchild,) = child.below()
    quick = {process.pid for process in descendants(child.pid)}
    monkeypatch.setattr(cleanup, "_lists_children", lambda: False)
    slow = {process.pid for process in descendants(child.pid)}
    assert quick == slow == {grandchild.pid}


ORPHAN = """
import subprocess, sys, time
code = "import sys, time; held = bytearray(80 * 2**20); held[::4096] = b'1' * len(held[::4096])\\n"
code += "print('holds', flush=True); time.sleep(60)"
middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
subprocess.run([sys.executable, "-c", middle, code], check=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not hasattr(os, "getsid"), reason="needs sessions")
def test_a_grandchild_whose_parent_has_ended_still_counts() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
        encoding="utf-8",
    ) as root:  # fmt: skip
        assert root.stdout is not None
        tree = ProcessTree(root.pid, refresh_s=60.0)
        try:
            tree.rss()
            assert root.stdout.readline().strip() == "holds"
            assert size(tree.rss(fresh=True)) > SIZE
            (orphan,) = tree.pids() - {root.pid}
            assert psutil.Process(orphan).ppid() != root.pid
        finally:
            for pid in ProcessTree(root.pid).pids():
                psutil.Process(pid).kill()


THREADED = """
import subprocess, sys, threading
def start():
    below = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                             stdin=subprocess.PIPE)
    print(below.pid, flush=True)
    forever.wait()
forever = threading.Event()
thread = threading.Thread(target=start, daemon=True)
thread.start()
sys.stdin.readline()
"""


def test_a_child_that_a_thread_started_is_found() -> None:
    """Linux keeps a list of children for each thread, and no list of all."""
    with subprocess.Popen(
        [sys.executable, "-c", THREADED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as root:
        assert root.stdout is not None
        below = int(root.stdout.readline())
        try:
            assert below in ProcessTree(root.pid).pids()
        finally:
            root.kill()
