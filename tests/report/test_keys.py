"""Numbers of the page: those of a worked example, and the paths that they name in run.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sample
from data_keys import assert_keys_lead, body_of, keyed_nodes
from sample import make_record

from experiment.analysis.conclusions import evaluate as conclude
from experiment.analysis.results import ArmResult, Results
from experiment.record.log import Record
from experiment.report.page.page import report_html
from experiment.report.render import _summary
from experiment.text import Translator
from experiment.text.messages import message


@pytest.fixture(scope="module", params=["sample", "busy"])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    if request.param == "busy":
        found: Record = request.getfixturevalue("busy")
        return found
    return make_record(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def page(record: Record) -> str:
    return report_html(record, conclude(record), "en")


def run_json(record: Record, results: Results) -> Any:
    return json.loads(json.dumps(_summary(results, record)))


def test_every_key_of_the_page_is_a_path_to_a_value_of_run_json(page: str, record: Record) -> None:
    assert_keys_lead(body_of(page), run_json(record, conclude(record)), least=60)


@pytest.mark.parametrize(
    "other",
    ["results.arms[paged].peak.lives", "results.arms[paged].peak.reserved", "sum results.arms.*"],
)
def test_a_key_that_leads_nowhere_or_elsewhere_is_noticed(
    page: str, record: Record, other: str
) -> None:
    changed = body_of(page.replace('"results.arms[paged].peak.live"', f'"{other}"'))
    data = run_json(record, conclude(record))
    with pytest.raises((AssertionError, KeyError)):
        assert_keys_lead(changed, data, least=50)


def test_the_page_shows_the_worked_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 2, 13, 110 and 2 tokens, 50 new ones each, 512 slots a slab, blocks of 16."""
    example = {"LENGTHS": (2, 13, 110, 2), "NEW": 50, "MAX_LENGTH": 512, "BLOCK": 16}
    for name, value in (example | {"BUDGET": 4 * 512 * sample.SLOT_BYTES}).items():
        monkeypatch.setattr(sample, name, value)
    record = make_record(tmp_path, "abcd", arms=("contiguous.batch", "paged"))
    body = body_of(report_html(record, conclude(record), "en"))
    peak = rows_of(body, "peak-data")
    assert peak["Reserved"] == ["2,048", "2,048"]
    assert peak["Allocated"] == ["2,048", "352"]
    assert peak["Live"] == ["323", "323"]
    assert peak["Wasted"] == ["1,725", "29"]
    padding, unwritten = (next(n for n in peak if n.startswith(w)) for w in ("padding", "unwri"))
    assert (peak[padding], peak[unwritten]) == (["313", "0"], ["1,412", "29"])
    table = rows_of(next(n for n in body.iter("table") if "by-arm" in n.get("class", "")))
    assert table["Allocated"] == ["2 MiB2,048 slots", "352 KiB352 slots"]
    assert table["Live"] == ["323 KiB323 slots"] * 2
    assert table["Live ÷ allocated, at the peak"] == ["15.8 %", "91.8 %"]
    keyed = {node.get("data-key"): english(node) for node in keyed_nodes(body)}
    assert keyed["results.arms[paged].peak.unwritten"] == "29"
    assert keyed["results.arms[paged].peak_bytes.wasted"] == "29 KiB"
    assert keyed["results.arms[contiguous.batch].peak.padding"] == "313"


def rows_of(node: Any, name: str | None = None) -> dict[str, list[str]]:
    """Head and cells of each row; of the table with arms in its rows, of each column."""
    if name is None:
        heads = [(tr.find("th"), tr.findall("td")) for tr in node.find("tbody")]
        return {english(head): [english(cell) for cell in cells] for head, cells in heads}
    table = next(n for n in node.iter("details") if n.get("id") == name)
    lines = [[english(cell) for cell in tr] for tr in table.iter("tr")]
    return {head: list(cells) for head, *cells in zip(*lines, strict=True)}


def english(node: Any) -> str:
    """What a reader of English sees of an element."""
    if node.get("lang") == "zh":
        return ""
    inner = [node.text or "", *(english(child) + (child.tail or "") for child in node)]
    return "".join(inner).replace("\u00a0", " ").strip()


def test_the_map_says_how_many_requests_share_a_block(page: str, record: Record) -> None:
    drawn = next(node for node in body_of(page).iter() if node.get("id") == "map-wide")
    shared = any(arm.shared_peak for arm in conclude(record).arms)
    assert any((node.text or "").startswith("×") for node in drawn.iter()) == shared


def changed_arm(results: Results, **change: object) -> Results:
    """Results in which the first arm that has channels to compare is another one."""
    place, arm = _reconciled(results)
    arms = [*results.arms[:place], arm.model_copy(update=change), *results.arms[place + 1 :]]
    return results.model_copy(update={"arms": arms})


def _reconciled(results: Results) -> tuple[int, ArmResult]:
    return next((at, arm) for at, arm in enumerate(results.arms) if arm.reconciliation)


def test_reasons_are_shown_with_their_numbers(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    results = conclude(record)
    code = message("memory.nvml_error", code=999)
    small = message("reconcile.too_small", limit=8 << 20)
    _, arm = _reconciled(results)
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
    results = conclude(record)
    _, arm = _reconciled(results)
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
    assert any("The channels disagree" in note for note in notes) != agree
