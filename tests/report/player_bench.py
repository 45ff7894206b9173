"""How long a frame of the player takes: ``make bench-player``.

A pool of 4,096 blocks whose requests come and go for a thousand steps, and slabs of the same bytes
beside it, are played to the end in headless Chromium at a step per frame. Printed are, over all
frames, the time from one to the next (what a person sees, on this machine as busy as it is), and
the CPU time of the page's main thread for a step, which other programs do not lengthen.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from busy_run import make_run, plans
from pages import CHROMIUM, FLAGS, until
from playwright.sync_api import sync_playwright

from experiment.analysis.conclusions import evaluate
from experiment.report.page.page import report_html

BLOCKS, BLOCK, LONGEST, STEPS = 4096, 16, 2048, 1000
WATCH = """() => {
  const times = window.frameTimes = [];
  let last = null;
  const see = now => {
    if (last !== null) times.push(now - last);
    last = now;
    if (pagedkv.player.state.playing) requestAnimationFrame(see);
  };
  const go = pagedkv.player.state.at;
  pagedkv.player.go(0);
  document.getElementById('player-speed').selectedIndex = pagedkv.player.speeds.length - 1;
  pagedkv.player.play(true);
  requestAnimationFrame(see);
}"""
END = "pagedkv.player.state.stops.at(-1)"
STEP = """at => new Promise(done => requestAnimationFrame(() => {
  pagedkv.player.go(at);
  requestAnimationFrame(done);
}))"""


def page_of(directory: Path) -> Path:
    """A report whose player has the pool and the steps that are asked for."""
    limits: dict[str, Any] = {"prefix_caching": True, "max_num_batched_tokens": 2048}
    paged = list(islice(plans(BLOCKS, BLOCK, 900, longest=1200, **limits), STEPS))
    slots = BLOCKS * BLOCK // LONGEST
    slabs = list(islice(plans(slots, LONGEST, 900, children=0, longest=1200), STEPS))
    record = make_run(directory, paged, slabs, BLOCKS, BLOCK, LONGEST)
    results = evaluate(record)
    used = max(
        arm.peak.allocated / BLOCK for arm in results.arms if arm.arm == "paged" and arm.peak
    )
    page = report_html(record, results, "en")
    (directory / "report.html").write_text(page, encoding="utf-8")
    print(
        f"page {len(page.encode()) / 2**20:.2f} MiB, {len(paged)} steps,"
        f" {used:,.0f} blocks at the peak"
    )
    return directory / "report.html"


def report(name: str, times: Sequence[float]) -> None:
    """Median and the upper end of a distribution, in milliseconds."""
    cuts = statistics.quantiles(times, n=100)
    print(
        f"{name}: n={len(times)} median {cuts[49]:.1f} P90 {cuts[89]:.1f} P95 {cuts[94]:.1f}"
        f" P99 {cuts[98]:.1f} max {max(times):.1f} ms"
    )


def cpu_times(page: Any) -> list[float]:
    """CPU milliseconds of the main thread for each step: script, layout and painting."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

    times = []
    page.evaluate("pagedkv.player.state.playing = true")  # each step is drawn as one of a film
    for at in range(page.evaluate(END) + 1):
        before = spent()
        page.evaluate(STEP, at)
        times.append(spent() - before)
    page.evaluate("pagedkv.player.state.playing = false")
    session.detach()
    return times


def main() -> None:
    """Play, and print the distributions of each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        file = page_of(Path(scratch))
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(file.as_uri())
        opened = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        print(f"opened after {opened:.0f} ms")
        page.locator("#player").scroll_into_view_if_needed()
        for _ in range(rounds):
            page.evaluate(WATCH)
            until(page, "!pagedkv.player.state.playing", 300)
            report("frame to frame", page.evaluate("window.frameTimes"))
            report("CPU time      ", cpu_times(page))
        browser.close()


if __name__ == "__main__":
    main()
