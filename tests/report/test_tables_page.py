"""Claims, the paper, a benchmark and a comparison: their pages, and their places in the index."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import html5lib
import pytest
from chart_checks import charts_of
from keyed_page import assert_keys_hold, body_of, name, numbers_without_key

from experiment.bench.data import BenchData, Round, write_data
from experiment.bench.rows import Row
from experiment.compare.checks import write_comparison
from experiment.compare.results import Figure, Side
from experiment.compare.sides import compare_sides
from experiment.experiments.claims import CLAIMS, judge
from experiment.i18n import LANGUAGES, Translator
from experiment.report.bench_page import bench_html
from experiment.report.claims_page import claims_html
from experiment.report.compare_page import compare_csv, compare_document, compare_html
from experiment.report.index import entries, write_index
from experiment.report.paper_page import paper_html
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


def page_of(kind: str, lang: str) -> str:
    if kind == "claims":
        return claims_html(judge({}), {}, {"claims": []}, lang)
    return paper_html(paper(), lang) if kind == "paper" else bench_html(BENCH, lang)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", ["claims", "paper", "bench"])
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


@pytest.mark.parametrize("kind", ["claims", "paper", "bench"])
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
