"""Claims, the paper, a benchmark and a comparison: their pages, and their places in the index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import html5lib
import pytest
from chart_checks import charts_of
from full_tables import full_bench, full_claims, full_paper, full_sweep
from keyed_page import assert_keys_hold, body_of, name, numbers_without_key

from experiment.bench.data import BenchData, Round, write_data
from experiment.bench.rows import Row
from experiment.claims_command import claim_row
from experiment.compare.checks import write_comparison
from experiment.compare.results import Figure, Side
from experiment.compare.sides import compare_sides
from experiment.experiments.claims import CLAIMS, Judged, judge
from experiment.i18n import LANGUAGES, Translator
from experiment.report import bench_page
from experiment.report.bench_keys import bench_document
from experiment.report.bench_page import bench_html
from experiment.report.bench_tables import all_tables
from experiment.report.claims_page import claims_html, counted
from experiment.report.compare_page import compare_csv, compare_document, compare_html
from experiment.report.index import entries, write_index
from experiment.report.paper import paper_document
from experiment.report.paper_page import paper_html
from experiment.report.sweep_page import sweep_csv, sweep_data, sweep_document, sweep_html
from kvsim.paper.memory import closed
from kvsim.paper.parts import result_of

BENCH = BenchData(
    version="1", started="2026-03-01T10:00:00+01:00", model={"name": "gpt2", "dtype": "float32"},
    rounds=[Round(workload="A", round=0, arms=["paged", "slabs"], directory="runs/a")],
    rows=[
        Row.model_validate(
            {"workload": "A", "round": 0, "arm": arm, "status": "finished", "requests": 4,
             "useful_tokens_per_s": rate}
        )
        for arm, rate in (("paged", 1234.5), ("slabs", 617.25))
    ],
    targets=[],
)  # fmt: skip


def paper() -> dict[str, Any]:
    return {"program": "1"} | result_of(closed(), (0,)).to_json()


def claims(judged: Sequence[Judged], lang: str) -> str:
    rows = [claim_row(one, {}) for one in judged]
    return claims_html(judged, {}, json.loads(json.dumps({"claims": rows})), lang)


def page_of(kind: str, lang: str) -> str:
    if kind == "claims":
        return claims(judge({}), lang)
    if kind == "sweep":
        return sweep(lang)
    return paper_html(paper(), lang) if kind == "paper" else bench_html(BENCH, lang)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", ["claims", "paper", "bench", "sweep"])
def test_a_page_of_tables_holds_both_languages_and_shows_one(kind: str, lang: str) -> None:
    text = page_of(kind, lang)
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    page = parser.parse(text)
    assert not parser.errors
    assert page.get("lang") == lang
    ids = [node.get("id") for node in page.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    parts = [node for node in page.find("body").iter("div") if node.get("lang")]
    assert sorted(node.get("lang") for node in parts) == sorted(LANGUAGES)
    shapes = [[name(node) for node in part.iter()] for part in parts]
    assert shapes[0] == shapes[1]
    rows = [len(list(part.iter("tr"))) for part in parts]
    assert rows[0] == rows[1] > 2


def test_the_pages_hold_what_they_are_of() -> None:
    t = Translator("en")
    page = html5lib.parse(page_of("claims", "en"), namespaceHTMLElements=False)
    english = next(node for node in page.iter("div") if node.get("lang") == "en")
    # The claim alone: below it stands why it has no verdict.
    said = [(cell.text or "").strip() for cell in english.iter("th")]
    assert [t(f"claims.{claim.name}") for claim in CLAIMS] == said[4:]
    assert "819,200 B" in page_of("paper", "en")
    assert "1,234.5" in page_of("bench", "en")


def side(value: float) -> Side:
    figure = Figure.model_validate(
        {"id": "paged/live", "arm": "paged", "metric": "live", "unit": "count", "kind": "count",
         "better": "more", "value": value}
    )  # fmt: skip
    return Side(
        name=f"run-{value:g}", kind="run", schema_version=1, version="1", wall_ns=10**18,
        utc_offset_s=0, status="complete", command=[], figures={figure.id: figure},
    )  # fmt: skip


def test_every_number_of_a_comparison_is_what_it_recorded() -> None:
    found = compare_sides(side(1), side(3))
    body = body_of(compare_html(found, compare_csv(found), "en"))
    assert_keys_hold(body, compare_document(found), None, least=8)
    assert not numbers_without_key(body)
    said = {n.get("data-key"): "".join(n.itertext()) for n in body.iter() if n.get("data-key")}
    assert said["rows.0.left.value"] == "1"
    assert said["rows.0.right.value"] == "3"
    assert said["words.0.change"] == "—"
    folded = {n.get("data-key") for one in body.iter("details") for n in one.iter()}
    assert found.rows[0].verdict == "not_comparable"
    assert "rows.0.left.value" in folded


def sweep(lang: str) -> str:
    rows = full_sweep()
    return sweep_html(sweep_data(rows), sweep_csv(rows), lang)


def claims_document(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"headline": counted([one["verdict"] for one in data["claims"]]).model_dump()}


def whole_bench_document(data: dict[str, Any]) -> dict[str, Any]:
    found = BenchData.model_validate(data)
    return bench_document(found) | {"headline": bench_page.counted(found).model_dump()}


# What the page is made of, what its keys begin in, and how many there are at least.
FULL: dict[str, tuple[Callable[[str], str], Callable[[dict[str, Any]], dict[str, Any]], int]] = {
    "claims": (lambda lang: claims(full_claims(), lang), claims_document, 30),
    "paper": (lambda lang: paper_html(full_paper(), lang), paper_document, 60),
    "bench": (lambda lang: bench_html(full_bench(), lang), whole_bench_document, 100),
    "sweep": (sweep, sweep_document, 20),
}
FOOTNOTES = {"(1)", "(2)"}


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", FULL)
def test_every_number_is_what_the_file_says_that_the_page_holds(kind: str, lang: str) -> None:
    page, document, least = FULL[kind]
    body = body_of(page(lang))
    data = next(n.text for n in body.iter("script") if n.get("id") == "run-data")
    facts = document(json.loads(data))
    parts = {n.get("lang"): n for n in body.iter("div") if n.get("lang")}
    assert_keys_hold(parts[lang], facts, None, least=least, lang=lang)
    assert numbers_without_key(parts[lang]) <= FOOTNOTES


def test_the_tables_of_a_benchmark_hold_medians_ratios_and_spreads() -> None:
    t = Translator("en")
    speed, memory = all_tables(t, full_bench())[:2]
    rows = {row[0]: row[1:] for row in speed.rows}
    assert rows[t("arm_name.paged")] == [
        "107.5 (100.5 … 114.5)", "—", "0.25 s", "81 %", "38 %", "3"
    ]  # fmt: skip
    assert rows[t("arm_name.slabs")][1] == "2.00 (2.00 … 2.00)"
    assert rows[t("arm_name.vllm")][1] == "—"  # its tokens are others: no ratio is made
    assert rows[t("arm_name.transformers_paged")] == [*["—"] * 5, "0"]
    cells = {row[0]: row[1:] for row in memory.rows}[t("arm_name.paged")]
    assert cells == ["144 MiB", "28 MiB", "1.20 GiB (1.23 GiB)", "—", "0", "0"]


@pytest.mark.parametrize("kind", ["claims", "paper", "bench", "sweep"])
def test_they_are_tables_and_have_no_chart(kind: str) -> None:
    assert charts_of(body_of(page_of(kind, "en"))) == []


def test_the_index_lists_them_newest_first_with_what_they_found(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    claims = {"claims": [{"verdict": v} for v in ("shown", "shown", "untested")]}
    for kind, data in (("claims", claims), ("paper", paper())):
        (reports / kind).mkdir(parents=True)
        (reports / kind / f"{kind}.json").write_text(json.dumps(data), encoding="utf-8")
        (reports / kind / f"{kind}.html").write_text("<p>", encoding="utf-8")
    write_data(reports / "bench", BENCH)
    (reports / "bench" / "bench.html").write_text("<p>", encoding="utf-8")
    written = write_comparison(reports / "compare", compare_sides(side(1), side(3)), "en")
    assert written[-1] == reports / "index.html"
    for hours, kind in enumerate(("paper", "claims", "compare")):
        summary = next((reports / kind).glob("*.json"))
        os.utime(summary, (1_800_000_000 + 3600 * hours,) * 2)
    found = entries(reports)
    assert [one.kind for one in found] == ["compare", "claims", "paper", "bench"]
    assert found[0].subject == "run-1 → run-3"
    assert found[1].verdict.params == {"n": 3, "shown": 2, "not_shown": 0, "untested": 1}
    assert found[2].verdict.params["holds"] == len(closed())
    assert found[3].when == "2026-03-01 10:00"
    assert found[3].verdict.params["arms"] == 2
    path = write_index(reports / "bench", "zh")
    assert path is not None
    page = html5lib.parse(path.read_text(encoding="utf-8"), namespaceHTMLElements=False)
    links = [a.get("href") for a in page.iter("a") if "/" in (a.get("href") or "")]
    assert links == [f"{k}/{k}.html" for k in ("compare", "claims", "paper", "bench")]
    assert all((reports / link).is_file() for link in links)


def test_a_damaged_summary_is_listed_as_one(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    (reports / "claims").mkdir(parents=True)
    (reports / "claims" / "claims.json").write_text("{}", encoding="utf-8")
    (reports / "claims" / "claims.html").write_text("<p>", encoding="utf-8")
    assert [one.kind for one in entries(reports)] == ["unreadable"]
