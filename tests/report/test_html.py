"""The page of a run: valid, whole, in both languages, and safe with whatever texts it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import html5lib
import pytest
from chart_checks import charts_of, untold
from sample import PROMPTS, make_record

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Results
from experiment.record.log import Record
from experiment.replay.arm_events import split_by_arm
from experiment.report.html.embed import safe_json
from experiment.report.page.page import report_html

HAN = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
SENTENCE = re.compile(r"[A-Za-z']+(?: [A-Za-z']+){3,}")
# Where the text is foreign or code and belongs to no language.
FOREIGN = {"bdi", "pre", "script", "style", "button"}
SECTIONS = [
    "verdict", "peak", "time", "player", "requests", "readings", "found", "terms", "about",
]  # fmt: skip


def tree(text: str) -> Any:
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    parsed = parser.parse(text)
    assert not parser.errors, parser.errors[:3]
    return parsed


def render(directory: Path, lang: str = "en", **kwargs: Any) -> str:
    record = make_record(directory, **kwargs)
    return report_html(record, evaluate(record), lang)


def name(node: Any) -> str:
    return str(node.tag).rsplit("}", 1)[-1]


def texts(node: Any, lang: str, foreign: bool = False) -> Iterator[tuple[str, str]]:
    """(language, text) of everything a person may read, foreign text apart."""
    foreign = foreign or name(node) in FOREIGN
    lang = node.get("lang") or lang
    if node.text and node.text.strip() and not foreign:
        yield lang, node.text
    for child in node:
        yield from texts(child, lang, foreign)
        if child.tail and child.tail.strip() and not foreign:
            yield lang, child.tail


def body(text: str) -> Any:
    return tree(text).find("body")


def visible(text: str, lang: str) -> str:
    return " ".join(t for said, t in texts(body(text), "any") if said in (lang, "any"))


def test_it_is_well_formed_and_has_every_section_in_order(page: str) -> None:
    parsed = tree(page)
    labels = [node.get("aria-labelledby") for node in parsed.iter("section")]
    assert labels == SECTIONS
    ids = [node.get("id") for node in parsed.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    for node in parsed.iter():
        for reference in (node.get("aria-labelledby") or "").split():
            assert reference in ids
        if (node.get("href") or "").startswith("#"):
            assert node.get("href")[1:] in ids


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    for node in tree(page).iter():
        assert name(node) not in {"link", "img", "iframe", "object", "embed", "audio", "video"}
        for attribute in ("src", "href", "srcset", "poster", "action", "data"):
            value = node.get(attribute)
            assert value is None or value.startswith("#"), value
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    assert "default-src 'none'" in page
    assert page.index("Content-Security-Policy") < 1024


def test_both_languages_have_the_same_number_of_texts(page: str) -> None:
    parsed = body(page)
    for element in ("span", "text", "title", "desc"):
        nodes = [node.get("lang") for node in parsed.iter() if name(node) == element]
        assert nodes.count("en") == nodes.count("zh")
    assert sum(name(n) == "span" and n.get("lang") == "en" for n in parsed.iter()) > 200


def test_the_other_language_is_hidden_without_script(tmp_path: Path) -> None:
    for lang in ("en", "zh"):
        page = render(tmp_path / lang, lang)
        assert tree(page).get("lang") == lang
        others = re.escape(f'html[lang="{lang}"] [lang]:not([lang="{lang}"], button)')
        assert re.search(others + r"[^{]*{ display: none; }", page)


def test_each_language_is_free_of_the_other(page: str) -> None:
    names = re.compile(
        r"\b(PagedKV Lab|Transformers|PyTorch|NVML|SHA-256|tokens?)\b|\b\w+\.(csv|json)"
    )
    for lang, text in texts(body(page), "any"):
        if lang in ("en", "any"):
            assert not HAN.search(text), text
        if lang == "zh":
            assert not SENTENCE.search(names.sub("", text)), text
        if lang == "any":
            assert not SENTENCE.search(names.sub("", text)), text


def test_the_first_screen_says_what_was_found_and_what_to_mind(page: str) -> None:
    hero = next(tree(page).iter("section"))
    said = " ".join(t for lang, t in texts(hero, "any") if lang in ("en", "any"))
    assert "random" in said  # the note on weights
    assert "The 2 arms generated exactly the same tokens." in said
    assert "Over its steps: median" in said
    # What the figures say is said nowhere else.
    assert not any(node.find(".//p") is not None for node in hero.iter() if node.get("aria-hidden"))
    assert "Out of memory." in said
    assert "skipped" in said


def test_unknown_is_a_dash_with_its_reason(page: str) -> None:
    table = next(n for n in body(page).iter("table") if "compare" in (n.get("class") or "").split())
    head = ["".join(th.itertext()) for th in next(table.iter("tr")).iter("th")]
    failed = next(i for i, text in enumerate(head) if "one by one" in text)
    for row in list(table.iter("tr"))[1:]:
        cell = "".join(list(row.iter("td"))[failed].itertext())
        assert "—" in cell
        assert "the arm failed first" in cell
        assert not re.search(r"\d", cell)
    assert "PyTorch has no allocator statistics on the CPU." in visible(page, "en")


@pytest.mark.parametrize(
    "hostile",
    [
        "</script><img src=x onerror=alert(1)>",
        "<!--<script>alert(1)</script>",
        "\u202e\u2066reversed\u2069 \u2028\u2029",
        "{{ 7 * 7 }}{% raw %}",
        "&lt;b&gt;\x00\x1b[31m\x7f\x85",
        "'\"><svg onload=alert(1)>",
    ],
)
def test_foreign_text_stays_text(tmp_path: Path, hostile: str) -> None:
    plain = tree(render(tmp_path / "plain", arms=("paged",)))
    page = render(tmp_path / "hostile", prompts=(hostile, *PROMPTS[1:]), arms=("paged",))
    parsed = tree(page)
    assert [n.tag for n in parsed.iter()] == [n.tag for n in plain.iter()]
    assert "\u2028" not in page.split('id="run-data"')[1].split("</script>")[0]
    data = next(n for n in parsed.iter("script") if n.get("id") == "run-data")
    assert json.loads(data.text)["workload"]["requests"][0]["prompt"] == hostile
    quoted = list(parsed.iter("bdi"))
    assert quoted
    shown = "".join(quoted[0].itertext())
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown)
    assert not any(node.get("onerror") or node.get("onload") for node in parsed.iter())


def test_embedded_data_cannot_end_its_element() -> None:
    data = {"text": "</script><!--&\u2028\u2029"}
    written = safe_json(data)
    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written) == data


def test_the_command_can_be_pasted(page: str) -> None:
    codes = ["".join(node.itertext()) for node in body(page).iter("pre")]
    assert """python run_experiment.py --prompt 'it'"'"'s'""" in codes


def test_a_run_without_arms_opens_and_says_so(tmp_path: Path) -> None:
    page = render(tmp_path, arms=())
    tree(page)
    assert "cannot compare" in visible(page, "en")
    assert "nothing to draw" in visible(page, "en")


def test_a_key_of_another_version_is_shown_and_breaks_nothing(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    results = evaluate(record)
    note = results.notes[0].model_copy(update={"key": "note.of_the_future"})
    changed: Results = results.model_copy(update={"notes": [note]})
    assert "note.of_the_future" in report_html(record, changed, "en")


def test_numbers_in_the_chart_are_those_of_the_run(page: str) -> None:
    chart = next(n for n in body(page).iter() if n.get("id") == "peak-wide")
    numbers = {"".join(n.itertext()) for n in chart.iter() if name(n) == "text"}
    live = 3 + 20 + 5 + 3 * 11
    assert {f"{live}", f"{3 * 64}", f"{(2 + 4 + 2) * 8}"} <= numbers


def test_every_chart_has_a_name_a_description_and_a_table(page: str, busy: Record) -> None:
    parsed = body(page)
    assert untold(parsed) == []
    named = {chart.get("id").removesuffix("-wide") for chart in charts_of(parsed)}
    assert {"peak", "over-time", "over-steps", "map", "mapping", "life", "claim-waste"} <= named
    assert untold(body((busy.directory / "report.html").read_text(encoding="utf-8"))) == []


def test_steps_that_compute_prompts_are_shaded(busy: Record) -> None:
    """In a step that begins at position 0; not in one that only goes on with the last one's."""
    page = (busy.directory / "report.html").read_text(encoding="utf-8")
    chart = next(n for n in body(page).iter() if n.get("id") == "over-steps-wide")
    shaded = [n.get("d") for n in chart.iter() if n.get("class") == "shaded"]
    arms = split_by_arm(busy)
    width = 780 / max(len(arm.steps) for arm in arms)
    for arm, drawn in zip(arms, shaded, strict=True):
        spans = [tuple(map(float, one)) for one in re.findall(r"M([\d.]+) .*?H([\d.]+)V", drawn)]
        seen: set[int] = set()
        found = []
        for place, step in enumerate(arm.steps):
            chunks = step.plan.chunks
            begins = any(chunk.start == 0 for chunk in chunks)
            goes_on = all(chunk.count == 1 and chunk.request in seen for chunk in chunks)
            middle = 56 + (place + 0.5) * width
            if begins or goes_on:
                found.append((begins, any(a < middle < z for a, z in spans)))
            seen = {chunk.request for chunk in chunks}
        assert {begins for begins, _ in found} == {True, False}
        assert all(begins == dark for begins, dark in found)
