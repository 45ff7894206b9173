"""The player as a person meets it: the first play, and the legend; in a real browser."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from matplotlib.image import imread
from pages import Opened, until

from experiment.record.log import Record
from experiment.replay.arm_events import split_by_arm
from experiment.replay.timeline import timeline


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
