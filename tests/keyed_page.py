"""Looks up what a page says of its numbers, and finds numbers that say nothing.

:func:`exempt` names what needs no key, as the page itself does (``report.about.keys``); numbers
that belong to a text of the catalogues (the 95 of "95th percentile") need none either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import html5lib

from experiment.analysis.experiment_results import (
    ExperimentResult,
    FigureInfo,
    FigureValue,
    Finding,
)
from experiment.analysis.finding_text import answer, below
from experiment.analysis.reconcile import ALLOWED
from experiment.analysis.results import ArmResult, EngineResult, Margin, Results
from experiment.events.sampling import SamplingConfig
from experiment.files.shipped import program
from experiment.record.log import RUN_FILE, Record
from experiment.report.facts import experiment as words
from experiment.report.facts import keyed
from experiment.report.facts.engine import engine_facts, margin_text
from experiment.report.facts.keyed import WRITERS, document, evaluate, lookup, moment
from experiment.report.facts.paper import source_words
from experiment.report.facts.series import all_series
from experiment.report.facts.sharing import explanations, sampling_message
from experiment.report.facts.values import config_text, shell_text
from experiment.report.facts.watched import watched_figure
from experiment.report.page.environment import environment_rows
from experiment.report.page.experiment import focus_message, foretold_message
from experiment.report.page.parts import hidden_stages, readings_summary
from experiment.report.pages.sweep_chart import label_of
from experiment.text import LANGUAGES, Translator, catalogue
from experiment.text.messages import Message, message

SPOKEN = ("aria-label", "aria-valuetext", "alt", "title", "placeholder")
_UNIT = re.compile("\u00a0")


def facts_of(shown: Record) -> dict[str, Any]:
    """What the key paths begin in, with results as they lie in run.json."""
    stored = json.loads((shown.directory / RUN_FILE).read_text(encoding="utf-8"))["results"]
    results = Results.model_validate(stored)
    return document(shown, results, all_series(shown)) | {"results": stored}


def body_of(page: str) -> Any:
    """The page's body, parsed."""
    return html5lib.parse(page, namespaceHTMLElements=False).find("body")


def assert_keys_hold(
    body: Any, facts: dict[str, Any], record: Record | None, least: int = 100, lang: str = "en"
) -> None:
    """Each number with a key is what the record says; ``lang`` is that of texts which name none."""
    nodes = keyed_nodes(body)
    assert len(nodes) > least
    for node in nodes:
        shown = _UNIT.sub(" ", "".join(node.itertext()))
        assert shown == expected(node, facts, record, lang), (
            node.get("data-key"),
            node.get("data-as"),
        )


def numbers_without_key(body: Any) -> set[str]:
    """Texts with digits that neither have a key nor stand so in a catalogue."""
    constant = {text for lang in LANGUAGES for text in catalogue(lang).values() if "{" not in text}
    constant |= {Translator(lang).message(ALLOWED) for lang in LANGUAGES}  # a rule of ours
    # A screen reader may be told again what stands on the page with its key.
    told = {"".join(node.itertext()) for node in keyed_nodes(body)}
    found = {text for text in loose(body, spoken) if text not in told} | {*loose(body, written)}
    found = {text.strip() for text in found if re.search(r"\d", text)}
    return {_UNIT.sub(" ", text) for text in found} - {_UNIT.sub(" ", t) for t in constant}


def name(node: Any) -> str:
    return str(node.tag).rsplit("}", 1)[-1]


def keyed_nodes(body: Any) -> list[Any]:
    return [node for node in body.iter() if node.get("data-key")]


