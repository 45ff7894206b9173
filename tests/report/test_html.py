"""The page of a run: valid, whole, in both languages, and safe with whatever texts it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import html5lib
import pytest
import sample
from chart_checks import charts_of, untold
from data_keys import assert_keys_lead, body_of, by_id, embedded, english, keyed_nodes, name
from sample import BUDGET, PROMPTS, make_record
from texts import fixed

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import ArmResult, Results
from experiment.record.log import Record
from experiment.replay.arm_events import split_by_arm
from experiment.report.page.page import report_html
from experiment.report.render import _summary
from experiment.text import Translator
from experiment.text.messages import message

HAN = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
SENTENCE = re.compile(r"[A-Za-z']+(?: [A-Za-z']+){3,}")
# Where the text is foreign or code and belongs to no language.
FOREIGN = {"bdi", "pre", "script", "style", "button"}
SECTIONS = [
    "verdict", "player", "run_what_if", "claims", "time", "requests", "checks", "about",
]  # fmt: skip


def tree(text: str) -> Any:
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    parsed = parser.parse(text)
    assert not parser.errors, parser.errors[:3]
    return parsed


def render(directory: Path, lang: str = "en", **kwargs: Any) -> str:
    record = make_record(directory, **kwargs)
    return report_html(record, evaluate(record), lang)


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
    assert english(by_id(parsed, "limits")).startswith("What the charts show")
    assert Translator("en")("report.shows.latency") not in page  # of an experiment with arrivals
    for node in parsed.iter():
        for reference in (node.get("aria-labelledby") or "").split():
            assert reference in ids
        if (node.get("href") or "").startswith("#"):
            assert node.get("href")[1:] in ids


def test_both_languages_have_the_same_number_of_texts(page: str) -> None:
    parsed = body(page)
    for element in ("span", "text", "title", "desc"):
        nodes = [node.get("lang") for node in parsed.iter() if name(node) == element]
        assert nodes.count("en") == nodes.count("zh")
    assert sum(name(n) == "span" and n.get("lang") == "en" for n in parsed.iter()) > 200


def test_the_first_screen_says_what_was_found_and_what_to_mind(page: str) -> None:
    hero = next(tree(page).iter("section"))
    said = " ".join(t for lang, t in texts(hero, "any") if lang in ("en", "any"))
    assert "andom weights" in said
    assert "2 arms generated exactly the same tokens" in said
    # What the figures say is said nowhere else.
    assert not any(node.find(".//p") is not None for node in hero.iter() if node.get("aria-hidden"))
    assert "Out of memory." in said
    assert "skipped" in said


def test_unknown_is_a_dash_with_its_reason(page: str) -> None:
    table = next(by_id(body(page), "arms").iter("table"))
    head = ["".join(th.itertext()) for th in next(table.iter("tr")).iter("th")]
    failed = next(i for i, text in enumerate(head) if "one by one" in text)
    rows = [row for row in table.iter("tr") if len(list(row.iter("td"))) == len(head)]
    assert len(rows) > 5
    for row in rows:
        cell = "".join(list(row.iter("td"))[failed].itertext())
        assert "—" in cell
        assert "the arm failed first" in cell
        assert not re.search(r"\d", cell)
    assert fixed("memory.torch_cpu") in visible(page, "en")


def drawn(record: Record) -> Any:
    """The body of the page of a run."""
    return body_of(report_html(record, evaluate(record), "en"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The elements of the page of an arm alone."""
    page = render(tmp_path_factory.mktemp("plain"), arms=("paged",))
    return [node.tag for node in tree(page).iter()]


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
def test_foreign_text_stays_text(tmp_path: Path, hostile: str, plain: list[str]) -> None:
    page = render(tmp_path, prompts=(hostile, *PROMPTS[1:]), arms=("paged",))
    parsed = tree(page)
    assert [node.tag for node in parsed.iter()] == plain
    assert "\u2028" not in page.split('id="run-data"')[1].split("</script>")[0]
    assert embedded(parsed)["workload"]["requests"][0]["prompt"] == hostile
    quoted = list(parsed.iter("bdi"))
    assert quoted
    shown = "".join(quoted[0].itertext())
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown)
    assert not any(node.get("onerror") or node.get("onload") for node in parsed.iter())


def test_a_run_without_arms_opens_and_says_so(tmp_path: Path) -> None:
    page = render(tmp_path, arms=())
    tree(page)
    assert Translator("en")("headline.none") in visible(page, "en")
    assert "nothing to draw" in visible(page, "en")


