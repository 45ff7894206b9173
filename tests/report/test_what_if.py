"""Sliders of a run's page: its own numbers at its own settings, and kvsim's everywhere else."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import sample
from pages import Opened, OpenPage

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Results
from experiment.events import ModelPrepared, WorkloadReady, WorkloadRequest
from experiment.record.log import Record, read_record
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.values import written
from experiment.report.page.page import report_html
from experiment.report.page.what_if import what_if
from experiment.text import LANGUAGES, Translator
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens
from kvsim.sizing.geometry import max_concurrent_requests

QUICK = Path(__file__).parents[1] / "corpus" / "logs" / "quick"
QUARTERS = (1, 2, 3, 4, 6, 8, 12, 16)
ROWS = ("block_size", "allocated_bytes", "allocated_slots", "live_share", "fits")
_MOVE = """moves => moves.map(at => {
  for (const name of ['max_length', 'block_size', 'lengths']) {
    const slider = document.getElementById('what-if-' + name);
    slider.value = at[name];
    slider.dispatchEvent(new Event('input'));
  }
  const text = kind =>
    [...document.querySelectorAll('#run-what-if ' + kind)].map(n => n.textContent);
  return [text('tbody td'), text('.answers p:not([hidden])')];
})"""

At = Mapping[str, int]


def worked_example(folder: Path) -> Record:
    """Prompts of 2, 13, 110 and 2 tokens, 50 new ones each, 512 slots a slab, blocks of 16."""
    return _sample(folder, (2, 13, 110, 2), new=50, longest=512, block=16)


def odd_sizes(folder: Path) -> Record:
    """Blocks of 12; with four times its tokens a request has exactly the maximum length, 200."""
    return _sample(folder, (7, 101, 33), new=25, longest=200, block=12)


def many(folder: Path) -> Record:
    """Sixty requests of any lengths, of which the arms ran three."""
    draw = random.Random(5)
    requests = [
        WorkloadRequest(
            id=i, prompt="x", token_ids=[1] * draw.randint(1, 200),
            max_new_tokens=draw.randint(1, 300),
        )
        for i in range(60)
    ]  # fmt: skip
    record = sample.make_record(folder)
    size = 9 * 512 * sample.SLOT_BYTES + 1000
    return _with(record, requests=requests, max_length=512, block_size=32, budget_bytes=size)


def _sample(folder: Path, prompts: Sequence[int], new: int, longest: int, block: int) -> Record:
    sizes = {"LENGTHS": prompts, "NEW": new, "MAX_LENGTH": longest, "BLOCK": block}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(sample, name, value)
        patch.setattr(sample, "BUDGET", len(prompts) * longest * sample.SLOT_BYTES)
        arms = ("contiguous.batch", "paged")
        return sample.make_record(folder, ["x"] * len(prompts), arms)


def _with(record: Record, **workload: Any) -> Record:
    """The record with another workload."""
    events = (
        event.model_copy(update=workload) if isinstance(event, WorkloadReady) else event
        for event in record.events
    )
    return replace(record, events=tuple(events))


RUNS = {
    "example": worked_example,
    "odd": odd_sizes,
    "many": many,
    "quick": lambda _: read_record(QUICK),
}


class Sliders:
    """A run's page, and what kvsim computes for positions of its sliders."""

    def __init__(self, browser: Any, folder: Path, run: str) -> None:
        self.record = RUNS[run](folder)
        self.results = evaluate(self.record)
        self.file = folder / "page.html"
        page = report_html(self.record, self.results, "en")
        self.file.write_text(page, encoding="utf-8")
        self.opened = Opened(browser, self.file, viewport={"width": 1280, "height": 900})
        workload, model = self.record.first(WorkloadReady), self.record.first(ModelPrepared)
        assert workload is not None
        assert model is not None
        self.workload, self.slot_bytes = workload, model.slot_bytes
        pairs = [(len(r.token_ids), r.max_new_tokens) for r in workload.requests]
        longest = max(final_tokens(*pair) for pair in pairs)
        powers = [2**n for n in range(11)]
        assert model.max_positions == powers[-1]
        self.pairs = pairs
        self.max_lengths = sorted({workload.max_length, *(p for p in powers if p >= longest)})
        self.start = {
            "block_size": self.block_sizes(workload.max_length).index(workload.block_size),
            "max_length": self.max_lengths.index(workload.max_length),
            "lengths": QUARTERS.index(4),
        }

    def block_sizes(self, longest: int) -> list[int]:
        several = {self.workload.block_size, *(2**n for n in range(11))}
        return sorted({longest, *(size for size in several if size < longest)})

    def values(self, at: At) -> tuple[int, int, int]:
        """Block size, maximum length, quarters."""
        longest = self.max_lengths[at["max_length"]]
        return self.block_sizes(longest)[at["block_size"]], longest, QUARTERS[at["lengths"]]

    def every(self) -> list[At]:
        """All positions of all sliders."""
        return [
            {"block_size": block, "max_length": place, "lengths": lengths}
            for place, longest in enumerate(self.max_lengths)
            for block, lengths in product(
                range(len(self.block_sizes(longest))), range(len(QUARTERS))
            )
        ]

    def show(self, moves: Sequence[At]) -> list[tuple[list[str], list[str]]]:
        """Cells and sentences of the page for each position."""
        shown = self.opened.page.evaluate(_MOVE, moves)
        return [([plain(c) for c in cells], [plain(s) for s in said]) for cells, said in shown]

    def lengths(self, at: At) -> list[int]:
        _, longest, quarters = self.values(at)
        return [
            min(final_tokens(prompt, -(-new * quarters // 4)), longest)
            for prompt, new in self.pairs
        ]

    def share(self, at: At, block: int) -> float:
        lengths = self.lengths(at)
        return sum(lengths) / sum(blocks_needed(length, block) * block for length in lengths)

    def expected(self, at: At, lang: str = "en") -> tuple[list[str], list[str]]:
        """kvsim's numbers as the page writes them."""
        block, longest, quarters = self.values(at)
        lengths = self.lengths(at)
        columns = []
        for size in (1, block, longest):
            slots = sum(blocks_needed(length, size) for length in lengths) * size
            blocks = self.workload.budget_bytes // (size * self.slot_bytes)
            columns.append([
                written(size, "count"), written(slots * self.slot_bytes, "bytes"),
                written(slots, "count"), written(sum(lengths) / slots, "share"),
                written(max_concurrent_requests(lengths, blocks, size), "count"),
            ])  # fmt: skip
        t = Translator(lang)
        factor = self.share(at, block) / self.share(at, longest)
        said = [t("what_if.saves", factor=factor, block=block)]
        if block == 1:
            said = [t("what_if.exact")]
        if block == longest:
            said = [t("what_if.one_block", block=block)]
        cut = sum(prompt + -(-new * quarters // 4) - 1 > longest for prompt, new in self.pairs)
        said += [t("what_if.cut", n=cut)] if cut else []
        return [cell for row in zip(*columns, strict=True) for cell in row], said

    def points(self, kind: str) -> list[tuple[float, float]]:
        """Places of the chart's points, as (x, share)."""
        low, high = self._edges()
        found = self.opened.page.eval_on_selector_all(
            f"#what-if-chart .{kind}",
            "all => all.map(n => [n.cx.baseVal.value, n.cy.baseVal.value])",
        )
        return [(x, (low - y) / (low - high)) for x, y in found]

    def _edges(self) -> tuple[float, float]:
        """Where the chart has 0 % and 100 %."""
        lines = self.opened.page.eval_on_selector_all(
            "#what-if-chart :is(.axis, .grid)", "all => all.map(n => n.getBBox().y)"
        )
        return max(lines), min(lines)


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def static_cells(page: str) -> list[str]:
    """Cells of the table as the page is written."""
    table = page.partition('id="what-if-numbers"')[2].partition("</table>")[0]
    return [plain(cell) for cell in re.findall(r"<td>(.+?)</td>", table)]


@pytest.fixture(scope="module", params=RUNS)
def sliders(
    browser: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sliders]:
    made = Sliders(browser, tmp_path_factory.mktemp("run"), request.param)
    yield made
    assert made.opened.complaints == []
    assert set(made.opened.requests) == {made.file.as_uri()}
    made.opened.context.close()


@pytest.fixture
def example(sliders: Sliders) -> Sliders:
    """For tests ``of_runs("example")``."""
    sliders.opened.page.reload()
    return sliders


def of_runs(*runs: str) -> pytest.MarkDecorator:
    """A test of these runs alone."""
    return pytest.mark.parametrize("sliders", runs, indirect=True)


@of_runs("example")
def test_it_opens_with_the_run_s_own_numbers(example: Sliders) -> None:
    rows = [["1", "16", "512"], ["323 KiB", "352 KiB", "2 MiB"], ["323", "352", "2,048"],
            ["100.0 %", "91.8 %", "15.8 %"], ["25", "23", "4"]]  # fmt: skip
    cells = [cell for row in rows for cell in row]
    assert static_cells(example.file.read_text(encoding="utf-8")) == cells
    assert example.opened.page.locator("#what-if-numbers td").all_inner_texts()[1:] == [
        cell.replace(" ", "\u00a0") for cell in cells
    ]
    arms = {arm.arm: arm for arm in example.results.arms}
    for arm, column in (("paged", 1), ("contiguous.batch", 2)):
        peak = arms[arm].peak
        assert peak is not None
        shown = [row[column] for row in rows]
        assert shown[2:] == [
            f"{peak.allocated:,.0f}", f"{peak.utilisation:.1%}".replace("%", " %"),
            str(arms[arm].fits),
        ]  # fmt: skip


def test_without_script_it_has_kvsim_s_numbers_too(sliders: Sliders) -> None:
    cells, said = sliders.expected(sliders.start)
    page = sliders.file.read_text(encoding="utf-8")
    assert static_cells(page) == cells
    assert all(text in plain(page) for text in said)


def test_every_combination_of_positions_is_kvsim_s(sliders: Sliders) -> None:
    moves = sliders.every()
    assert len(moves) > 100
    random.Random(0).shuffle(moves)
    assert sliders.show(moves) == [sliders.expected(at) for at in moves]


@of_runs("example")
def test_the_contiguous_cache_stays_contiguous_at_another_maximum_length(
    example: Sliders,
) -> None:
    page = example.opened.page
    example.show([example.start | {"block_size": len(example.block_sizes(512)) - 1}])
    slider = page.get_by_role("slider", name=Translator("en")("what_if.max_length"))
    slider.press("ArrowRight")
    cells = page.locator("#what-if-numbers td").all_inner_texts()
    assert cells[1:4] == ["1", "1,024", "1,024"]
    slider.press("Home")
    cells = page.locator("#what-if-numbers td").all_inner_texts()
    assert cells[1:4] == ["1", "256", "256"]


def test_the_chart_has_a_point_for_each_block_size(sliders: Sliders) -> None:
    for at in (sliders.start, *random.Random(1).sample(sliders.every(), 5)):
        sliders.show([at])
        block, longest, _ = sliders.values(at)
        sizes = sliders.block_sizes(longest)
        points = sliders.points("computed")
        assert [share for _, share in points] == pytest.approx(
            [sliders.share(at, size) for size in sizes], abs=1e-3
        )
        assert [x for x, _ in points] == sorted(x for x, _ in points)
        assert sliders.points("at") == [pytest.approx(points[sizes.index(block)])]


def test_the_position_of_the_slider_is_a_line_that_can_be_seen(sliders: Sliders) -> None:
    paint = "node => getComputedStyle(node).stroke"
    assert sliders.opened.page.eval_on_selector("#what-if-chart .moment", paint) != "none"


@of_runs("example", "quick")
def test_what_was_measured_lies_on_the_curve_and_stays_there(sliders: Sliders) -> None:
    sliders.show([sliders.start])
    arms = {arm.block_size: arm for arm in sliders.results.arms}
    sizes = sliders.block_sizes(sliders.workload.max_length)
    computed, measured = sliders.points("computed"), sliders.points("measured")
    assert len(measured) == len(arms) == 2
    for (size, arm), (x, share) in zip(arms.items(), measured, strict=True):
        assert (x, share) == pytest.approx(computed[sizes.index(size or 0)])
        assert arm.peak is not None
        assert share == pytest.approx(arm.peak.utilisation)
    as_run = sliders.opened.page.get_attribute("#what-if-chart .as-run", "d")
    sliders.show([sliders.start | {"lengths": 0}])
    assert sliders.points("measured") == measured
    assert sliders.opened.page.get_attribute("#what-if-chart .as-run", "d") == as_run
    assert sliders.points("computed") != computed


@of_runs("example")
def test_it_says_it_in_few_words(example: Sliders) -> None:
    for lang in LANGUAGES:
        example.opened.page.click(f'[data-language="{lang}"]')
        shown = example.opened.page.inner_text("#run-what-if")
        assert len(re.findall(r"[A-Za-z]+|[\u4e00-\u9fff]{2}", shown)) < 90
    example.opened.page.click('[data-language="en"]')


def test_an_arm_whose_requests_did_not_end_together_has_no_point(tmp_path: Path) -> None:
    record = many(tmp_path)
    made = what_if(Bilingual("en"), record, evaluate(record))
    assert made is not None
    assert made.measured == []


def test_the_keyboard_moves_a_slider_and_the_language_changes_what_is_said(
    sliders: Sliders,
) -> None:
    page, at = sliders.opened.page, dict(sliders.start)
    sliders.show([at])
    for name in at:
        slider = page.get_by_role("slider", name=Translator("en")(f"what_if.{name}"))
        step = -1 if at[name] else 1
        slider.press("ArrowLeft" if step < 0 else "ArrowRight")
        at[name] += step
        block, longest, quarters = sliders.values(at)
        text = {"block_size": f"{block:,}", "max_length": f"{longest:,}",
                "lengths": f"× {quarters / 4:g}"}[name]  # fmt: skip
        assert plain(slider.get_attribute("aria-valuetext")) == text
        if name == "max_length":  # blocks of the sizes below it
            at["block_size"] = min(at["block_size"], len(sliders.block_sizes(longest)) - 1)
    for lang in ("zh", "en"):
        page.click(f'[data-language="{lang}"]')
        cells = [plain(c) for c in page.locator("#what-if-numbers td").all_inner_texts()[1:]]
        said = page.locator("#run-what-if").get_by_role("status").locator("p:visible")
        assert (cells, [plain(line) for line in said.all_inner_texts()]) == sliders.expected(
            at, lang
        )
        axis = page.locator("#what-if-chart text", has_text=Translator(lang)("what_if.block_size"))
        assert axis.count() == 1


@of_runs("example")
def test_paper_has_the_run_s_own_settings(example: Sliders) -> None:
    page = example.opened.page
    moved = example.start | {"lengths": 0, "block_size": 0}
    example.show([moved])
    page.evaluate(
        """window.addEventListener('beforeprint', () => {
          const cells = [...document.querySelectorAll('#run-what-if tbody td')];
          window.printed = cells.map(n => n.textContent);
        })"""
    )
    page.pdf(format="A4")
    assert [plain(c) for c in page.evaluate("window.printed")] == example.expected(example.start)[0]
    cells = page.locator("#what-if-numbers td").all_inner_texts()[1:]
    assert [plain(cell) for cell in cells] == example.expected(moved)[0]
    page.emulate_media(media="print")
    assert not page.locator("#run-what-if .sliders").is_visible()
    assert page.locator("#what-if-chart").is_visible()
    page.emulate_media(media="screen")


def test_it_fits_a_telephone(sliders: Sliders) -> None:
    page = sliders.opened.page
    before = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    for lang in LANGUAGES:
        page.click(f'[data-language="{lang}"]')
        assert page.locator("#run-what-if .sliders").is_visible()
        assert page.locator("#what-if-numbers table").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("document.getElementById('what-if-numbers').scrollWidth") <= 350
    page.click('[data-language="en"]')
    page.set_viewport_size(before)


@of_runs("example")
def test_its_numbers_need_no_script(open_page: OpenPage, example: Sliders) -> None:
    page = open_page(example.file, java_script_enabled=False).page
    assert not page.locator("#run-what-if .sliders").is_visible()
    assert page.locator("#what-if-numbers table").is_visible()


def left_out(record: Record, results: Results) -> bool:
    """Whether the page of a run has no such section, and is whole without it."""
    missing = what_if(Bilingual("en"), record, results) is None
    page = report_html(record, results, "en")
    assert ('id="run-what-if"' not in page) == missing
    assert ('href="#run_what_if"' not in page) == missing
    return missing


def test_it_is_left_out_where_the_rule_does_not_hold(tmp_path: Path, busy: Record) -> None:
    record = worked_example(tmp_path)
    results, workload = evaluate(record), record.first(WorkloadReady)
    assert workload is not None
    assert not left_out(record, results)
    # Blocks are shared: within the run, among samples, among beams, by a prefix cache.
    assert left_out(busy, evaluate(busy))
    for sampling in ({"n": 2}, {"beam_width": 2}):
        shared = workload.sampling.model_copy(update=sampling)
        assert left_out(_with(record, sampling=shared), results)
    found = {"queried": 0, "hit_cross": 0, "hit_batch": 0, "requeried": 0, "hit_own": 0,
             "hit_again": 0}  # fmt: skip
    for change in ({"prefix_cache": found}, {"scale_bytes": 8}, {"slot_bytes": 512}):
        arms = [results.arms[0], results.arms[1].model_copy(update=change)]
        assert left_out(record, results.model_copy(update={"arms": arms}))
    assert left_out(_with(record, requests=[]), results)
    assert left_out(_with(record, requests=workload.requests * 2000), results)