def expected(node: Any, facts: dict[str, Any], record: Record | None, lang: str = "en") -> str:
    key, kind, lang = node.get("data-key"), node.get("data-as"), node.get("lang") or lang
    if kind in WRITERS:
        return str(WRITERS[kind](evaluate(key, facts)))
    if kind in keyed.MOMENTS and record is not None:
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
    if kind in ("readings", "stages_hidden"):
        told = readings_summary if kind == "readings" else hidden_stages
        return told(ArmResult.model_validate(value))
    if family in ("engine", "engine_note"):
        fact = list(engine_facts(EngineResult.model_validate(value)))[int(rest)]
        return fact.value if family == "engine" else fact.note  # type: ignore[return-value]
    if family in ("watched", "watched_note"):
        figure = watched_figure(rest, ArmResult.model_validate(value))
        return figure.value if family == "watched" else figure.note  # type: ignore[return-value]
    if family == "explained":
        part, _, place = rest.partition(".")
        return explanations(Results.model_validate(value))[part][int(place)]
    if family in ("figure", "figure_below"):
        info = next(i for i in facts["results"]["experiment"]["figures"] if i["figure"] == rest)
        entry = words.entry(FigureInfo.model_validate(info), FigureValue.model_validate(value))
        return entry.main if family == "figure" else entry.below  # type: ignore[return-value]
    if family == "cell_label":
        names = rest.split("+") if rest else value
        return words.cell_label({name: value[name] for name in names})
    if family == "finding":
        finding, (_, _, place) = Finding.model_validate(value), rest.partition(".")
        return below(finding)[int(place)] if place else answer(finding)
    if family == "varied":
        return words.varied(ExperimentResult.model_validate(value))[rest]
    if kind == "paper.source":
        return source_words(value)
    if kind == "sweep.settings":
        return label_of(value)
    if kind == "config":
        return config_text(value)
    if kind == "command":
        return shell_text([*program(), *value])
    if kind in ("foretold", "focus"):
        of = foretold_message if kind == "foretold" else focus_message
        return of(ExperimentResult.model_validate(value))  # type: ignore[return-value]
    if kind == "player.entry_place":
        return f"{value['logical']} → {value['block']}"
    if kind == "player.entry_slots":
        owners = value["owners"]
        return f"{value['written']}/{value['size']}" + (f" ×{owners}" if owners > 1 else "")
    if family == "environment":
        return next(row.value for row in environment_rows(value) if row.name == rest)  # type: ignore[return-value]
    numbers = dict(one.split("=", 1) for one in key.split("; "))
    return message(kind, **{name: _of_sentence(path, facts) for name, path in numbers.items()})


def _of_sentence(expression: str, facts: dict[str, Any]) -> Any:
    """What a sentence has for an expression."""
    if expression.startswith("@"):
        return message(expression[1:])
    if expression.startswith("'"):
        return expression[1:]
    if not expression.startswith("#"):
        return evaluate(expression, facts)
    kind, path = expression[1:].split(" ", 1)
    value = evaluate(path, facts)
    if kind in WRITERS:
        return None if value is None else WRITERS[kind](value)
    return message(kind, value=value)


def exempt(node: Any) -> str | None:
    """What it is that needs no key; None: its numbers are figures."""
    kind, classes = name(node), (node.get("class") or "").split()
    if kind in ("script", "style"):
        return "code"
    if kind == "bdi":
        return "quotation"
    if kind == "text" and "tick" in classes:
        return "mark of an axis"
    if kind == "th" and "quantile" in classes:
        return "percentile that a row is about"
    if kind == "span" and "number" in classes:
        return "number of a section"
    if kind == "select" and node.get("id") == "player-speed":
        return "speed of the player"
    return None


def loose(node: Any, texts: Callable[[Any], Iterable[str | None]]) -> Iterator[str]:
    """Texts of elements that belong to no key and are not exempt."""
    if node.get("data-key") or exempt(node) is not None:
        return
    yield from filter(None, texts(node))
    for child in node:
        yield from loose(child, texts)


def written(node: Any) -> list[str | None]:
    """What stands in an element and in none of its children."""
    return [node.text, *(child.tail for child in node)]


def spoken(node: Any) -> list[str | None]:
    """What a screen reader says of an element, or a hand that rests on it is shown."""
    return [node.get(each) for each in SPOKEN]
