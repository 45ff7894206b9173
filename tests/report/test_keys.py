"""Every number on the page says where it came from, and there is what it says.

The record and run.json are read anew, each key path is looked up and written out again, and
compared with the page; see keyed_page.py.
"""

from __future__ import annotations

import re
from typing import Any

import html5lib
import pytest
from keyed_page import (
    assert_keys_hold,
    body_of,
    expected,
    facts_of,
    numbers_without_key,
)
from sample import make_record

from experiment.conclusions import evaluate as conclude
from experiment.i18n import Translator
from experiment.record import Record, read_record, write_summary
from experiment.report.html import report_html
from experiment.report.keyed import WRITERS, evaluate, lookup


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


def test_paths_are_looked_up_by_name_place_and_star() -> None:
    data = {"arms": [{"arm": "a.b", "n": [3, None, 4]}, {"arm": "c", "n": [5]}], "by": {2: "x"}}
    assert lookup("arms[a.b].n.0", data) == 3
    assert lookup("arms.1.arm", data) == "c"
    assert lookup("by[2]", data) == "x"
    assert lookup("arms.*.n.*", data) == [3, None, 4, 5]
    assert lookup("arms[nobody].n", data) is None
    assert evaluate("sum arms.*.n.* + 2 * arms[c].n.0", data) == 22
    assert evaluate("length arms - 1", data) == 1
    assert evaluate("p95 arms.*.n.*", data) == 5
    assert [evaluate(f"p{n} arms.*.n.*", data) for n in (10, 33, 34, 66, 67, 100)] == [
        3, 3, 4, 4, 5, 5
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
    slots = "".join(rows[t("term.reserved.name")].findall("td")[0].find("small").itertext())
    first = next(arm for arm in results.arms if arm.peak)
    assert first.peak is not None
    assert t("report.slots", n=int(first.peak.reserved)) in slots
