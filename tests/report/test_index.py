"""The list of all runs, and the summary for a CI job."""

from __future__ import annotations

import json
import re
from pathlib import Path

import html5lib
import pytest
from sample import make_record

from experiment.conclusions import evaluate
from experiment.i18n import LANGUAGES, Translator
from experiment.messages import message
from experiment.report.index import entries, write_index
from experiment.report.markdown import MOST_BYTES, markdown, write_step_summary
from experiment.results import Results


def put(reports: Path, name: str, wall_ns: int, **change: object) -> None:
    directory = reports / name
    record = make_record(directory)
    results = evaluate(record).model_dump(mode="json")
    data = {"wall_ns": wall_ns, "utc_offset_s": 3600, "config": {"model": {"name": "tiny"}},
            "results": results, **change}  # fmt: skip
    (directory / "run.json").write_text(json.dumps(data), encoding="utf-8")
    (directory / "report.html").write_text("<p>", encoding="utf-8")


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    directory = tmp_path / "reports"
    put(directory, "older", 1_700_000_000 * 10**9)
    put(directory, "newer", 1_800_000_000 * 10**9)
    put(directory, "da<b>&#maged", 0, results="gone")
    put(directory, "beyond time", 10**30)
    (directory / "empty").mkdir()
    return directory


def test_runs_stand_newest_first_with_their_verdicts(reports: Path) -> None:
    found = entries(reports)
    named = [one.name for one in found]
    assert set(named) == {"older", "newer", "da<b>&#maged", "beyond time"}
    assert {one.name for one in found if one.kind == "unreadable"} == set(named) - {
        "older",
        "newer",
    }
    assert named.index("newer") < named.index("older")
    newer = next(one for one in found if one.name == "newer")
    assert newer.when == "2027-01-15 09:00"
    assert newer.verdict.key == "headline.both"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_page_links_to_each_report(reports: Path, lang: str) -> None:
    path = write_index(reports / "newer", lang)
    assert path == reports / "index.html"
    text = path.read_text(encoding="utf-8")
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    page = parser.parse(text)
    assert not parser.errors
    links = [a.get("href") for a in page.iter("a") if "report.html" in (a.get("href") or "")]
    assert set(links) == {
        "newer/report.html",
        "older/report.html",
        "da%3Cb%3E%26%23maged/report.html",
        "beyond%20time/report.html",
    }
    assert "default-src 'none'" in text
    assert not list(page.iter("b"))
    headline = next(one for one in entries(reports) if one.name == "newer").verdict
    shown = text.replace("\u00a0", " ")
    for one in LANGUAGES:
        assert Translator(one).message(headline) in shown


def test_no_index_is_written_outside_reports(tmp_path: Path) -> None:
    assert write_index(tmp_path / "elsewhere" / "run", "en") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lang", LANGUAGES)
def test_the_summary_has_verdict_table_and_tokens(tmp_path: Path, lang: str) -> None:
    results = evaluate(make_record(tmp_path))
    text = markdown(results, lang)
    t = Translator(lang)
    assert t.message(results.headline).replace("*", "") in re.sub(r"\\", "", text)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") - line.count(r"\|") for line in rows} == {len(results.arms) + 2}
    assert t("report.tokens.equal", n=2) in text
    assert "&#60;b&#62;no" in text  # foreign text of the arm that was skipped


def test_the_summary_stays_short_whatever_a_note_says(tmp_path: Path) -> None:
    results = evaluate(make_record(tmp_path))
    note = message("failure.exception", error="宽" * 60_000 + "|`<script>")
    many: Results = results.model_copy(update={"notes": [note, *results.notes]})
    text = markdown(many, "zh")
    assert len(text.encode()) < MOST_BYTES
    assert text.endswith("…\n")
    assert "|" in text  # what stands before the long note is whole


def test_a_job_gets_its_summary_only_where_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = evaluate(make_record(tmp_path / "run"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert write_step_summary(markdown(results, "en")) is None
    place = tmp_path / "summary.md"
    place.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place))
    assert write_step_summary(markdown(results, "en")) == place
    assert place.read_text(encoding="utf-8") == "before\n" + markdown(results, "en") + "\n"
