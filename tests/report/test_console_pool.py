"""The block pool on the console: right, rare, aligned, and absent without a terminal."""

from __future__ import annotations

import io
import re
import sys

import pytest
from busy_run import BLOCK, BLOCKS, MAX_LENGTH
from rich.cells import cell_len
from rich.console import Console

from experiment.events import (
    CellStarted,
    Event,
    PoolReserved,
    Progress,
    RepeatFinished,
    Step,
    TurnStarted,
    WorkloadReady,
)
from experiment.record.log import Record
from experiment.report.console.pool import BLOCKS as SIGNS
from experiment.report.console.pool import PLAIN, SECONDS, Picture, PoolView
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.facts.texts import translator
from experiment.text import LANGUAGES
from kvsim.accounting.ledger import Ledger, PoolShape


class Clock:
    """Goes on by so much with each look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def shown(view: PoolView, width: int = 100) -> list[str]:
    assert view.picture is not None
    out = Console(file=io.StringIO(), width=width, color_system=None)
    out.print(view.picture)
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("ascii_only", [False, True])
def test_each_sign_is_the_fill_of_its_block(busy: Record, ascii_only: bool) -> None:
    view = PoolView(translator("en", ascii_only), ascii_only, Clock(1))
    signs = PLAIN if ascii_only else SIGNS
    ledger = Ledger(PoolShape(BLOCKS, BLOCK, 4))
    steps = 0
    for event in busy.events:
        view.see(event)
        if not isinstance(event, Step) or event.arm != "paged":
            continue
        ledger.apply(event.plan)
        steps += 1
        row = shown(view)[0][2 : 2 + BLOCKS]
        for block, sign in enumerate(row):
            held = [(h, h.table.index(block)) for h in ledger.owners.values() if block in h.table]
            if held:
                filled = max(min(h.written - at * BLOCK, BLOCK) for h, at in held)
                assert (sign == signs.levels[3]) == (filled == BLOCK), (steps, block)
                assert sign in signs.levels[1:]
            else:
                assert sign == (signs.cached if block in ledger.cached else signs.levels[0])
    assert steps > 50


@pytest.mark.parametrize("lang", LANGUAGES)
def test_bars_are_aligned_and_sizes_are_the_ledgers(busy: Record, lang: str) -> None:
    view = PoolView(translator(lang, False), False, Clock(1))
    for event in busy.events:
        view.see(event)
        if isinstance(event, Step) and event.arm == "paged" and event.plan.step == 30:
            break
    lines = shown(view)
    starts = {cell_len(line[: re.search("█+", line[BLOCKS + 4 :]).start() + BLOCKS + 4])  # type: ignore[union-attr]
              for line in lines[:3]}  # fmt: skip
    assert len(starts) == 1
    assert lines[0].rstrip().endswith(f"{BLOCKS * BLOCK * 4} B")


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("width", [30, 44, 60, 72, 80, 100])
def test_nothing_is_cut_off_however_narrow_the_terminal_is(
    busy: Record, lang: str, width: int
) -> None:
    t = translator(lang, False)
    view = PoolView(t, False, Clock(1))
    for event in busy.events:
        if isinstance(event, PoolReserved) and event.arm == "paged":
            event = event.model_copy(update={"bytes_per_slot": 1_130_000})  # sizes of 9 signs
        view.see(event)
        if isinstance(event, Step) and event.arm == "paged" and event.plan.step == 30:
            break
    lines = shown(view, width)
    assert all(cell_len(line) <= width for line in lines)
    drawn = "\n".join(lines)
    assert "…" not in drawn
    for name in ("reserved", "allocated", "live", "wasted"):
        (line,) = [line for line in lines if t(f"term.{name}.name") in line]
        assert re.search(r"\d (MiB|B)$", line.rstrip()), line
    assert isinstance(view.picture, Picture)
    pool = view.picture.pool.plain
    assert [drawn.count(sign) for sign in "·░▒"] == [pool.count(sign) for sign in "·░▒"]


def test_it_is_drawn_at_most_ten_times_a_second(busy: Record) -> None:
    assert SECONDS >= 0.1
    view = PoolView(translator("en", True), True, Clock(SECONDS / 4))
    pictures, steps = set(), 0
    for event in busy.events:
        view.see(event)
        if isinstance(event, Step) and event.arm == "paged":
            steps += 1
            pictures.add(id(view.picture))
            kept = view.picture
            assert kept is not None
    assert len(pictures) <= steps / 4 + 1


def test_slabs_and_growing_caches_have_no_view(busy: Record) -> None:
    view = PoolView(translator("en", True), True, Clock(1))
    for event in busy.events:
        if getattr(event, "arm", "slabs") != "slabs":
            break
        view.see(event)
        assert view.picture is None


def test_a_large_pool_takes_no_more_room(busy: Record) -> None:
    view = PoolView(translator("en", True), True, Clock(1))
    for event in busy.events:
        if isinstance(event, PoolReserved) and event.arm == "paged":
            event = event.model_copy(update={"blocks": 100_000})
        view.see(event)
    assert len(shown(view)) <= 6
    assert max(len(line.rstrip()) for line in shown(view)) < 90


def test_plain_signs_are_ascii(busy: Record) -> None:
    view = PoolView(translator("en", True), True, Clock(1))
    for event in busy.events:
        view.see(event)
    assert "".join(shown(view)).isascii()


def run_console(busy: Record, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> str:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    reporter = ConsoleReporter("en")
    reporter.console = Console(
        file=stream, force_terminal=terminal, width=100, color_system=None, _environ={}
    )
    reporter.begin_task("progress.start_arm")
    for event in busy.events:
        reporter.handle(event)
        if isinstance(event, Step) and event.arm == "paged" and event.plan.step == 40:
            reporter.handle(Progress(task=event_task(), done=1, total=2))
            if reporter._progress.now:
                reporter._progress.now.refresh()
    reporter.end_task()
    return stream.getvalue()


def event_task():  # type: ignore[no-untyped-def]
    from experiment.text.messages import message

    return message("progress.start_arm")


def test_the_pool_stands_above_the_progress_on_a_terminal_alone(
    busy: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SIGNS.levels[3] * 3 in run_console(busy, monkeypatch, terminal=True)
    assert SIGNS.levels[3] not in run_console(busy, monkeypatch, terminal=False)
    assert MAX_LENGTH > BLOCK


def test_a_repeat_begins_in_an_empty_pool(busy: Record) -> None:
    view = PoolView(translator("en", False), False, Clock(1))
    for event in busy.events:
        view.see(event)
    steps = [e for e in busy.events if isinstance(e, Step) and e.arm == "paged"]
    first = shown(view)
    view.see(RepeatFinished(arm="paged", repeat=0, warm_up=True, generate_s=1.0))
    for event in steps:
        view.see(event)
    assert shown(view) == first


def test_whose_turn_it_is_has_its_own_pool_from_its_beginning(busy: Record) -> None:
    """Another arm, and the same arm of another cell, have shown theirs in between."""
    paged = [e for e in busy.events if getattr(e, "arm", None) == "paged"]
    steps = [e for e in paged if isinstance(e, Step)]
    pool = next(e for e in paged if isinstance(e, PoolReserved))
    workload = next(e for e in busy.events if isinstance(e, WorkloadReady))

    def seen(*events: Event) -> PoolView:
        view = PoolView(translator("en", False), False, Clock(1))
        for event in events:
            view.see(event)
        return view

    def cell(index: int) -> CellStarted:
        return CellStarted(index=index, of=2, values={}, overrides={}, arms=["paged"])

    def turn(index: int, arm: str = "paged") -> TurnStarted:
        return TurnStarted(cell=index, arm=arm, repeat=1, group=1)

    other = pool.model_copy(update={"blocks": pool.blocks * 2})
    both = (workload, cell(0), pool, *steps, cell(1), other, *steps)
    alone = shown(seen(workload, pool, *steps))
    assert shown(seen(*both, turn(0), *steps)) == alone
    assert shown(seen(*both, turn(1), *steps)) != alone
    assert seen(*both, turn(0, "slabs"), *steps).picture is None


def test_while_the_next_arm_starts_no_pool_of_the_one_before_is_shown(
    busy: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    reporter = ConsoleReporter("en")
    reporter.console = Console(
        file=stream, force_terminal=True, width=100, color_system=None, _environ={}
    )
    for event in busy.events:
        reporter.handle(event)
    assert reporter._pool_view.picture is not None
    reporter.begin_task("progress.start_arm")
    assert reporter._pool_view.picture is None
    reporter.end_task()
