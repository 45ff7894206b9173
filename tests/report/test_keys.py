"""Every number on the page says where it came from, and there is what it says.

The record and run.json are read anew, each key path is looked up and written out again, and
compared with the page; see keyed_page.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import html5lib
import pytest
from keyed_page import (
    assert_keys_hold,
    body_of,
    exempt,
    expected,
    facts_of,
    keyed_nodes,
    numbers_without_key,
)
from sample import make_record
from scale_marks import axes_of, misplaced

from experiment.analysis.conclusions import evaluate as conclude
from experiment.analysis.results import ArmResult, Results
from experiment.events import WorkloadReady
from experiment.record.log import Record, read_record, write_summary
from experiment.report.facts.keyed import WRITERS, evaluate, lookup
from experiment.report.facts.values import excerpt
from experiment.report.page.page import report_html
from experiment.text import Translator
from experiment.text.messages import message


@pytest.fixture(scope="module", params=["sample", "busy"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    if request.param == "busy":
        record: Record = request.getfixturevalue("busy")
    else:
        record = make_record(tmp_path_factory.mktemp("keys"))
    results = conclude(record).model_dump(mode="json")
    write_summary(record.directory, {"results": results})
    return read_record(record.directory)


@pytest.fixture(scope="module")
def parsed(written: Record) -> Any:
    page = report_html(written, conclude(written), "en")
    return body_of(page)


@pytest.fixture(scope="module")
def facts(written: Record) -> dict[str, Any]:
    return facts_of(written)


def test_every_keyed_number_is_what_the_record_says(
    parsed: Any, facts: dict[str, Any], written: Record
) -> None:
    assert_keys_hold(parsed, facts, written)


def test_no_number_is_without_a_key(parsed: Any) -> None:
    assert not numbers_without_key(parsed)


def test_what_needs_no_key_is_just_what_the_page_says(parsed: Any, written: Record) -> None:
    """Marks of axes are looked at in scale_marks.py, quotations are compared with the record."""
    found: dict[str, list[Any]] = {}
    for node in parsed.iter():
        found.setdefault(exempt(node) or "", []).append(node)
    found.pop("")
    told = {kind: ["".join(one.itertext()) for one in nodes] for kind, nodes in found.items()}
    assert misplaced(parsed) == []
    assert len(list(axes_of(parsed))) >= 12
    assert told.pop("mark of an axis")
    results = conclude(written)
    quoted = {excerpt(one.text, 120) for arm in results.arms for one in arm.requests}
    workload = written.first(WorkloadReady)
    assert workload is not None
    quoted |= {excerpt(one.prompt, 90) for one in workload.requests if one.prompt is not None}
    assert set(told.pop("quotation")) <= quoted
    sections = told.pop("number of a section")
    assert sections == [str(place) for place in range(2, len(sections) + 2)]
    assert told.pop("speed of the player", ["1/s"])[0].strip().startswith("1/s")
    for row in found.get("percentile that a row is about", []):
        share = "".join(row.itertext()).removesuffix(" %")
        cells = next(tr for tr in parsed.iter("tr") if row in tr)
        assert all(key.get("data-key").startswith(f"p{share} ") for key in keyed_nodes(cells))
    told.pop("percentile that a row is about", None)
    assert told.keys() == {"code"}


@pytest.mark.parametrize(
    "text",
    [
        '<p title="5 slots">x</p>', "<button>5</button>", '<span class="tick">5</span>',
        '<td class="quantile">5</td>', "<p>5</p>", "<option>5/s</option>", "<pre>5</pre>",
    ],
)  # fmt: skip
def test_a_number_anywhere_else_is_noticed(text: str) -> None:
    node = html5lib.parseFragment(f"<div>{text}</div>", namespaceHTMLElements=False)
    assert numbers_without_key(node)


def test_a_mark_in_the_wrong_place_is_noticed(written: Record) -> None:
    page = report_html(written, conclude(written), "en")
    start = page.index('id="over-time-wide"')
    mark = re.compile(r'(<text x="[\d.]+" y=")([\d.]+)("[^>]* num tick">(?!0<))')
    moved = mark.sub(lambda m: f"{m[1]}{float(m[2]) + 9}{m[3]}", page[start:], count=1)
    assert [chart for chart, _ in misplaced(body_of(page[:start] + moved))] == ["over-time-wide"]


def test_the_map_names_the_request_of_each_block_and_how_many_share_it(
    parsed: Any, written: Record, request: pytest.FixtureRequest
) -> None:
    drawn = next(node for node in parsed.iter() if node.get("id") == "map-wide")
    kinds = {node.get("data-as") for node in keyed_nodes(drawn)}
    busy = "busy" in request.node.callspec.id
    assert kinds == ({"text", "shared"} if busy else {"text"})


def test_paths_are_looked_up_by_name_place_and_star() -> None:
    data = {"arms": [{"arm": "a.b", "n": [3, None, 4]}, {"arm": "c", "n": [5]}], "by": {2: "x"}}
    assert lookup("arms[a.b].n.0", data) == 3
    assert lookup("arms.1.arm", data) == "c"
    assert lookup("by[2]", data) == "x"
    assert lookup("arms.*.n.*", data) == [3, None, 4, 5]
    assert lookup("arms[nobody].n", data) is None
    assert evaluate("sum arms.*.n.* + 2 * arms[c].n.0", data) == 22
    assert evaluate("length arms - 1", data) == 1
    assert [evaluate(f"p{n} arms.*.n.*", data) for n in (10, 33, 34, 66, 67, 95, 100)] == [
        3, 3, 4, 4, None, None, 5
    ]  # fmt: skip
    assert evaluate("median arms.*.n.*", data) == 4
    assert evaluate("arms[c].n.0 / arms[a.b].n.0", data) == pytest.approx(5 / 3)
    assert evaluate("arms[c].n.0 / arms[a.b].n.1", data) is None
    assert evaluate("arms[c].n.0 - arms[nobody].n", data) is None


def test_a_page_whose_number_is_wrong_is_noticed(facts: dict[str, Any], written: Record) -> None:
    node = html5lib.parseFragment(
        '<span data-key="results.arms[paged].peak.live" data-as="count">1</span>',
        namespaceHTMLElements=False,
    )[0]
    assert expected(node, facts, written) != "1"


def test_rows_of_the_comparison_show_what_their_labels_say(written: Record, parsed: Any) -> None:
    """The same figures by the properties of the results, not by their paths."""
    results = conclude(written)
    t = Translator("en")
    meant = {
        "term.reserved.name": lambda arm: WRITERS["bytes"](arm.bytes_of(arm.peak.reserved)),
        "term.allocated.name": lambda arm: WRITERS["bytes"](arm.bytes_of(arm.peak.allocated)),
        "term.live.name": lambda arm: WRITERS["bytes"](arm.bytes_of(arm.peak.live)),
        "term.wasted.name": lambda arm: WRITERS["bytes"](arm.bytes_of(arm.peak.wasted)),
        "report.compare.share": lambda arm: WRITERS["percent"](arm.peak.utilisation),
        "report.compare.mean_share": lambda arm: WRITERS["percent"](arm.mean.utilisation),
        "report.compare.fits": lambda arm: WRITERS["count"](arm.fits),
        "report.compare.rate": lambda arm: WRITERS["rate"](arm.tokens_per_s),
    }
    table = next(n for n in parsed.iter("table") if "compare" in (n.get("class") or "").split())
    rows = {"".join(tr.find("th")[0].itertext()): tr for tr in table.find("tbody")}
    for label, of in meant.items():
        cells = rows[t(label)].findall("td")
        for arm, cell in zip(results.arms, cells, strict=True):
            if arm.peak:
                shown = next(n for n in cell.iter() if n.get("data-key"))
                assert re.sub("\u00a0", " ", "".join(shown.itertext())) == of(arm), (label, arm.arm)
    place, first = next((at, arm) for at, arm in enumerate(results.arms) if arm.peak)
    slots = "".join(rows[t("term.reserved.name")].findall("td")[place].find("small").itertext())
    assert first.peak is not None
    assert t("report.slots", n=int(first.peak.reserved)) in slots


def _reconciled(results: Results) -> tuple[int, ArmResult]:
    """The first arm whose channels were held against each other, and its place."""
    return next((at, arm) for at, arm in enumerate(results.arms) if arm.reconciliation)


def test_reasons_with_numbers_name_where_the_record_gives_them(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    results = conclude(record)
    code = message("memory.nvml_error", code=999)
    small = message("reconcile.too_small", limit=8 << 20)
    place, arm = _reconciled(results)
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
    changed = arm.model_copy(update={"memory": memory, "reconciliation": told})
    arms = [*results.arms[:place], changed, *results.arms[place + 1 :]]
    results = results.model_copy(update={"arms": arms})
    write_summary(record.directory, {"results": results.model_dump(mode="json")})
    record = read_record(record.directory)
    body = body_of(report_html(record, results, "en"))
    assert not numbers_without_key(body)
    assert_keys_hold(body, facts_of(record), record)
    shown = "".join(body.itertext()).replace("\u00a0", " ")
    assert all(Translator("en").message(reason) in shown for reason in (code, small))


@pytest.mark.parametrize("agree", [True, False])
def test_channels_that_disagree_are_named_on_the_first_screen(agree: bool, tmp_path: Path) -> None:
    record = make_record(tmp_path)
    results = conclude(record)
    place, arm = _reconciled(results)
    assert arm.reconciliation is not None
    channel = message("channel.process.rss").model_dump()
    differ = message("reconcile.differ", channel=channel, off=0.0227, allowed=12 << 20)
    told = arm.reconciliation.model_copy(
        update={"agree": agree, "text": arm.reconciliation.text if agree else differ}
    )
    changed = arm.model_copy(update={"reconciliation": told})
    arms = [*results.arms[:place], changed, *results.arms[place + 1 :]]
    results = results.model_copy(update={"arms": arms})
    write_summary(record.directory, {"results": results.model_dump(mode="json")})
    record = read_record(record.directory)
    body = body_of(report_html(record, results, "en"))
    first = next(body.iter("section"))
    alarms = [p for p in first.iter("p") if "alarm" in (p.get("class") or "")]
    notes = ["".join(p.itertext()) for p in alarms]
    assert any("The channels disagree" in note for note in notes) != agree
    assert_keys_hold(body, facts_of(record), record)
