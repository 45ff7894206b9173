"""The player in a real browser: what it shows is what the log says."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from busy_run import BLOCK, BLOCKS, MAX_LENGTH
from matplotlib.image import imread
from pages import Opened, OpenPage, until
from sample import make_record, write_page

from experiment.analysis.conclusions import evaluate
from experiment.events import ArmFinished
from experiment.record.log import Record, read_record
from experiment.replay import frames
from experiment.replay.arm_events import ArmEvents, split_by_arm
from experiment.replay.timeline import timeline
from experiment.report.page.page import report_html
from experiment.text import Translator
from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.core.step import OpKind, StepPlan

COUNTED = ("reserved", "allocated", "live", "wasted", "padding", "finished", "unwritten", "cached",
           "free", "shared")  # fmt: skip
LAST = "pagedkv.player.state.stops.at(-1)"
SHOWN = ("allocated", "live", "unwritten", "padding", "finished", "free", "cached")


@pytest.fixture(scope="module")
def opened(browser: Any, busy: Record) -> Iterator[Opened]:
    one = Opened(browser, busy.directory / "report.html", viewport={"width": 1300, "height": 900})
    yield one
    assert one.complaints == []
    one.context.close()


@pytest.fixture(scope="module")
def rows(busy: Record) -> dict[str, dict[int, Any]]:
    """Counts of the ledger after each step of each arm."""
    return {
        events.arm: {row.step: row for row in timeline(events)[0]} for events in split_by_arm(busy)
    }


def shown(steps: dict[int, Any], at: int, every: int = 1) -> Any:
    """Counts that a side shows at a step: of a later step than its last with live slots, those."""
    ends = [n for n in steps if (n + 1) % every == 0 or n == max(steps)]
    useful = max(n for n in ends if steps[n].live)
    return steps[max(n for n in ends if n <= min(at, useful))]


def assert_counters(seen: dict[str, Any], expected: Any) -> None:
    """A side shows what the log says of a step."""
    assert seen["step"] == expected.step
    for name in COUNTED:
        assert seen[name] == getattr(expected, name), (seen["arm"], expected.step, name)


def test_counters_are_those_of_the_log_at_ten_random_steps(
    opened: Opened, rows: dict[str, dict[int, Any]]
) -> None:
    last = opened.page.evaluate(LAST)
    assert last == max(max(steps) for steps in rows.values())
    # Going back, too.
    for step in (0, last, 68, 64, 63, *random.Random(9).sample(range(last), 8)):
        opened.page.evaluate("at => pagedkv.player.go(at)", step)
        both = opened.page.evaluate("pagedkv.player.counters()")
        assert [seen["arm"] for seen in both] == ["slabs", "paged"]
        for seen in both:
            assert_counters(seen, shown(rows[seen["arm"]], step))
        assert f"step {step} / {last}" in opened.page.inner_text("#player-where")


def test_the_numbers_on_the_page_are_those_of_the_log(
    opened: Opened, rows: dict[str, dict[int, Any]]
) -> None:
    opened.page.evaluate("pagedkv.player.go(30)")
    for side, arm in enumerate(("slabs", "paged"), 1):
        cells = opened.page.eval_on_selector_all(
            f"#player-stage .side:nth-child({side}) .counter",
            "all => all.filter(one => !one.hidden).map(one => ["
            "one.dataset.state, one.querySelector('[data-counter]').textContent])",
        )
        # Only states of this run; what is free comes after what is allocated.
        states = [name for name in SHOWN if any(getattr(row, name) for row in rows[arm].values())]
        row = rows[arm][30]
        assert cells == [[name, f"{getattr(row, name):,.0f}"] for name in states]
        wasted = opened.page.inner_text(f".side:nth-child({side}) .wasted")
        assert f"{100 * row.wasted / row.allocated:.1f}" in wasted


def test_a_fast_film_that_stops_shows_one_step_everywhere(
    opened: Opened, rows: dict[str, dict[int, Any]]
) -> None:
    """While it plays its lists take turns; where it stops all of them are of the same step."""
    page = opened.page
    page.select_option("#player-speed", "60")
    for start in (5, 20, 33):
        page.evaluate("at => pagedkv.player.go(at)", start)
        page.evaluate("pagedkv.player.play(true)")
        until(page, f"pagedkv.player.state.at > {start + 3}")
        page.evaluate("pagedkv.player.play(false)")
        for side, seen in enumerate(page.evaluate("pagedkv.player.counters()"), 1):
            row = rows[seen["arm"]][seen["step"]]
            live = f".side:nth-child({side}) [data-counter=live]"
            assert page.inner_text(live) == f"{row.live:,.0f}"
            head = page.inner_text(f".side:nth-child({side}) .table-head")
            first = page.locator(".chip").first.inner_text()
            page.hover(".chip >> nth=0")
            assert f"equest {first}" in page.inner_text(f".side:nth-child({side}) .table-head")
            page.mouse.move(0, 0)
            assert page.inner_text(f".side:nth-child({side}) .table-head") == head
    page.select_option("#player-speed", "12")


def test_a_thinned_run_shows_both_sides_at_the_same_step(
    open_page: OpenPage,
    busy: Record,
    rows: dict[str, dict[int, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So few frames that one arm alone would have to be thinned.
    longer, shorter = sorted(map(len, rows.values()), reverse=True)
    monkeypatch.setattr(frames, "MOST_FRAMES", (longer + shorter) // 2)
    file = busy.directory / "thinned.html"
    file.write_text(report_html(busy, evaluate(busy), "en"), encoding="utf-8")
    one = open_page(file)
    thinned = (
        "JSON.parse(document.getElementById('player-data').textContent).films.map(f => f.every)"
    )
    assert one.page.evaluate(thinned) == [2, 2]
    stops = one.page.evaluate("pagedkv.player.state.stops")
    assert stops[0] == 1
    assert stops[-1] == max(max(steps) for steps in rows.values())
    for step in random.Random(5).sample(stops, 10):
        one.page.evaluate("at => pagedkv.player.go(at)", step)
        for seen in one.page.evaluate("pagedkv.player.counters()"):
            assert_counters(seen, shown(rows[seen["arm"]], step, 2))


def test_it_plays_to_the_end_and_stops(opened: Opened) -> None:
    page = opened.page
    end = page.evaluate(LAST)
    page.evaluate(f"pagedkv.player.go({end - 8})")
    page.select_option("#player-speed", "1")
    page.click("#player-play")
    assert page.locator("#player-play .when-playing").is_visible()
    assert not page.locator("#player-play .when-paused").is_visible()
    assert page.get_attribute("#player-play", "aria-pressed") == "true"
    page.select_option("#player-speed", "60")
    until(page, "!pagedkv.player.state.playing")
    assert page.locator("#player-play .when-paused").is_visible()
    assert page.evaluate("pagedkv.player.state.at") == end
    assert all(seen["live"] for seen in page.evaluate("pagedkv.player.counters()"))


def test_keys_step_play_and_walk_over_the_pool(opened: Opened) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(10)")
    page.focus(".side:nth-child(2) canvas")
    page.keyboard.press(".")
    assert page.evaluate("pagedkv.player.state.at") == 11
    page.keyboard.press(",")
    assert page.evaluate("pagedkv.player.state.at") == 10
    page.keyboard.press("ArrowRight")
    assert "Block 0" in page.inner_text("#player-block")
    page.keyboard.press("ArrowRight")
    assert "Block 1" in page.inner_text("#player-block")
    page.dispatch_event(".side:nth-child(2) canvas", "pointerleave")
    page.keyboard.press("Enter")
    pinned = page.evaluate("pagedkv.player.state.pinned.request")
    assert f"equest {pinned}:" in page.inner_text(".side:nth-child(2) .table-head")
    page.keyboard.press("Escape")
    assert page.evaluate("pagedkv.player.state.pinned") is None
    page.keyboard.press(" ")
    assert page.evaluate("pagedkv.player.state.playing")
    page.keyboard.press(" ")
    assert not page.evaluate("pagedkv.player.state.playing")


def held_after(events: ArmEvents, step: int) -> Ledger:
    """The ledger after a step of an arm."""
    assert events.pool is not None
    ledger = Ledger(PoolShape(events.pool.blocks, events.pool.block_size, 4))
    for one in events.steps[: step + 1]:
        ledger.apply(one.plan)
    return ledger


def arm_of(record: Record, arm: str) -> ArmEvents:
    return next(events for events in split_by_arm(record) if events.arm == arm)


def test_a_block_table_is_that_of_the_log_and_lights_what_it_names(
    opened: Opened, busy: Record
) -> None:
    """An entry under the pointer lights its block, and a block its entry."""
    page, paged = opened.page, ".side:nth-child(2)"
    page.evaluate("pagedkv.player.go(30)")
    ledger = held_after(arm_of(busy, "paged"), 30)
    for request in sorted(ledger.owners)[:3]:
        table = ledger.owners[request].table
        page.hover(f".chip:text-is('{request}')")
        entries = page.locator(f"{paged} .table-entries b").all_inner_texts()
        assert entries == [f"{logical} → {block}" for logical, block in enumerate(table)]
    page.click(f".chip:text-is('{request}')")
    page.hover(f"{paged} .table-entries li >> nth=1")
    assert page.inner_text(f"{paged} .about-block").startswith(f"Block {table[1]}: ")
    move_to(page, table[0])
    lit = page.locator(f"{paged} .table-entries li.lit b").all_inner_texts()
    assert lit == [f"0 → {table[0]}"]
    # A chosen request keeps its table while the pointer is on another one's block.
    other = next(one for one in ledger.owners if not set(ledger.owners[one].table) & set(table))
    move_to(page, ledger.owners[other].table[0])
    assert page.inner_text(f"{paged} .about-block").startswith(
        f"Block {ledger.owners[other].table[0]}: "
    )
    assert page.locator(f"{paged} .table-entries b").all_inner_texts() == entries
    page.click(f".chip:text-is('{request}')")


def move_to(page: Any, block: int) -> None:
    """The pointer to a block of the right pool, in whose rows a slab of the left one would fit."""
    canvas, columns = page.locator(".side:nth-child(2) canvas"), MAX_LENGTH // BLOCK
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    row, column = divmod(block, columns)
    x = box["x"] + (column + 0.5) * box["width"] / columns
    page.mouse.move(x, box["y"] + (row + 0.5) * box["height"] / -(-BLOCKS // columns))


def test_a_token_is_found_at_the_slot_that_the_block_pool_says(
    opened: Opened, busy: Record
) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(30)")
    ledger = held_after(arm_of(busy, "paged"), 30)
    request = max(ledger.owners, key=lambda one: ledger.owners[one].written)
    page.click(f".chip:text-is('{request}')")
    slots = [block * BLOCK + i for block in ledger.owners[request].table for i in range(BLOCK)]
    box = page.locator(".side:nth-child(2) canvas").bounding_box()
    size = box["width"] * BLOCK / MAX_LENGTH
    for token in (BLOCK - 1, *random.Random(3).sample(range(ledger.owners[request].written), 5)):
        page.fill("#player-token", str(token))
        said = page.inner_text(".side:nth-child(2) .address")
        assert f"remainder {token % BLOCK}" in said
        assert said.endswith(f"= {slots[token]}.")
        line = page.get_attribute(".side:nth-child(2) .arrows path:nth-child(3)", "d")
        x, y = map(float, line.split()[-2:])
        rows = BLOCKS * BLOCK // MAX_LENGTH
        slot = int(y / box["height"] * rows) * MAX_LENGTH + int(x / size * BLOCK)
        assert slot == slots[token]
    page.fill("#player-token", str(len(slots)))
    assert "no token" in page.inner_text(".side:nth-child(2) .address")
    entry = page.locator(".side:nth-child(2) .table-entries li >> nth=1")
    entry.click(position={"x": 2, "y": 5})
    assert page.input_value("#player-token") == str(BLOCK)
    page.fill("#player-token", "")
    page.click(f".chip:text-is('{request}')")


def test_padding_is_no_token_that_a_request_has_written(
    open_page: OpenPage, tmp_path: Path
) -> None:
    """In a slab the line says as much as the sentence above it, and the bar begins behind it."""
    record = make_record(tmp_path)
    page = open_page(write_page(record), viewport={"width": 1300, "height": 900}).page
    page.evaluate("pagedkv.player.go(2)")
    step = page.evaluate("pagedkv.player.counters()[0].step")
    ledger = held_after(arm_of(record, "contiguous.batch"), step)
    size = ledger.shape.block_size
    padded = {request: held for request, held in ledger.owners.items() if held.padding}
    assert padded
    for request, held in padded.items():
        page.hover(f".chip:text-is('{request}')")
        entry = page.locator(".side:nth-child(1) .table-entries li >> nth=0")
        assert entry.locator("small").inner_text() == f"{held.written}/{size}"
        left = entry.locator("i").evaluate("bar => bar.style.left")
        assert float(left.rstrip("%")) == pytest.approx(100 * held.padding / size, abs=0.01)
        entry.hover()
        about, *_ = page.inner_text(".side:nth-child(1) .about-block").split(". ")
        owner, *numbers = map(int, re.findall(r"(?<=request )\d+|\d+(?= of| padding)", about))
        assert numbers == [padded[owner].written, padded[owner].padding]
        page.hover(f".chip:text-is('{request}')")
        # The slot of its newest token, which padding comes before.
        slot = held.table[0] * size + held.padding + held.written - 1
        assert page.inner_text(".side:nth-child(1) .address").endswith(f"= {slot}.")


def test_pointing_at_a_block_shows_whose_it_is(opened: Opened, busy: Record) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(30)")
    ledger = held_after(arm_of(busy, "paged"), 30)
    for block in (0, 7, 9, 10, 21, BLOCKS - 1):
        owners = [r for r, h in ledger.owners.items() if block in h.table]
        move_to(page, block)
        about = page.inner_text(".side:nth-child(2) .about-block")
        assert about.startswith(f"Block {block}")
        if not owners:
            continue
        logical = ledger.owners[owners[0]].table.index(block)
        filled = max(min(max(ledger.owners[r].written - logical * BLOCK, 0), BLOCK) for r in owners)
        said = re.search(r"request ([\d, ]+), logical block (\d+), (\d+) of (\d+)", about)
        assert said is not None
        assert sorted(map(int, said[1].split(", "))) == sorted(owners)
        assert [int(one) for one in said.groups()[1:]] == [logical, filled, BLOCK]
        head = page.inner_text(".side:nth-child(2) .table-head")
        assert any(f"request {owner}:" in head for owner in owners)


LOST = (OpKind.FREE, OpKind.SWAP_OUT)
NEW = {OpKind.SHARE: "shared", OpKind.SWAP_IN: "returned", OpKind.MERGE: "merged",
       OpKind.ALLOCATE: "allocated"}  # fmt: skip


def told_by(plans: Sequence[StepPlan]) -> list[Counter[tuple[Any, ...]]]:
    """What each plan does to blocks, from its operations: (what, request, blocks, source)."""
    tables: dict[int, list[int]] = {}
    told = []
    for plan in plans:
        found: Counter[tuple[Any, ...]] = Counter()
        before = {request: tuple(table) for request, table in tables.items()}
        gained: dict[tuple[str, int], tuple[int, ...]] = {}
        copies: list[tuple[int, int, int]] = []
        ended = {finish.request for finish in plan.finished}
        swapped = {op.request for op in plan.ops if op.kind is OpKind.SWAP_OUT}
        lost = {op.request for op in plan.ops if op.kind in LOST}
        evicted = tuple(b for op in plan.ops if op.kind is OpKind.EVICT for b in op.blocks)
        for op in plan.ops:
            if op.kind in LOST:
                assert op.request is not None
                del tables[op.request]
            elif op.request is not None:
                table = tables.setdefault(op.request, [])
                if op.kind is OpKind.COPY:
                    for old, new in zip(op.sources, op.blocks, strict=True):
                        table[table.index(old)] = new
                        copies.append((op.request, new, old))
                else:
                    table += op.blocks
                    name = NEW[op.kind], op.request
                    gained[name] = gained.get(name, ()) + op.blocks
        for request, new, old in copies:
            if request in tables:
                found["copied", request, (new,), old] += 1
        for (what, request), blocks in gained.items():
            if request in tables:
                found[what, request, blocks, None] += 1
        for request in lost | ended | set(plan.preempted):
            what = "finished" if request in ended else "freed"
            if request in plan.preempted:
                what = "swapped" if request in swapped else "preempted"
            assert request is not None
            found[what, request, before.get(request, ()), None] += 1
        if evicted:
            found["evicted", None, evicted, None] += 1
        for cause in zip(plan.preempted, plan.causes, strict=True):
            found["cause", cause[0], tuple(cause[1]), None] += 1
        if plan.wait:
            found[f"waits {plan.wait.reason}", plan.wait.request, tuple(plan.wait[2:]), None] += 1
        told.append(found)
    return told


def test_events_have_the_ids_and_the_reasons_of_the_log(opened: Opened, busy: Record) -> None:
    page = opened.page
    for side, arm in enumerate(("slabs", "paged")):
        seen = []
        for events in page.evaluate(f"pagedkv.player.events()[{side}]"):
            found: Counter[tuple[Any, ...]] = Counter()
            for one in events:
                request, blocks = one["request"], tuple(one["blocks"])
                if one["key"] == "waits":
                    why = one["needed"], one["free"]
                    found[f"waits {one['reason']}", request, why, None] += 1
                    continue
                found[one["key"], request, blocks, one.get("old")] += 1
                if "by" in one:
                    why = tuple(one[name] for name in ("by", "needed", "free", "computed"))
                    found["cause", request, why, None] += 1
            seen.append(found)
        assert seen == told_by([step.plan for step in arm_of(busy, arm).steps]), arm
    kinds = {name[0] for found in seen for name in found}
    assert {"copied", "evicted", "preempted", "swapped", "returned", "cause"} < kinds


def test_the_list_of_events_names_them(opened: Opened, busy: Record) -> None:
    page, told = opened.page, told_by([step.plan for step in arm_of(busy, "paged").steps])
    for step in (20, 30, 40, 50):
        page.evaluate("at => pagedkv.player.go(at)", step)
        lines = page.locator("#player-history li").all_inner_texts()
        assert lines[0].startswith(f"Step {step}, ")
        assert len(lines) == 5
        now = [line for line in lines if line.startswith(f"Step {step}, Paged")]
        single = [
            f"block {blocks[0]} → request {request}."
            for what, request, blocks, _ in told[step]
            if what == "allocated" and len(blocks) == 1
        ]
        if len(now) < len(lines):  # else there may have been no room
            assert all(any(one in line for line in now) for one in single)
    assert Translator("en")("player.events") in page.inner_text("#player-stage")


def test_the_history_of_a_block_is_that_of_the_log(opened: Opened, busy: Record) -> None:
    """At several steps: the four latest of what happened to a block, and the next two."""
    page, t = opened.page, Translator("en")
    told = told_by([step.plan for step in arm_of(busy, "paged").steps])
    copies = [
        (at, what[3]) for at, found in enumerate(told) for what in found if what[0] == "copied"
    ][:3]
    for step, source in ((9, 38), (36, 26), (59, 11), *copies):
        page.evaluate("at => pagedkv.player.go(at)", step)
        for block in (0, 3, source):
            past: list[str] = []
            later: list[str] = []
            for at, found in enumerate(told):
                lines = [
                    t(f"player.history.{what}", step=at, request=request, old=old or 0)
                    for what, request, blocks, old in found
                    if block in blocks and not what.startswith(("waits", "cause"))
                ]
                lines += [
                    t("player.history.lent", step=at, block=blocks[0])
                    for what, _, blocks, old in found
                    if what == "copied" and old == block
                ]
                (past if at <= step else later).extend(lines)
            move_to(page, block)
            about = page.inner_text(".side:nth-child(2) .about-block")
            story = about.replace(t("player.later") + " ", "").split(" · ")
            story[0] = re.sub(r"^.*?(?=Step \d)", "", story[0])
            assert Counter(one.strip() for one in story[-len(later[:2]) :]) <= Counter(later)
            kept = [one.strip() for one in story[: len(past[-4:])]]
            steps = [re.match(r"Step (\d+)", line)[1] for line in past[-4:]]  # type: ignore[index]
            assert [re.match(r"Step (\d+)", line)[1] for line in kept] == steps  # type: ignore[index]
            assert set(kept) <= set(past)


def test_time_puts_both_sides_at_the_same_second(opened: Opened) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(12)")
    page.click('label[for="player-by-time"]')
    first = page.evaluate("pagedkv.player.counters().map(one => one.step)")
    assert first == [12, 12]  # in this log every step of both arms takes a second
    page.click('label[for="player-by-step"]')
    assert page.evaluate("pagedkv.player.state.at") == 12


def test_its_sentences_follow_the_language(opened: Opened) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(30)")
    page.click('[data-language="zh"]')
    until(page, "document.querySelector('#player-where').textContent.includes('步')")
    said = page.inner_text("#player-stage")
    for english in ("request", "wasted", "Step ", "Paged engine"):
        assert english not in said
    page.click('[data-language="en"]')
    until(page, "document.querySelector('#player-where').textContent.includes('step')")
    assert "步" not in page.inner_text("#player-stage")


def scrolled_to(open_page: OpenPage, file: Path, **options: Any) -> Opened:
    """The page, scrolled to its player."""
    one = open_page(file, viewport={"width": 1300, "height": 900}, **options)
    scroll(one.page)
    return one


def scroll(page: Any) -> None:
    page.evaluate("document.getElementById('player-stage').scrollIntoView({behavior: 'instant'})")


LIVE = "pagedkv.player.counters().map(one => one.live)"


# Buttons that play, seek from the beginning and to the end; a request, an axis, a block.
TARGETS = ("#player-play", "#player-back", "#player-last", ".chip", 'label[for="player-by-time"]',
           ".side:nth-child(1) canvas")  # fmt: skip


def test_no_first_click_leaves_an_empty_picture(open_page: OpenPage, busy: Record) -> None:
    file = busy.directory / "report.html"
    page = open_page(file, viewport={"width": 1300, "height": 900}).page
    page.clock.install()
    for target in TARGETS:
        page.goto(file.as_uri())
        scroll(page)
        until(page, "pagedkv.player.state.playing")
        page.locator(target).first.click()
        assert all(page.evaluate(LIVE)), target
        assert not page.evaluate("pagedkv.player.state.loop")
        page.click("#player-play")
        page.clock.run_for(200)
        assert all(page.evaluate(LIVE)), target


def test_it_plays_when_it_is_seen_and_again_from_the_peak_until_somebody_acts(
    open_page: OpenPage, report: Path
) -> None:
    one = open_page(report / "report.html", viewport={"width": 1300, "height": 900})
    page, step = one.page, "pagedkv.player.counters()[1].step"
    record = read_record(report)
    live = {row.step: row.live for row in timeline(arm_of(record, "paged"))[0]}
    peak = max(step for step, slots in live.items() if slots == max(live.values()))
    assert page.evaluate(step) == peak
    assert not page.evaluate("pagedkv.player.state.playing")  # out of sight
    page.clock.install()
    page.evaluate(
        "() => { window.seen = []; const look = now => {"
        f" const at = {step}, last = seen[seen.length - 1];"
        " if (!last || at !== last[0]) seen.push([at, now]); requestAnimationFrame(look); };"
        " requestAnimationFrame(look);"
        " document.getElementById('player-stage').scrollIntoView(); }"
    )
    until(page, "pagedkv.player.state.playing")
    page.clock.run_for(12_000)
    seen = page.evaluate("seen")
    assert [at for at, _ in seen[: 2 * peak + 3]] == [peak, *range(peak + 1), *range(peak + 1)]
    held = seen[peak + 2][1] - seen[peak + 1][1]
    assert 1900 < held < 3000
    # Chosen, it stands still; played again, it runs to the end and stops there.
    page.locator(".chip").first.click()
    assert not page.evaluate("pagedkv.player.state.playing")
    page.click("#player-play")
    page.clock.run_for(12_000)
    assert not page.evaluate("pagedkv.player.state.playing")
    assert page.evaluate("pagedkv.player.state.at === pagedkv.player.state.stops.length - 1")


def test_without_motion_it_opens_at_the_peak_and_stands_still(
    open_page: OpenPage, busy: Record
) -> None:
    page = scrolled_to(open_page, busy.directory / "report.html", reduced_motion="reduce").page
    page.clock.install()
    page.clock.run_for(500)
    assert not page.evaluate("pagedkv.player.state.playing")
    live = max(row.live for row in timeline(arm_of(busy, "paged"))[0])
    assert page.evaluate(LIVE)[1] == live
    page.evaluate("pagedkv.player.go(3)")
    picture = "document.querySelector('.side:nth-child(2) canvas').toDataURL()"
    page.click("#player-on")
    drawn = page.evaluate(picture)
    page.clock.run_for(900)  # marks stay until the next step
    assert page.evaluate(picture) == drawn


def test_a_second_of_the_run_takes_as_long_to_watch_wherever_it_is(
    open_page: OpenPage, busy: Record, rows: dict[str, dict[int, Any]]
) -> None:
    """In this log each step takes a second; the arm that ends first keeps its last picture."""
    one = scrolled_to(open_page, busy.directory / "report.html")
    page = one.page
    page.click('label[for="player-by-time"]')
    page.click("#player-first")
    page.select_option("#player-speed", "16")
    page.clock.install()
    page.evaluate(
        "() => { window.seen = []; const look = now => {"
        " seen.push([now, pagedkv.player.state.clock, ...pagedkv.player.counters()"
        ".map(one => one.step)]);"
        " requestAnimationFrame(look); };"
        " document.getElementById('player-play').click(); requestAnimationFrame(look); }"
    )
    page.clock.run_for(8_000)
    assert not page.evaluate("pagedkv.player.state.playing")
    seen = page.evaluate("seen")[1:]
    end = max(clock for _, clock, *_ in seen)
    assert end == max(map(len, rows.values()))
    during = [each for each in seen if each[1] < end]
    began, first, *_ = during[0]
    for now, clock, *steps in during:
        assert clock - first == pytest.approx(16 * (now - began) / 1000, abs=0.5 + 0.03 * clock)
        for arm, step in zip(("slabs", "paged"), steps, strict=True):
            assert step == shown(rows[arm], int(clock) - 1).step
    ended = min(rows, key=lambda arm: len(rows[arm]))
    side = f".side:nth-child({1 + (ended == 'paged')})"
    # As the arm says: its steps were measured in between.
    took = next(event.generate_s for event in busy.of(ArmFinished) if event.arm == ended)
    assert page.inner_text(f"{side} .done") == f"done in {took:.2f}\u00a0s"
    assert all(page.evaluate(LIVE))


def test_the_address_has_the_state_and_opens_it_again(open_page: OpenPage, busy: Record) -> None:
    file = busy.directory / "report.html"
    one = scrolled_to(open_page, file)
    page = one.page
    page.click("#player-first")
    for _ in range(6):
        page.click("#player-on")
    page.locator(".chip >> nth=1").click()
    request = page.inner_text(".chip >> nth=1")
    page.fill("#player-token", "2")
    assert page.evaluate("location.hash") == f"#step=6&request={request}&token=2"
    page.locator(".side:nth-child(1) select").select_option("paged")
    address = page.evaluate("location.hash")
    assert address == f"#step=6&request={request}&token=2&left=paged"
    now = "JSON.stringify([pagedkv.player.counters(), pagedkv.player.state.pinned])"
    state = page.evaluate(now)
    said = page.inner_text(".side:nth-child(2) .address")
    page.reload()
    assert page.evaluate(now) == state
    assert page.inner_text(".side:nth-child(2) .address") == said
    assert not page.evaluate("pagedkv.player.state.playing")
    page.evaluate("location.hash = '#step=3'")
    until(page, "pagedkv.player.state.at === 3")
    arms = page.evaluate("pagedkv.player.counters().map(one => one.arm)")
    assert arms == ["slabs", "paged"]
    page.evaluate("location.hash = '#about'")
    page.wait_for_timeout(200)
    assert page.evaluate("pagedkv.player.state.at") == 3
    page.click('label[for="player-by-time"]')
    assert page.evaluate("location.hash") == "#time=4"
    page.reload()
    assert page.evaluate("pagedkv.player.state.clock") == 4


@pytest.mark.parametrize("scale", [1, 1.5])
def test_nothing_remains_of_blocks_that_were_freed(
    open_page: OpenPage, busy: Record, scale: float
) -> None:
    """A picture that came step by step is that which is drawn at once."""
    file = busy.directory / "report.html"
    width = {"width": 1237, "height": 900}
    one = open_page(file, viewport=width, device_scale_factor=scale)
    page = one.page
    pictures = "[...document.querySelectorAll('canvas')].map(one => one.toDataURL())"
    drawn = page.evaluate(
        f"() => {{ for (let at = 1; at < 82; at++) pagedkv.player.go(at); return {pictures}; }}"
    )
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    page.wait_for_timeout(200)
    assert page.evaluate(pictures) == drawn


def test_a_picture_of_both_pools_is_copied_or_saved(open_page: OpenPage, busy: Record) -> None:
    one = scrolled_to(open_page, busy.directory / "report.html")
    one.page.evaluate("() => { navigator.clipboard.write = () => Promise.reject(); }")
    with one.page.expect_download() as caught:
        one.page.click("#player-picture")
    picture = imread(caught.value.path())
    both = one.page.evaluate("[...document.querySelectorAll('canvas')].map(one => one.width)")
    assert picture.shape[1] > sum(both)
    one.context.grant_permissions(["clipboard-read", "clipboard-write"])
    one.page.evaluate("() => { delete navigator.clipboard.write; }")
    one.page.click("#player-picture")
    until(one.page, "document.querySelector('#player-done').textContent.includes('clipboard')")


def test_unwritten_and_free_slots_differ_in_the_dark(open_page: OpenPage, busy: Record) -> None:
    """By their contrast, for each colour of a request."""
    one = open_page(busy.directory / "report.html", color_scheme="dark")
    contrasts = one.page.evaluate(
        """() => {
          const node = document.createElement('canvas');
          node.getContext('2d', { willReadFrequently: true });  // by this test alone
          document.getElementById('player').append(node);
          const film = { slab: false, engine: 0, blocks: 8, size: 8, frames: [] };
          const pool = new pagedkv.Pool(film);
          const canvas = new pagedkv.Canvas(node, pool, () => []);
          canvas.layout({ row: 64, height: 32, rows: 1 }, 512);
          const light = (piece) => {
            const { data } = canvas.context.getImageData(...piece.map(one => one * canvas.ratio));
            const mean = [0, 0, 0, 0];
            data.forEach((value, i) => { mean[i % 4] += value / (data.length / 4); });
            const [r, g, b] = mean.map(value => (value / 255) ** 2.2);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
          };
          return pagedkv.COLOURS.map((_, request) => {
            const pieces = canvas.pieces(0, 0, 8);
            canvas.area(pieces, canvas.theme.sheet);
            const free = light(pieces[0]);
            canvas.area(pieces, canvas.paint(request, 'held'));
            return light(pieces[0]) / free;
          });
        }"""
    )
    assert min(contrasts) > 1.3


def test_no_swatch_of_a_state_has_the_colour_of_a_request(
    open_page: OpenPage, busy: Record
) -> None:
    """Swatches are grey, and each looks different; requests have all the colours."""
    page = open_page(busy.directory / "report.html", device_scale_factor=2).page
    palette = page.evaluate("pagedkv.COLOURS")
    requests = [tuple(int(each[at : at + 2], 16) for at in (1, 3, 5)) for each in palette]
    assert min(max(each) - min(each) for each in requests) > 60
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        samples = page.locator("#player-stage .sample >> visible=true").all()
        pictures = [imread(BytesIO(sample.screenshot())) for sample in samples]
        assert len(pictures) >= 8
        for sample, picture in zip(samples, pictures, strict=True):
            name = sample.get_attribute("class")
            pixels = picture[..., :3]
            assert 255 * (pixels.max(axis=-1) - pixels.min(axis=-1)).max() < 30, (scheme, name)
        assert len({picture.tobytes() for picture in pictures}) == len(pictures)


def test_a_request_with_the_focus_may_end(opened: Opened, rows: dict[str, dict[int, Any]]) -> None:
    """Its button goes, and so does what was shown because of the focus."""
    opened.page.evaluate("pagedkv.player.go(2)")
    opened.page.focus(".chip >> nth=0")
    end = opened.page.evaluate(LAST)
    opened.page.evaluate("at => pagedkv.player.go(at)", end)
    assert opened.page.evaluate("pagedkv.player.state.hovered") is None
    held = opened.page.locator(".chip").all_inner_texts()
    assert 1 <= len(held) <= max(shown(steps, end).running for steps in rows.values()) + 1


# A pool of `blocks` of `size` slots in rows of `row`: for each slot of each block, whether its
# middle is found to be the block's, and is drawn; the rows of a block, and its width without the
# last slot.
PLACES = """([size, blocks, slab, row, width, height]) => {
  const film = { slab, size, blocks, engine: 0, elastic: false, frames: [] };
  const node = document.createElement('canvas');
  const canvas = new pagedkv.Canvas(node, new pagedkv.Pool(film), () => []);
  canvas.layout({ row, height, rows: 99 }, width);
  const covers = ([x, y], pieces) =>
    pieces.some(([left, top, w, h]) => x >= left && x <= left + w && y >= top && y <= top + h);
  const found = [];
  for (let block = 0; block < blocks; block++) for (let slot = 0; slot < size; slot++) {
    const middle = canvas.middle(block, slot);
    const whole = canvas.pieces(block, 0, size);
    found.push([canvas.under(...middle).block === block, covers(middle, whole)]);
  }
  const wide = (to) => canvas.pieces(1, 0, to).reduce((sum, [, , w]) => sum + w, 0);
  return { found, rows: canvas.pieces(1, 0, size).length, whole: wide(size), most: wide(size - 1) };
}"""


@pytest.mark.parametrize(
    ("pool", "rows"),
    [((100, 3, True, 40, 400, 20), 3), ((1000, 2, True, 512, 460, 3), 3),
     ((512, 4, True, 512, 460, 30), 1), ((16, 10, False, 160, 140, 20), 1)],
)  # fmt: skip
def test_every_slot_has_its_place_in_its_block(
    opened: Opened, pool: tuple[int, ...], rows: int
) -> None:
    """In a slab over several rows, and in the last slot where slots are as narrow as a gap."""
    places = opened.page.evaluate(PLACES, list(pool))
    assert all(all(one) for one in places["found"])
    assert places["rows"] == rows
    assert places["most"] < places["whole"]


def request_of(page: Any, side: int) -> int:
    """The request whose table a side shows."""
    said = re.search(r"equest (\d+)", page.inner_text(f".side:nth-child({side}) .table-head"))
    assert said is not None
    return int(said[1])


def test_a_token_is_asked_for_of_the_request_whose_table_was_clicked(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("Escape")
    page.evaluate("Object.assign(pagedkv.player.state, { pinned: null, hovered: null })")
    for step in range(page.evaluate(LAST)):
        page.evaluate("at => pagedkv.player.go(at)", step)
        left, right = request_of(page, 1), request_of(page, 2)
        if left != right:
            break
    assert left != right
    page.locator(".side:nth-child(1) .table-entries li >> nth=0").click()
    assert page.evaluate("pagedkv.player.state.pinned.request") == left
    assert request_of(page, 2) == left
    page.fill("#player-token", "")
    page.click(f".chip:text-is('{left}')")


def test_another_arm_is_shown_at_the_second_of_before(open_page: OpenPage, report: Path) -> None:
    """Its steps end at other times, so that the seconds at which something changes are others."""
    one = open_page(report / "report.html")
    page = one.page
    page.evaluate("pagedkv.player.go(0)")
    page.click('label[for="player-by-time"]')
    page.click("#player-last")
    for _ in range(4):
        page.click("#player-back")
    step = page.evaluate("pagedkv.player.counters()[1].step")
    page.locator(".side:nth-child(1) select").select_option("paged")
    assert page.evaluate("pagedkv.player.counters().map(one => one.step)") == [step, step]
