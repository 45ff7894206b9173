"""Claims, the paper, a benchmark and a comparison: their pages, and their places in the index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import html5lib
import pytest
from chart_checks import charts_of, untold
from data_keys import assert_keys_lead, body_of, embedded, keyed_nodes, name
from full_tables import full_bench, full_claims, full_paper, full_sweep

from experiment.bench.data import write_data
from experiment.compare.gate import GateResult, Limit
from experiment.compare.results import Figure, Side
from experiment.compare.sides import compare_sides
from experiment.experiments.claim_runs import claim_row
from experiment.experiments.claims import CLAIMS, Judged, judge
from experiment.report.facts.bench import all_tables
from experiment.report.facts.compare import gate_text
from experiment.report.files.markdown import summarise
from experiment.report.files.markup import plain
from experiment.report.files.write import write_listed
from experiment.report.pages.bench import bench_html
from experiment.report.pages.claims import claims_html, claims_text
from experiment.report.pages.compare import compare_csv, compare_html, compare_reports
from experiment.report.pages.index import write_index
from experiment.report.pages.index_entries import entries
from experiment.report.pages.paper import paper_html, paper_text
from experiment.report.pages.sweep import sweep_csv, sweep_data, sweep_html
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from kvsim.paper.memory import closed_form_claims


def claims(judged: Sequence[Judged], lang: str) -> str:
    rows = [claim_row(one, {}) for one in judged]
    return claims_html(judged, [], {}, json.loads(json.dumps({"claims": rows})), lang)


def sweep(lang: str) -> str:
    rows = full_sweep()
    return sweep_html(sweep_data(rows), sweep_csv(rows), lang)


# What each page is made of, and how many values of its file it names at least, in a language.
FULL: dict[str, tuple[Callable[[str], str], int]] = {
    "claims": (lambda lang: claims(full_claims(), lang), 10),
    "paper": (lambda lang: paper_html(full_paper(), lang), 22),
    "bench": (lambda lang: bench_html(full_bench(), lang), 0),
    "sweep": (sweep, 20),
}


def page_of(kind: str, lang: str) -> str:
    return FULL[kind][0](lang)


def parts_of(body: Any) -> dict[str, Any]:
    """What a page says in each language alone."""
    parts = {lang: html5lib.parseFragment("<div></div>", namespaceHTMLElements=False)[0]
             for lang in LANGUAGES}  # fmt: skip
    for node in body.iter("div"):
        if node.get("lang"):
            parts[node.get("lang")].append(node)
    return parts


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", FULL)
def test_a_page_of_tables_holds_both_languages_and_shows_one(kind: str, lang: str) -> None:
    text = page_of(kind, lang)
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    page = parser.parse(text)
    assert not parser.errors
    assert page.get("lang") == lang
    ids = [node.get("id") for node in page.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    parts = list(parts_of(page.find("body")).values())
    assert len(parts) == len(LANGUAGES)
    # What is set apart within a cell may stand in the words of one language only.
    small = {"span", "small"}
    shapes = [[one for one in map(name, part.iter()) if one not in small] for part in parts]
    assert shapes[0] == shapes[1]
    rows = [len(list(part.iter("tr"))) for part in parts]
    assert rows[0] == rows[1] > 2


def test_the_pages_hold_what_they_are_of() -> None:
    t = Translator("en")
    page = html5lib.parse(claims(judge({}), "en"), namespaceHTMLElements=False)
    english = parts_of(page.find("body"))["en"]
    # The claim alone: below it stands why it has no verdict.
    said = [(cell.text or "").strip().replace("\u00a0", " ") for cell in english.iter("th")]
    assert [t(f"claims.{claim.name}") for claim in CLAIMS] == said[4:]
    assert not list(english.iter("a"))  # nothing was run
    run = {"capacity": Path("claims/capacity-2")}
    rows = [claim_row(one, run) for one in judge({})]
    runs = {name: place.name for name, place in run.items()}
    linked = html5lib.parse(
        claims_html(judge({}), [], runs, {"claims": rows}, "en"), namespaceHTMLElements=False
    )
    for part in parts_of(linked.find("body")).values():
        leads = {(link.get("href"), link.text) for link in part.iter("a")}
        assert leads == {("capacity-2/report.html", "capacity")}
    assert "819,200\u00a0B" in page_of("paper", "en")
    for figure in ("107.5", "25.0\u00a0ms", "81\u00a0%"):
        assert figure in page_of("bench", "en")
    for table in all_tables(t, full_bench())[:6]:
        assert [row[0] for row, style in zip(table.rows, table.styles, strict=True) if style] == [
            t("arm_name.paged")
        ]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_ci_job_gets_what_the_page_says(
    lang: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    t, data = Translator(lang), full_paper()
    for told in (paper_text(t, data), claims_text(t, judge({}), [], {})):
        summarise(told)
        written = summary.read_text(encoding="utf-8")
        assert f"**{plain(told.headline)}**" in written
        for table in told.tables:
            for row in table.rows:
                assert f"| {' | '.join(map(plain, row))} |" in written
        for line in [*told.facts, *chain.from_iterable(told.lists.values())]:
            assert f"- {plain(line)}\n" in written
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    with pytest.raises(UserError, match=str(tmp_path)):
        summarise(told)


def side(value: float) -> Side:
    figure = Figure.model_validate(
        {"id": "paged/live_slots", "arm": "paged", "metric": "live_slots", "unit": "count",
         "kind": "count", "better": "more", "value": value}
    )  # fmt: skip
    return Side(
        name=f"run-{value:g}", kind="run", schema_version=1, version="1", wall_ns=10**18,
        utc_offset_s=0, status="complete", command=[], figures={figure.id: figure},
    )  # fmt: skip


def test_a_comparison_shows_what_both_sides_recorded() -> None:
    found = compare_sides(side(1), side(3))
    body = body_of(compare_html(found, compare_csv(found), "en"))
    assert_keys_lead(body, found.model_dump(mode="json"), least=2)
    said = {n.get("data-key"): "".join(n.itertext()) for n in body.iter() if n.get("data-key")}
    assert said["rows.0.left.value"] == "1"
    assert said["rows.0.right.value"] == "3"
    folded = {n.get("data-key") for one in body.iter("details") for n in one.iter()}
    assert found.rows[0].verdict == "not_comparable"
    assert "rows.0.left.value" in folded


def test_a_gate_says_how_many_limits_do_not_hold() -> None:
    passed, failed = (
        GateResult(Limit("paged/steps", "max", number), "paged/steps", None, number, verdict)
        for number, verdict in ((1, "passed"), (2, "failed"))
    )
    t = Translator("en")
    assert gate_text(t, [passed]).headline == "All 1 limits hold."
    both = gate_text(t, [passed, failed])
    assert both.headline == "1 of 2 limits do not hold."
    assert [row[2] for row in both.tables[0].rows] == ["2", "1"]  # failed ones first


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", FULL)
def test_every_key_is_a_path_to_a_value_of_the_file(kind: str, lang: str) -> None:
    body, least = body_of(page_of(kind, lang)), FULL[kind][1]
    data = embedded(body)
    assert_keys_lead(body, data, least=least)
    assert_keys_lead(parts_of(body)[lang], data, least=least)


def test_of_a_long_open_table_the_first_rows_are_shown_and_paper_says_where_the_others_are() -> (
    None
):
    few = full_sweep()
    rows = [row | {"id": f"{row['id']}-{n}", "max_num_seqs": n} for n in range(40) for row in few]
    page = body_of(sweep_html(sweep_data(rows), sweep_csv(rows), "en"))
    verdict = next(page.iter("section"))
    part = next(node for node in verdict.iter("div") if node.find("div/table") is not None)
    t = Translator("en")
    folded = next(part.iter("details"))
    assert "".join(folded.find("summary").itertext()) == t("report.more_rows", n=16)
    assert [len(list(body.iter("tr"))) for body in part.iter("tbody")] == [24, 16]
    printed = next(n for n in part.iter("p") if "printed" in n.get("class"))
    assert "".join(printed.itertext()) == t("sweep.more", n=16, path="summary.json")


def test_the_tables_of_a_benchmark_hold_medians_ratios_and_spreads() -> None:
    t = Translator("en")
    speed, times, memory = all_tables(t, full_bench())[:3]
    rows = {row[0]: row[1:] for row in speed.rows}
    assert rows[t("arm_name.paged")] == [
        "107.5 (100.5 … 114.5)", "—", "0.25 s (0.12 … 0.38)", "3",
    ]  # fmt: skip
    shares = {row[0]: (row[2], row[-1]) for row in times.rows}
    assert shares[t("arm_name.paged")] == ("81 % (81 … 81)", "38 % (38 … 38)")
    assert rows[t("arm_name.slabs")][1] == "2.00 (2.00 … 2.00)"
    assert rows[t("arm_name.vllm")][1] == "—"  # its tokens are others: no ratio is made
    assert rows[t("arm_name.transformers_paged")] == [*["—"] * 3, "0"]
    cells = {row[0]: row[1:] for row in memory.rows}[t("arm_name.paged")]
    assert cells == ["144 MiB", "28 MiB", "1.20 GiB (1.23 GiB)", "—", "0", "0"]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_sweep_draws_what_it_measured_and_says_why_a_cell_has_nothing(lang: str) -> None:
    body = body_of(page_of("sweep", lang))
    wide = {chart.get("id"): chart for chart in charts_of(body) if "wide" in chart.get("class")}
    assert set(wide) == {f"sweep-{name}-wide" for name in ("live", "running", "latency", "rate")}
    assert untold(body) == []
    # Two policies over two budgets, of which none holds a block of the smaller one.
    drawn = [n for n in wide["sweep-live-wide"].iter() if name(n) == "path"]
    points = [n for n in drawn if "point" in n.get("class").split()]
    assert len(points) == 2
    said = ["".join(n.itertext()) for n in parts_of(body)[lang].iter("td")
            if n.get("colspan") == "5"]  # fmt: skip
    t = Translator(lang)
    why = [t("error.sim.pool_too_small", budget=1024, needed=2**20 * n) for n in (1, 3)]
    assert [text.replace("\u00a0", " ") for text in said] == [
        t("sweep.refused", why=w) for w in why
    ]
    assert "pool_too_small" not in "".join(parts_of(body)[lang].itertext())


def test_the_index_lists_them_newest_first_with_what_they_found(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    claims = {"claims": [{"verdict": v} for v in ("shown", "shown", "untested")]}
    for kind, data in (("claims", claims), ("paper", full_paper())):
        (reports / kind).mkdir(parents=True)
        (reports / kind / f"{kind}.json").write_text(json.dumps(data), encoding="utf-8")
        (reports / kind / f"{kind}.html").write_text("<p>", encoding="utf-8")
    write_data(reports / "bench", full_bench())
    (reports / "bench" / "bench.html").write_text("<p>", encoding="utf-8")
    files = compare_reports(compare_sides(side(1), side(3)), "en")
    written = write_listed(reports / "compare", files, "en")
    assert written[-1] == reports / "index.html"
    for hours, kind in enumerate(("paper", "claims", "compare")):
        summary = next((reports / kind).glob("*.json"))
        os.utime(summary, (1_800_000_000 + 3600 * hours,) * 2)
    found = entries(reports)
    assert [one.kind for one in found] == ["compare", "claims", "paper", "bench"]
    assert found[0].subject == "run-1 → run-3"
    assert found[1].verdict.params == {"n": 3, "shown": 2, "not_shown": 0, "untested": 1}
    assert found[2].verdict.params["holds"] >= len(closed_form_claims())
    assert found[3].when == "2026-03-01 10:00"
    assert found[3].verdict.params["arms"] == 4
    path = write_index(reports / "bench", "zh")
    assert path is not None
    page = html5lib.parse(path.read_text(encoding="utf-8"), namespaceHTMLElements=False)
    links = [a.get("href") for a in page.iter("a") if "/" in (a.get("href") or "")]
    assert links == [f"{k}/{k}.html" for k in ("compare", "claims", "paper", "bench")]
    assert all((reports / link).is_file() for link in links)
    # Their verdicts are made of the files; of them the benchmark alone says when it was.
    assert [node.get("data-key") for node in keyed_nodes(page)] == ["started"]


def test_a_damaged_summary_is_listed_as_one(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    (reports / "claims").mkdir(parents=True)
    (reports / "claims" / "claims.json").write_text("{}", encoding="utf-8")
    (reports / "claims" / "claims.html").write_text("<p>", encoding="utf-8")
    assert [one.kind for one in entries(reports)] == ["unreadable"]
