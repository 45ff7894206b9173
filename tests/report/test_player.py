"""The player in a real browser: what it shows is what the log says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from busy_run import BLOCK, BLOCKS
from matplotlib.image import imread
from pages import Opened, until
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.record.log import Record
from experiment.replay import frames
from experiment.replay.arm_events import split_by_arm
from experiment.replay.timeline import timeline
from experiment.report.page.page import report_html
from experiment.report.player.film import KEY_EVERY
from kvsim.accounting.ledger import Ledger, PoolShape

COUNTED = ("reserved", "allocated", "live", "wasted", "padding", "finished", "unwritten", "cached",
           "free", "shared")  # fmt: skip


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


def positions(rows: dict[str, dict[int, Any]]) -> list[int]:
    return random.Random(9).sample(range(1, max(map(len, rows.values())) + 1), 10)


def assert_counters(seen: dict[str, Any], steps: dict[int, Any], at: int) -> None:
    """A side shows what the log says of a step, or of its last one where that came before."""
    expected = steps[min(at, max(steps))]
    assert seen["step"] == expected.step
    for name in COUNTED:
        assert seen[name] == getattr(expected, name), (seen["arm"], expected.step, name)


def test_counters_are_those_of_the_log_at_ten_random_steps(
    opened: Opened, rows: dict[str, dict[int, Any]]
) -> None:
    for position in positions(rows):
        opened.page.evaluate("at => pagedkv.player.go(at)", position)
        both = opened.page.evaluate("pagedkv.player.counters()")
        assert [seen["arm"] for seen in both] == ["slabs", "paged"]
        for seen in both:
            assert_counters(seen, rows[seen["arm"]], position - 1)
        said = opened.page.inner_text("#player-where")
        assert said == f"step {position - 1} / {max(max(steps) for steps in rows.values())}"


def test_the_numbers_on_the_page_are_those_of_the_log(
    opened: Opened, rows: dict[str, dict[int, Any]]
) -> None:
    opened.page.evaluate("pagedkv.player.go(30)")
    for side, arm in enumerate(("slabs", "paged"), 1):
        cells = opened.page.eval_on_selector_all(
            f"#player-stage .side:nth-child({side}) td[data-counter]",
            "all => all.map(one => [one.dataset.counter, one.textContent])",
        )
        assert len(cells) == 11
        row = rows[arm][29]
        assert cells == [[name, f"{getattr(row, name):,.0f}"] for name, _ in cells]
        wasted = opened.page.inner_text(f".side:nth-child({side}) .waste-share")
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
            happened = page.inner_text(f".side:nth-child({side}) .happened")
            assert f"Running {row.running}," in happened.replace("\u00a0", " ")
            live = f".side:nth-child({side}) td[data-counter=live]"
            assert page.inner_text(live) == f"{row.live:,.0f}"
    page.select_option("#player-speed", "12")


def test_a_thinned_run_shows_both_sides_at_the_same_step(
    browser: Any, busy: Record, rows: dict[str, dict[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So few frames that one arm alone would have to be thinned.
    longer, shorter = sorted(map(len, rows.values()), reverse=True)
    monkeypatch.setattr(frames, "MOST_FRAMES", (longer + shorter) // 2)
    file = busy.directory / "thinned.html"
    file.write_text(report_html(busy, evaluate(busy), "en"), encoding="utf-8")
    one = Opened(browser, file)
    assert one.page.evaluate("pagedkv.player.state.end") == -(-longer // 2)
    thinned = (
        "JSON.parse(document.getElementById('player-data').textContent).films.map(f => f.every)"
    )
    assert one.page.evaluate(thinned) == [2, 2]
    for position in random.Random(5).sample(range(1, -(-longer // 2) + 1), 10):
        one.page.evaluate("at => pagedkv.player.go(at)", position)
        for seen in one.page.evaluate("pagedkv.player.counters()"):
            assert_counters(seen, rows[seen["arm"]], 2 * position - 1)
    one.context.close()


def test_stepping_back_comes_to_the_same_state_as_stepping_on(opened: Opened) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(20)")
    before = page.evaluate("pagedkv.player.counters()")
    for _ in range(5):
        page.click("#player-on")
    assert page.evaluate("pagedkv.player.state.at") == 25
    for _ in range(5):
        page.click("#player-back")
    assert page.evaluate("pagedkv.player.counters()") == before


def test_jumping_back_starts_from_a_whole_picture(
    opened: Opened, rows: dict[str, dict[int, Any]]
) -> None:
    for position in (len(rows["paged"]), KEY_EVERY + 4, KEY_EVERY, KEY_EVERY - 1, 0):
        opened.page.evaluate("at => pagedkv.player.go(at)", position)
        seen = opened.page.evaluate("pagedkv.player.counters()")[1]
        expected = rows["paged"].get(position - 1)
        for name in COUNTED:
            empty = seen["reserved"] if name in ("reserved", "free") else 0
            assert seen[name] == (getattr(expected, name) if expected else empty), (position, name)


def test_it_plays_to_the_end_and_stops(opened: Opened, rows: dict[str, dict[int, Any]]) -> None:
    page = opened.page
    page.select_option("#player-speed", "60")
    page.evaluate(f"pagedkv.player.go({len(rows['paged']) - 8})")
    page.select_option("#player-speed", "1")
    page.click("#player-play")
    assert page.locator("#player-play .when-playing").is_visible()
    assert not page.locator("#player-play .when-paused").is_visible()
    assert page.get_attribute("#player-play", "aria-pressed") == "true"
    page.select_option("#player-speed", "60")
    until(page, "!pagedkv.player.state.playing")
    assert page.locator("#player-play .when-paused").is_visible()
    assert page.evaluate("pagedkv.player.state.at") == max(map(len, rows.values()))


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
    page.keyboard.press("Enter")
    pinned = page.evaluate("pagedkv.player.state.pinned")
    assert f"Request {pinned}:" in page.inner_text(".side:nth-child(2) .table-head")
    page.keyboard.press("Escape")
    assert page.evaluate("pagedkv.player.state.pinned") is None
    page.keyboard.press(" ")
    assert page.evaluate("pagedkv.player.state.playing")
    page.keyboard.press(" ")
    assert not page.evaluate("pagedkv.player.state.playing")


def test_the_request_under_the_pointer_shows_its_block_table(opened: Opened, busy: Record) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(30)")
    tables = page.evaluate(
        "[...document.querySelectorAll('.side:nth-child(2) .chip')].map(one => one.textContent)"
    )
    page.hover(f".side:nth-child(2) .chip:has-text('{tables[0]}') >> nth=0")
    entries = page.locator(".side:nth-child(2) .table-entries b").all_inner_texts()
    events = next(e for e in split_by_arm(busy) if e.arm == "paged")
    frame = page.evaluate("pagedkv.player.counters()[1].step")
    assert events.pool is not None
    ledger = Ledger(PoolShape(events.pool.blocks, events.pool.block_size, 4))
    for step in events.steps[: frame + 1]:
        ledger.apply(step.plan)
    table = ledger.owners[int(tables[0])].table
    assert entries == [f"{logical} → {block}" for logical, block in enumerate(table)]


def test_padding_is_no_token_that_a_request_has_written(browser: Any, tmp_path: Path) -> None:
    """In a slab the line says as much as the sentence above it, and the bar begins behind it."""
    record = make_record(tmp_path)
    (tmp_path / "report.html").write_text(
        report_html(record, evaluate(record), "en"), encoding="utf-8"
    )
    opened = Opened(browser, tmp_path / "report.html", viewport={"width": 1300, "height": 900})
    page = opened.page
    page.evaluate("pagedkv.player.go(2)")
    events = next(e for e in split_by_arm(record) if e.arm == "contiguous.batch")
    assert events.pool is not None
    size = events.pool.block_size
    ledger = Ledger(PoolShape(events.pool.blocks, size, 4))
    for step in events.steps[: page.evaluate("pagedkv.player.counters()[0].step") + 1]:
        ledger.apply(step.plan)
    padded = {request: held for request, held in ledger.owners.items() if held.padding}
    assert padded
    for request, held in padded.items():
        page.hover(f".side:nth-child(1) .chip:text-is('{request}') >> nth=0")
        entry = page.locator(".side:nth-child(1) .table-entries li >> nth=0")
        assert entry.locator("small").inner_text() == f"{held.written}/{size}"
        left = entry.locator("i").evaluate("bar => bar.style.left")
        assert float(left.rstrip("%")) == pytest.approx(100 * held.padding / size, abs=0.01)
    assert opened.complaints == []
    opened.context.close()


def test_pointing_at_a_block_shows_whose_it_is(opened: Opened, busy: Record) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(30)")
    events = next(e for e in split_by_arm(busy) if e.arm == "paged")
    ledger = Ledger(PoolShape(BLOCKS, BLOCK, 4))
    for step in events.steps[:30]:
        ledger.apply(step.plan)
    canvas = page.locator(".side:nth-child(2) canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    columns, rows = 8, BLOCKS // 8
    for block in (0, 7, 8, 21, BLOCKS - 1):
        owners = [r for r, h in ledger.owners.items() if block in h.table]
        x = (block % columns + 0.5) * box["width"] / columns
        page.mouse.move(box["x"] + x, box["y"] + (block // columns + 0.5) * box["height"] / rows)
        shown = page.inner_text(".side:nth-child(2) .table-head")
        assert any(f"Request {owner}:" in shown for owner in owners) or not owners, block
        hint = canvas.get_attribute("title")
        logical = {ledger.owners[o].table.index(block) for o in owners}
        assert hint.startswith(f"Block {block}")
        assert not owners or f"logical block {logical.pop()}," in hint


def test_time_puts_both_sides_at_the_same_second(opened: Opened) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(12)")
    page.click('label[for="player-by-time"]')
    first = page.evaluate("pagedkv.player.counters().map(one => one.step)")
    assert first == [11, 11]  # in this log every step of both arms takes a second
    page.click('label[for="player-by-step"]')
    assert page.evaluate("pagedkv.player.state.at") == 12


def test_its_sentences_follow_the_language(opened: Opened) -> None:
    page = opened.page
    page.evaluate("pagedkv.player.go(30)")
    page.click('[data-language="zh"]')
    until(page, "document.querySelector('#player-where').textContent.includes('步')")
    said = page.inner_text("#player-stage")
    for english in ("Running", "slots wasted", "Step ", "Paged engine"):
        assert english not in said
    page.click('[data-language="en"]')
    until(page, "document.querySelector('#player-where').textContent.includes('step')")
    assert "步" not in page.inner_text("#player-stage")


def test_without_motion_marks_stay_until_the_next_step(browser: Any, busy: Record) -> None:
    one = Opened(browser, busy.directory / "report.html", reduced_motion="reduce")
    one.page.evaluate("pagedkv.player.go(3)")
    picture = "document.querySelector('.side:nth-child(2) canvas').toDataURL()"
    one.page.click("#player-on")
    drawn = one.page.evaluate(picture)
    one.page.wait_for_timeout(900)
    assert one.page.evaluate(picture) == drawn
    one.context.close()


@pytest.mark.parametrize("axis", ["step", "time"])
def test_the_first_play_leads_from_the_beginning_to_the_peak(
    browser: Any, busy: Record, axis: str
) -> None:
    one = Opened(browser, busy.directory / "report.html", viewport={"width": 1300, "height": 900})
    page = one.page
    (paged_arm,) = (events for events in split_by_arm(busy) if events.arm == "paged")
    live = {row.step: row.live for row in timeline(paged_arm)[0]}
    peak = max(step for step, slots in live.items() if slots == max(live.values()))
    paged = "pagedkv.player.counters()[1].step"
    assert page.evaluate(paged) == peak
    page.click(f'label[for="player-by-{axis}"]')
    page.evaluate(
        "() => { window.seen = []; const look = () => {"
        f" const at = {paged}; if (at !== seen[seen.length - 1]) seen.push(at);"
        " requestAnimationFrame(look); };"
        " document.getElementById('player-play').addEventListener('click', look); }"
    )
    page.select_option("#player-speed", "60")
    page.click("#player-play")
    until(page, f"!pagedkv.player.state.playing && {paged} === {peak}")
    assert page.evaluate("seen") == [None, *range(peak + 1)]
    # Pressed again, it goes on from there.
    page.click("#player-play")
    until(page, "!pagedkv.player.state.playing")
    assert page.evaluate("pagedkv.player.state.at === pagedkv.player.state.end")
    assert one.complaints == []
    one.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_swatch_of_a_state_has_the_colour_of_a_request(
    browser: Any, busy: Record, scheme: str
) -> None:
    """Swatches are grey, and each looks different; requests have all the colours."""
    file = busy.directory / "report.html"
    one = Opened(browser, file, color_scheme=scheme, device_scale_factor=2)
    palette = one.page.evaluate("pagedkv.COLOURS")
    requests = [tuple(int(each[at : at + 2], 16) for at in (1, 3, 5)) for each in palette]
    assert min(map(chroma, requests)) > 60
    samples = one.page.locator("#player-stage .sample").all()
    pictures = [imread(BytesIO(sample.screenshot())) for sample in samples]
    assert len(pictures) >= 10
    for sample, picture in zip(samples, pictures, strict=True):
        name = sample.get_attribute("class")
        pixels = {tuple(round(255 * part) for part in one[:3]) for row in picture for one in row}
        assert max(map(chroma, pixels)) < 30, name
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)
    one.context.close()


def chroma(colour: tuple[int, ...]) -> int:
    """How far a colour is from grey, 0 to 255."""
    return max(colour) - min(colour)
