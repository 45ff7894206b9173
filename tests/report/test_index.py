"""The list of all runs, and the summary for a CI job."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import html5lib
import pytest
from data_keys import body_of, keyed_nodes, lookup
from pages import OpenPage
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Results
from experiment.report.files.markdown import markdown
from experiment.report.files.markup import MAX_BYTES, MAX_OF_A_STEP, write_step_summary
from experiment.report.pages import index_entries
from experiment.report.pages.index import index_html, write_index
from experiment.report.pages.index_entries import Entry, entries
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import Message, message


def put(reports: Path, name: str, wall_ns: object, **change: object) -> None:
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


def test_each_entry_names_its_file_and_its_place_there(reports: Path) -> None:
    path = write_index(reports / "newer", "en")
    assert path is not None
    body = body_of(path.read_text(encoding="utf-8"))
    entry = next(one for one in body.iter("li") if one.get("data-file") == "newer/run.json")
    document = json.loads((reports / "newer" / "run.json").read_text(encoding="utf-8"))
    when, *verdicts = keyed_nodes(entry)
    assert "".join(when.itertext()) == "2027-01-15 09:00"
    assert lookup(when.get("data-key"), document) == 1_800_000_000 * 10**9
    headline = Message.model_validate(lookup("results.headline", document))
    assert {node.get("data-key") for node in verdicts} == {"results.headline"}
    said = {"".join(node.itertext()).replace("\u00a0", " ") for node in verdicts}
    assert said == {Translator(lang).message(headline) for lang in LANGUAGES}
    spans = {"".join(node.itertext()) for node in body.iter("span")}
    assert spans > {Translator(lang)("index.keys") for lang in LANGUAGES}


def test_of_an_experiment_whose_texts_are_no_more_the_question_stands(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    gone = message("experiments.headline", title=message("experiments.capacity.title").model_dump())
    results = {"experiment": {"name": "block-size"}, "headline": gone.model_dump(), "status": "x"}
    put(reports, "old", 1_800_000_000 * 10**9, results=results)
    (entry,) = entries(reports)
    assert (entry.verdict, entry.key) == (message("experiments.block_size.question"), None)
    assert entry.kind == "experiment"


def test_a_run_without_a_report_is_named_and_leads_nowhere(reports: Path) -> None:
    directory = reports / "killed"
    record = make_record(directory)
    assert not (directory / "run.json").exists()
    (reports / "no run").mkdir()
    (reports / "no run" / "events.jsonl").write_text('{"event": 1}\n', encoding="utf-8")
    found = {one.name: one for one in entries(reports)}
    assert found["killed"].kind == "unfinished"
    assert found["killed"].wall_ns == record.started.wall_ns
    assert found["killed"].page is None
    assert found["no run"].kind == "unreadable"
    page = body_of(index_html(list(found.values()), "en"))
    entry = next(n for n in page.iter("li") if n.get("data-file") == "killed/events.jsonl")
    assert not list(entry.iter("a"))
    assert Translator("en")("index.no_report") in "".join(entry.itertext())


HOSTILE = ("<script><b>", "a\nb", "\u202e\u2066evil", "javascript:alert(1)", "%2e%2e", "x" * 250,
           "运行 🙂", b"\xff\xfe".decode(errors="surrogateescape"), "a#b?c", "'\"&")  # fmt: skip


def test_names_of_any_kind_lead_to_their_report_and_nowhere_else(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    for number, name in enumerate(HOSTILE):
        put(reports, name, (1_700_000_000 + number) * 10**9)
    text = index_html(entries(reports), "zh")
    assert text.encode()
    body = body_of(text)
    links = [a.get("href") for a in body.iter("a") if "report.html" in (a.get("href") or "")]
    assert all(urlsplit(link).scheme == "" for link in links)
    places = {os.fsdecode(unquote_to_bytes(link)) for link in links}
    assert places == {f"{name}/report.html" for name in HOSTILE}
    assert not list(body.iter("b"))
    assert all(len("".join(n.itertext())) < 400 for n in body.iter("bdi"))


@pytest.mark.parametrize(
    "change",
    [
        {"results": {"headline": {"key": "headline.none", "params": {"x": [[]] * 3}}}},
        {"results": {"headline": {"key": "x" * 5000, "params": {}}, "status": "complete"}},
        {"utc_offset_s": 10**9},
        {"wall_ns": "soon"},
        {"config": []},
    ],
)
def test_a_summary_that_somebody_else_wrote_does_no_harm(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    reports = tmp_path / "reports"
    put(reports, "sound", 1_800_000_000 * 10**9)
    put(reports, "strange", **{"wall_ns": 1_700_000_000 * 10**9, **change})
    found = {one.name: one.kind for one in entries(reports)}
    assert found == {"sound": "run", "strange": "unreadable"}
    assert len(index_html(entries(reports), "en")) < 200_000


def test_summaries_have_one_budget_and_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = tmp_path / "reports"
    put(reports, "sound", 1_800_000_000 * 10**9)
    put(reports, "other", 1_700_000_000 * 10**9)
    monkeypatch.setattr(index_entries, "_MAX_BYTES", 600_000)
    for n in range(3):
        put(reports, f"large{n}", 1_900_000_000 * 10**9, pad="a" * 200_000)
    (reports / "linked").mkdir()
    (reports / "linked" / "run.json").symlink_to(reports / "sound" / "run.json")
    (reports / "linked" / "report.html").write_text("<p>", encoding="utf-8")
    kinds = [one.kind for one in entries(reports)]
    assert sorted(kinds) == ["run"] * 4 + ["unreadable"]
    assert {one.name for one in entries(reports) if one.kind == "run"} >= {"sound", "other"}


def test_a_neighbour_that_takes_too_much_memory_is_its_own_fault(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, limit: int) -> bytes:
        if path.parent.name == "older":
            raise MemoryError
        return path.read_bytes()

    monkeypatch.setattr(index_entries, "read_bounded", read)
    kinds = {one.name: one.kind for one in entries(reports)}
    assert (kinds["older"], kinds["newer"]) == ("unreadable", "run")


@pytest.mark.parametrize("written", [300_000_000_000, 253_402_300_799, -62_135_596_800])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "America/New_York"])
def test_a_file_of_the_first_or_of_no_year_does_no_harm(
    written: int, zone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    reports = tmp_path / "reports"
    put(reports, "strange", wall_ns="soon")
    file = reports / "strange" / "run.json"
    os.utime(file, (written, written))
    assert [one.kind for one in entries(reports)] == ["unreadable"]
    assert index_html(entries(reports), "en")
    monkeypatch.undo()
    time.tzset()


def test_of_many_reports_one_kind_can_be_shown_alone(open_page: OpenPage, tmp_path: Path) -> None:
    verdict = message("compare.nothing")
    kinds = ("run", "compare")
    found = [
        Entry(f"{kind}-{n}", kind, (10**9 + n) * 10**9, 0, verdict)  # type: ignore[arg-type]
        for n in range(200)
        for kind in kinds
    ]
    assert "kind-all" not in index_html(found[:6], "en")
    file = tmp_path / "index.html"
    file.write_text(index_html(found, "en"), encoding="utf-8")
    one = open_page(file)
    shown = one.page.locator(".index > li:visible")
    assert shown.count() == 400
    one.page.get_by_text(Translator("en")("index.compare"), exact=True).first.click()
    assert shown.count() == 200
    assert one.page.locator(".index > li.kind-run:visible").count() == 0


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
    assert len(text.encode()) < MAX_BYTES
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


def test_summaries_of_many_runs_never_make_a_step_too_long_for_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place))
    one = "块\n" * 10_000
    for _ in range(MAX_OF_A_STEP // len(one.encode()) + 3):
        write_step_summary(one)
    text = place.read_text(encoding="utf-8")
    assert MAX_OF_A_STEP - 2 * len(one.encode()) < len(text.encode()) <= MAX_OF_A_STEP
    assert text.endswith("\n…\n")
    assert "…" not in text[: len(one)]