def test_a_key_of_another_version_is_shown_and_breaks_nothing(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    results = evaluate(record)
    note = results.notes[0].model_copy(update={"key": "note.of_the_future"})
    changed: Results = results.model_copy(update={"notes": [note]})
    assert "note.of_the_future" in report_html(record, changed, "en")


def test_every_chart_has_a_name_a_description_and_a_table(page: str, busy: Record) -> None:
    parsed = body(page)
    assert untold(parsed) == []
    named = {chart.get("id").removesuffix("-wide") for chart in charts_of(parsed)}
    assert {"over-time", "over-steps", "map", "mapping", "life", "claim-waste"} <= named
    assert untold(busy_body(busy)) == []


def busy_body(busy: Record) -> Any:
    return body((busy.directory / "report.html").read_text(encoding="utf-8"))


def test_steps_that_compute_prompts_are_shaded(busy: Record) -> None:
    """In a step that begins at position 0; not in one that only goes on with the last one's."""
    chart = by_id(busy_body(busy), "over-steps-wide")
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
            seen = {chunk.request for chunk in chunks if chunk.samples}
        assert {begins for begins, _ in found} == {True, False}
        assert all(begins == dark for begins, dark in found)


@pytest.fixture(scope="module", params=["sample", "busy"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    if request.param == "busy":
        found: Record = request.getfixturevalue("busy")
        return found
    return make_record(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def kept_page(kept: Record) -> str:
    return report_html(kept, evaluate(kept), "en")


def run_json(record: Record, results: Results) -> Any:
    return json.loads(json.dumps(_summary(results, record)))


def test_every_key_of_the_page_is_a_path_to_a_value_of_run_json(
    kept_page: str, kept: Record
) -> None:
    assert_keys_lead(body_of(kept_page), run_json(kept, evaluate(kept)), least=60)


def test_the_page_shows_the_worked_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 2, 13, 110 and 2 tokens, 50 new ones each, 512 slots a slab, blocks of 16."""
    example = {"LENGTHS": (2, 13, 110, 2), "NEW": 50, "MAX_LENGTH": 512, "BLOCK": 16}
    for key, value in (example | {"BUDGET": 4 * 512 * sample.SLOT_BYTES}).items():
        monkeypatch.setattr(sample, key, value)
    record = make_record(tmp_path, "abcd", arms=("contiguous.batch", "paged"))
    body = drawn(record)
    lines = [[english(cell) for cell in tr] for tr in by_id(body, "peak-data").iter("tr")]
    peak = {head: list(cells) for head, *cells in zip(*lines, strict=True)}
    assert peak["Reserved"] == ["2,048", "2,048"]
    assert peak["Allocated"] == ["2,048", "352"]
    assert peak["Live"] == ["323", "323"]
    assert peak["Wasted"] == ["1,725", "29"]
    padding, unwritten = (next(n for n in peak if n.startswith(w)) for w in ("Padding", "Unwri"))
    assert (peak[padding], peak[unwritten]) == (["313", "0"], ["1,412", "29"])
    folded = next(n for n in body.iter("div") if n.get("aria-labelledby") == "compare")
    heads = [(tr.find("th"), tr.findall("td")) for tr in next(folded.iter("tbody"))]
    table = {english(head): [english(cell) for cell in cells] for head, cells in heads}
    assert table["Allocated"] == ["2 MiB2,048 slots", "352 KiB352 slots"]
    assert table["Live"] == ["323 KiB323 slots"] * 2
    assert table["Live ÷ allocated"] == ["15.8 %", "91.8 %"]
    keyed = {node.get("data-key"): english(node) for node in keyed_nodes(body)}
    assert keyed["results.arms[paged].peak.unwritten"] == "29"
    assert keyed["results.arms[paged].peak_bytes.wasted"] == "29 KiB"
    assert keyed["results.arms[contiguous.batch].peak.padding"] == "313"


def test_the_map_says_how_many_requests_share_a_block(kept_page: str, kept: Record) -> None:
    shared = any(arm.shared_peak for arm in evaluate(kept).arms)
    texts = (node.text or "" for node in by_id(body_of(kept_page), "map-wide").iter())
    assert any(text.startswith("×") for text in texts) == shared


def changed_arm(results: Results, **change: object) -> Results:
    """Results in which the first arm that has channels to compare is another one."""
    arm = reconciled(results)
    arms = [one.model_copy(update=change) if one is arm else one for one in results.arms]
    return results.model_copy(update={"arms": arms})


def reconciled(results: Results) -> ArmResult:
    return next(arm for arm in results.arms if arm.reconciliation)


def test_reasons_are_shown_with_their_numbers(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    results = evaluate(record)
    code = message("memory.nvml_error", code=999)
    small = message("reconcile.too_small", limit=8 << 20)
    arm = reconciled(results)
    assert arm.reconciliation is not None
    memory = [
        row.model_copy(update={"reason": code}) if row.bytes is None else row for row in arm.memory
    ]
    assert code in [row.reason for row in memory]
    rows = [
        row.model_copy(update={"reason": small, "bytes": None, "difference": None})
        for row in arm.reconciliation.rows
    ]
    told = arm.reconciliation.model_copy(update={"rows": rows})
    results = changed_arm(results, memory=memory, reconciliation=told)
    body = body_of(report_html(record, results, "en"))
    assert_keys_lead(body, run_json(record, results), least=60)
    shown = "".join(body.itertext()).replace("\u00a0", " ")
    assert all(Translator("en").message(reason) in shown for reason in (code, small))


@pytest.mark.parametrize("agree", [True, False])
def test_channels_that_disagree_are_named_on_the_first_screen(agree: bool, tmp_path: Path) -> None:
    record = make_record(tmp_path)
    results = evaluate(record)
    arm = reconciled(results)
    assert arm.reconciliation is not None
    channel = message("channel.process.rss").model_dump()
    differ = message("reconcile.differ", channel=channel, off=0.0227, allowed=12 << 20)
    told = arm.reconciliation.model_copy(
        update={"agree": agree, "text": arm.reconciliation.text if agree else differ}
    )
    body = body_of(report_html(record, changed_arm(results, reconciliation=told), "en"))
    first = next(body.iter("section"))
    alarms = [p for p in first.iter("p") if "alarm" in (p.get("class") or "")]
    notes = ["".join(p.itertext()) for p in alarms]
    assert any("RSS" in note for note in notes) != agree


ASKED: dict[str, Any] = {
    "model": {"dtype": "auto"}, "cache": {"budget": "auto"}, "run": {"device": "auto"},
}  # fmt: skip
LONG = "W" * 1_000_000


def code(body: Any, key: str) -> str:
    """What stands in the block with this key."""
    (found,) = [node for node in body.iter("pre") if node.get("data-key") == key]
    return "".join(found.itertext())


def test_config_and_data_of_the_page_are_those_of_run_json(tmp_path: Path) -> None:
    """Without what was left open."""
    record = make_record(tmp_path, config=ASKED)
    page, written = drawn(record), _summary(evaluate(record), record)
    shown, held = json.loads(code(page, "config")), embedded(page)
    assert shown == written["config"]
    assert (shown["model"]["dtype"], shown["run"]["device"]) == ("float32", "cpu")
    assert (shown["cache"]["budget"], shown["workload"]["prompts"]) == (BUDGET, list(PROMPTS))
    assert {name: held[name] for name in written} == written
    assert held["left_out"] == ["workload.requests.*.token_ids"]


def test_long_prompts_of_a_config_and_a_command_are_cut_and_the_page_says_so(
    tmp_path: Path,
) -> None:
    record = make_record(tmp_path, prompts=(LONG, *PROMPTS[1:]))
    started = record.started.model_copy(update={"command": ["--prompt", LONG, "--yes"]})
    record = replace(record, events=(started, *record.events[1:]))
    page = report_html(record, evaluate(record), "en")
    assert len(page) < 600_000
    assert LONG[:3000] not in page
    body = body_of(page)
    (first, *others) = json.loads(code(body, "config"))["workload"]["prompts"]
    assert first == LONG[:1000] + "…"
    assert others == list(PROMPTS[1:])
    assert code(body, "command").endswith(LONG[:1000] + "…' --yes")
    said = ["command", "config", "workload.requests.*.token_ids", "workload.requests.*.prompt"]
    assert embedded(body)["left_out"] == said
    assert ", ".join(said) in ["".join(node.itertext()) for node in body.iter("code")]


def test_no_sign_of_a_prompt_changes_how_the_config_around_it_reads(tmp_path: Path) -> None:
    signs = "\u202e\u2066\u061c\x85\u2029\ufdd0"
    hostile = f"</pre>{signs}\x00"
    record = make_record(tmp_path, prompts=(hostile, *PROMPTS[1:]))
    shown = code(drawn(record), "config")
    assert not set(signs) & set(shown)
    assert json.loads(shown)["workload"]["prompts"][0] == hostile


# Words of a command whose signs a page may not show as they are.
WORDS = (
    "\u202ecod\u202c", "a\u200bb", "\u061c", "\x1b[2J\r", "\U000e0041 it's", "\\\u2066\n",
    "\udcff1",
)  # fmt: skip


def test_a_command_is_pasted_as_it_is_read(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    given = ["--prompt", *WORDS, "it's\nplain", "--yes"]
    started = record.started.model_copy(update={"command": given})
    shown = code(drawn(replace(record, events=(started, *record.events[1:]))), "command")
    assert all(sign.isprintable() or sign == "\n" for sign in shown)
    words = shown[shown.index(" --prompt ") :]
    done = subprocess.run(
        ["bash", "-c", "printf '%s\\0'" + words],
        env={"LC_ALL": "C.UTF-8"}, capture_output=True, check=True,
    )  # fmt: skip
    assert [os.fsdecode(each) for each in done.stdout.split(b"\0")[:-1]] == given
