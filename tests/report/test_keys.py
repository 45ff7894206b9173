"""Every number on the page says where it came from, and there is what it says.

The record and run.json are read anew, each key path is looked up and written out again, and
compared with the page. Names of blocks and requests inside pictures, ticks of axes and numbers
that belong to a text itself (the 95 of "95th percentile") are no figures of a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import html5lib
import pytest
from sample import make_record

from experiment.conclusions import evaluate as conclude
from experiment.i18n import LANGUAGES, Translator, catalogue
from experiment.messages import Message, message
from experiment.reconcile import ALLOWED
from experiment.record import Record, read_record, write_summary
from experiment.report import keyed
from experiment.report.engine_facts import engine_facts, margin_text
from experiment.report.html import report_html
from experiment.report.html_environment import environment_rows
from experiment.report.html_parts import readings_summary
from experiment.report.keyed import WRITERS, document, evaluate, lookup, moment
from experiment.report.series import all_series
from experiment.report.sharing import explanations, sampling_message
from experiment.report.watched import watched_figure
from experiment.results import ArmResult, EngineResult, Margin, Results
from experiment.sampling import SamplingConfig

NO_FIGURES = {"pre", "script", "style", "bdi", "button", "title", "desc", "option", "head"}
PICTURES = {"map-wide", "map-narrow", "mapping-wide", "mapping-narrow"}
_UNIT = re.compile("\u00a0")


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
    return html5lib.parse(page, namespaceHTMLElements=False).find("body")


@pytest.fixture(scope="module")
def facts(written: Record) -> dict[str, Any]:
    """What the key paths begin in, with results as they lie in run.json."""
    stored = json.loads((written.directory / "run.json").read_text(encoding="utf-8"))
    results = Results.model_validate(stored["results"])
    return document(written, results, all_series(written)) | {"results": stored["results"]}


def name(node: Any) -> str:
    return str(node.tag).rsplit("}", 1)[-1]


def keyed_nodes(body: Any) -> list[Any]:
    return [node for node in body.iter() if node.get("data-key")]


def expected(node: Any, facts: dict[str, Any], record: Record) -> str:
    key, kind, lang = node.get("data-key"), node.get("data-as"), node.get("lang")
    if kind in WRITERS:
        return str(WRITERS[kind](evaluate(key, facts)))
    if kind in keyed.MOMENTS:
        return moment(record.started, evaluate(key, facts), kind)
    text = derived(key, kind, facts)
    return Translator(lang).message(text) if isinstance(text, Message) else text


def derived(key: str, kind: str, facts: dict[str, Any]) -> Message | str:
    """Sentences, and texts that a function makes of what lies at the key."""
    family, _, rest = kind.partition(".")
    value = lookup(key, facts) if ";" not in key and "=" not in key else None
    if kind == "message":
        return Message.model_validate(value)
    if kind == "sampling":
        return sampling_message(SamplingConfig.model_validate(value))
    if kind == "margin":
        return margin_text(Margin.model_validate(value))
    if kind == "readings":
        return readings_summary(ArmResult.model_validate(value))
    if family in ("engine", "engine_note"):
        fact = list(engine_facts(EngineResult.model_validate(value)))[int(rest)]
        return fact.value if family == "engine" else fact.note  # type: ignore[return-value]
    if family in ("watched", "watched_note"):
        figure = watched_figure(rest, ArmResult.model_validate(value))
        return figure.value if family == "watched" else figure.note  # type: ignore[return-value]
    if family == "explained":
        part, _, place = rest.partition(".")
        return explanations(Results.model_validate(value))[part][int(place)]
    if family == "environment":
        return dict(environment_rows(value))[rest]  # type: ignore[return-value]
    numbers = dict(one.split("=", 1) for one in key.split("; "))
    return message(
        kind,
        **{
            n: message(p[1:]) if p.startswith("@") else evaluate(p, facts)
            for n, p in numbers.items()
        },
    )


def test_every_keyed_number_is_what_the_record_says(
    parsed: Any, facts: dict[str, Any], written: Record
) -> None:
    nodes = keyed_nodes(parsed)
    assert len(nodes) > 200
    for node in nodes:
        shown = _UNIT.sub(" ", "".join(node.itertext()))
        assert shown == expected(node, facts, written), (node.get("data-key"), node.get("data-as"))


def loose(node: Any, inside: bool = False) -> Iterator[str]:
    """Texts with digits that belong to no key."""
    inside = inside or bool(node.get("data-key")) or name(node) in NO_FIGURES
    classes = (node.get("class") or "").split()
    inside = inside or node.get("id") in PICTURES or bool({"tick", "number"} & set(classes))
    if not inside and node.text:
        yield node.text
    for child in node:
        yield from loose(child, inside)
        if not inside and child.tail:
            yield child.tail


def test_no_number_is_without_a_key(parsed: Any) -> None:
    constant = {text for lang in LANGUAGES for text in catalogue(lang).values() if "{" not in text}
    constant |= {Translator(lang).message(ALLOWED) for lang in LANGUAGES}  # a rule of ours
    found = {text.strip() for text in loose(parsed) if re.search(r"\d", text)}
    found = {_UNIT.sub(" ", text) for text in found} - {_UNIT.sub(" ", t) for t in constant}
    # The speeds that a person can choose.
    assert not {text for text in found if not re.fullmatch(r"\d+/s", text)}


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
    table = next(n for n in parsed.iter("table") if n.get("class") == "compare")
    rows = {"".join(tr.find("th")[0].itertext()): tr for tr in table.find("tbody")}
    for label, of in meant.items():
        cells = rows[t(label)].findall("td")
        for arm, cell in zip(results.arms, cells, strict=True):
            if arm.peak:
                shown = next(n for n in cell.iter() if n.get("data-key"))
                assert _UNIT.sub(" ", "".join(shown.itertext())) == of(arm), (label, arm.arm)
    slots = "".join(rows[t("term.reserved.name")].findall("td")[0].find("small").itertext())
    first = next(arm for arm in results.arms if arm.peak)
    assert first.peak is not None
    assert t("report.slots", n=int(first.peak.reserved)) in slots
