"""A page of tables: the claims, the paper's numbers, a benchmark. Both languages, nothing loaded.

What these commands print is made of text for one language at a time, so the page holds it twice,
and shows the one that is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from experiment.report.facts.bench_tables import Cells
from experiment.report.facts.bilingual import UNIT, Bilingual, unbroken
from experiment.report.facts.data_key import KeyedText
from experiment.report.html.embed import safe_json
from experiment.report.page.page import page_assets, templates
from experiment.text import Translator

_PLAIN, _IN_ONE = Markup("{}"), Markup("<span>{}</span>")


@dataclass(frozen=True, slots=True)
class Told:
    """What a page says in one language.

    Attributes:
        kicker: what it is about, in small letters above the headline.
        facts: what the figures stand on, a sentence each.
        lists: further sentences under a heading each.
    """

    kicker: str
    headline: str
    facts: Sequence[str]
    tables: Sequence[Cells]
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)


def tables_html(
    tell: Callable[[Translator], Told],
    lang: str,
    name: str,
    data: Mapping[str, Any],
    tables: Mapping[str, str] | None = None,
    draw: Callable[[Bilingual], Markup] | None = None,
) -> str:
    """The whole page; ``lang`` is what it shows until someone switches.

    Args:
        tell: the page's texts in a language.
        name: of the file that holds ``data``, offered for download.
        tables: packed CSV files by name, offered too.
        draw: what stands between the headline and the tables.
    """
    b = Bilingual(lang)
    env = templates(b)
    env.filters.update(text=_text, lines=_lines, cell=_cell)
    told = [(each, tell(Translator(each))) for each in b.order]
    page: str = env.get_template("tables.html.j2").render(
        lang=lang,
        **page_assets(),
        patterns="",
        pictures=draw(b) if draw else "",
        told=told,
        file=name,
        titles={each: page.kicker for each, page in told},
        data=safe_json({"name": name, **data, "tables": tables or {}}),
    )
    return page


def _cell(text: str) -> Markup:
    """A cell: what stands in brackets behind its figure is small, and so are further lines."""
    head, behind, tail = text.partition(" (")
    if "\n" in text or not (head and behind and text.endswith(")") and "(" not in tail):
        return _lines(text)
    # One element: a cell may be a grid.
    inside = Markup("{} {}").format(_in_one(head), _small(behind[1:] + tail))
    return _keyed(text, inside, _IN_ONE)


def _lines(text: str) -> Markup:
    """The first line, and the others in small letters."""
    first, *others = text.split("\n")
    return _keyed(text, _in_one(first)) + Markup("").join(map(_small, others))


def _text(text: str) -> Markup:
    return _keyed(text, _in_one(text))


def _keyed(text: str, inside: Markup, other: Markup = _PLAIN) -> Markup:
    """What is shown of a text, with its path; ``other`` is the form of what has none."""
    if isinstance(text, KeyedText):
        return Markup('<span data-key="{}">{}</span>').format(text.key, inside)
    return other.format(inside)


def _in_one(text: str) -> Markup:
    """Numbers stay with their units."""
    return unbroken(UNIT.sub("\u00a0", text))


def _small(text: str) -> Markup:
    return Markup("<small>{}</small>").format(_in_one(text))
