"""Hostile prompts, size, paper: in a real browser, and with the page's file in hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from busy_run import make_run, plans
from chart_checks import charts_of, untold
from data_keys import body_of, embedded
from full_tables import full_sweep
from pages import OpenPage
from sample import make_record, write_page

from experiment.analysis.conclusions import evaluate
from experiment.replay import frames
from experiment.replay.timeline import PoolSnapshot
from experiment.report.facts.bilingual import Bilingual
from experiment.report.page import page as html
from experiment.report.page.page import report_html
from experiment.report.page.slotmap import map_of, slot_map
from experiment.report.pages.sweep import sweep_csv, sweep_data, sweep_html
from experiment.text import LANGUAGES, Translator
from kvsim.accounting.ledger import Owner, PoolShape

HOSTILE = (
    "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>\"'`${1}",
    "\u202e\u2066 right to left \u2069\u200f👩‍👩‍👧‍👦 \u2028 ]]> --> {{ 7 * 7 }}",
    "W" * 1_000_000,
)


def test_hostile_prompts_do_nothing(open_page: OpenPage, tmp_path: Path) -> None:
    file = write_page(make_record(tmp_path, prompts=HOSTILE))
    one = open_page(file, viewport={"width": 390, "height": 844})
    one.page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    assert one.page.evaluate("window.hurt") is None
    assert len(one.requests) == 1
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
    one.page.click('[data-language="zh"]')
    assert one.page.locator("#player-play").is_visible()
    assert file.stat().st_size < 1_000_000


def test_the_policy_lets_no_script_reach_the_network(open_page: OpenPage, report: Path) -> None:
    one = open_page(report / "report.html")
    one.context.set_offline(False)
    blocked = one.page.evaluate(
        "fetch('data:text/plain,hello').then(() => 'reached', () => 'refused')"
    )
    assert blocked == "refused"
    one.complaints.clear()


def test_the_policy_lets_no_script_run_that_is_not_ours(open_page: OpenPage, report: Path) -> None:
    one = open_page(report / "report.html")
    one.page.evaluate(
        """() => {
          const script = document.createElement('script');
          script.textContent = 'window.hurt = 1';
          document.body.append(script);
          const button = document.createElement('button');
          button.setAttribute('onclick', 'window.hurt = 2');
          document.body.append(button);
          button.click();
        }"""
    )
    assert one.page.evaluate("window.hurt") is None
    assert ["Content Security Policy" in text for text in one.complaints] == [True, True]
    one.complaints.clear()


def test_a_long_run_is_thinned_and_says_so(
    open_page: OpenPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MOST_FRAMES", 40)
    paged = list(plans(64, 4, 30))
    slabs = list(plans(6, 40, 30, children=0))
    file = write_page(make_run(tmp_path, paged, slabs, blocks=64))
    one = open_page(file)
    every = frames.frame_size(max(len(paged), len(slabs)))  # all arms alike
    assert every > 1
    said = one.page.inner_text(".side:nth-child(2) .thinned")
    assert f"one frame is {every} of {len(paged)} steps" in said
    assert one.page.evaluate("pagedkv.player.state.stops.length") <= 40


def test_nothing_in_the_player_lies_over_anything_else_however_many_requests_there_are(
    open_page: OpenPage, tmp_path: Path
) -> None:
    many = list(plans(640, 4, 60, children=0, max_num_seqs=60))
    file = write_page(make_run(tmp_path, many, list(plans(6, 40, 8, children=0)), blocks=640))
    one = open_page(file, viewport={"width": 1300, "height": 900})
    assert one.page.evaluate(OVERLAPS) == []


# Neighbours of a side, from top to bottom.
OVERLAPS = """() => [...document.querySelectorAll('.side')].flatMap(side => {
  const parts = [...side.children].filter(node => node.getClientRects().length);
  return parts.slice(1).filter((node, at) =>
    node.getBoundingClientRect().top < parts[at].getBoundingClientRect().bottom - 1
  ).map(node => node.className);
})"""


def test_a_page_that_is_too_large_thins_what_is_embedded_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_run(
        tmp_path, list(plans(64, 4, 30)), list(plans(6, 40, 30, children=0)), blocks=64
    )
    results = evaluate(record)
    whole = report_html(record, results, "en")
    most = len(whole.encode()) - 12_000
    monkeypatch.setattr(html, "_MAX_PAGE", most)
    page = report_html(record, results, "en")
    assert len(page.encode()) <= most
    films, data = (embedded(body_of(page), name) for name in ("player-data", "run-data"))
    before = embedded(body_of(whole))["left_out"]
    every = {film["every"] for film in films["films"]}
    assert every == {max(every)}
    assert max(every) > 1 or len(data["left_out"]) > len(before)
    assert untold(body_of(page)) == []


def test_it_prints_to_a4_without_the_player_and_the_controls(
    open_page: OpenPage, report: Path
) -> None:
    one = open_page(report / "report.html", color_scheme="dark")
    pdf = one.page.pdf(format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    assert 3 <= pdf.count(b"/Type /Page\n") <= 30
    one.page.emulate_media(media="print")
    white = "getComputedStyle(document.body).backgroundColor"
    assert one.page.evaluate(white) == "rgb(255, 255, 255)"
    for hidden in ("#player-stage", ".controls", "nav", "#downloads", ".played"):
        assert not one.page.locator(hidden).is_visible(), hidden
    assert one.page.get_by_text(Translator("en")("player.still")).is_visible()
    assert one.page.locator("#map-wide").is_visible()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_page_of_tables_fits_on_paper_and_names_its_data_where_no_button_can(
    open_page: OpenPage, tmp_path: Path, lang: str
) -> None:
    file = tmp_path / "sweep.html"
    rows = [row | {"block_size": 16 * n} for n, row in enumerate(full_sweep())]
    file.write_text(sweep_html(sweep_data(rows), sweep_csv(rows), lang), encoding="utf-8")
    said = Translator(lang)("report.about.beside", file="summary.json")
    one = open_page(file, viewport={"width": 690, "height": 900})
    assert not one.page.get_by_text(said).is_visible()
    one.page.emulate_media(media="print")
    assert one.page.get_by_text(said).is_visible()
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 690
    plain = open_page(file, java_script_enabled=False)
    assert plain.page.get_by_text(said).is_visible()


def test_the_page_of_a_run_of_many_requests_stays_small_and_says_what_is_left_out(
    tmp_path: Path,
) -> None:
    record = make_record(tmp_path)
    results = evaluate(record)
    arms = []
    for arm in results.arms:
        requests = [
            one.model_copy(update={"request": number, "tokens": [50_000] * 300, "text": "x" * 900})
            for number in range(1500)
            for one in arm.requests[:1]
        ]
        done = [row for row in arm.memory if row.request == 0]
        memory = [row.model_copy(update={"request": n}) for n in range(1500) for row in done]
        update = {"requests": requests, "memory": [*arm.memory, *memory]}
        arms.append(arm.model_copy(update=update))
    others = ("slabs", "contiguous.growing", "transformers_paged", "vllm")
    arms += [arms[1].model_copy(update={"arm": name}) for name in others]
    page = report_html(record, results.model_copy(update={"arms": arms}), "en")
    assert len(page.encode()) < 1_500_000
    body = body_of(page)
    assert untold(body) == []
    assert {"latency-wide", "first_token-narrow"} <= {c.get("id") for c in charts_of(body)}
    about = next(n for n in body.iter("section") if n.get("aria-labelledby") == "about")
    said = "".join(about.itertext())
    left_out = re.findall(r"results[\w.*]+", said)
    parts = {"results.arms.*.requests.*.tokens", "results.arms.*.requests.*.text"}
    assert parts | {"results.arms.*.requests"} <= set(left_out)
    assert "requests" not in embedded(body)["results"]["arms"][0]
    whole = "".join(body.itertext())
    assert "1,484 more requests are in run.json." in whole
    assert "more stages" in whole


def test_the_picture_of_a_large_pool_leaves_the_page_to_the_player() -> None:
    """4,096 blocks that all belong to somebody, neighbours to different requests."""
    blocks, owners = 4096, 80
    holders = {
        request: Owner(list(range(request, blocks, owners)), written=16 * (blocks // owners) - 8)
        for request in range(owners)
    }
    one = map_of("paged", PoolSnapshot(PoolShape(blocks, 16, 4), 0, holders), 2048)
    assert one is not None
    assert 100_000 < len(slot_map(Bilingual("en"), [one])) < 250_000
