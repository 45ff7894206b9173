"""Self-contained page of tables in both languages, for claims, paper and benchmark.

Texts are rendered once per language; the page shows the selected one.
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
class PageText:
    """Texts of a page in one language.

    Attributes:
        kicker: subject, in small letters above the headline.
        facts: conditions of the figures, a sentence each.
        lists: further sentences by heading.
        command: for a shell.
    """

    kicker: str
    headline: str
    facts: Sequence[str]
    tables: Sequence[Cells]
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    command: str = ""


def tables_html(
    tell: Callable[[Translator], PageText],
    lang: str,
    name: str,
    data: Mapping[str, Any],
    tables: Mapping[str, str] | None = None,
    draw: Callable[[Bilingual], Markup] | None = None,
    scripts: Sequence[str] = (),
    styles: tuple[str, ...] = (),
) -> str:
    """Render the page; ``lang`` is its initial language.

    Args:
        tell: returns the page's texts in a language.
        name: file name of ``data``, for downloading.
        tables: packed CSV files by name, for downloading.
        draw: returns the charts between headline and tables.
        scripts, styles: of the page, names of templates.
    """
    b = Bilingual(lang)
    env = templates(b)
    env.filters.update(text=_text, lines=_lines, cell=_cell)
    texts = [(each, tell(Translator(each))) for each in b.order]
    page: str = env.get_template("tables.html.j2").render(
        lang=lang,
        **page_assets(*scripts, styles=styles),
        patterns="",
        pictures=draw(b) if draw else "",
        texts=texts,
        file=name,
        titles={each: page.kicker for each, page in texts},
        data=safe_json({"name": name, **data, "tables": tables or {}}),
    )
    return page


def _cell(text: str) -> Markup:
    """A cell with text in brackets and further lines in small letters."""
    head, behind, tail = text.partition(" (")
    if "\n" in text or not (head and behind and text.endswith(")") and "(" not in tail):
        return _lines(text)
    # One element, because a cell may be a grid.
    inside = Markup("{} {}").format(_unbroken(head), _small(behind[1:] + tail))
    return _keyed(text, inside, _IN_ONE)


def _lines(text: str) -> Markup:
    """The first line, and further lines in small letters."""
    first, *others = text.split("\n")
    return _keyed(text, _unbroken(first)) + Markup("").join(map(_small, others))


def _text(text: str) -> Markup:
    return _keyed(text, _unbroken(text))


def _keyed(text: str, inside: Markup, other: Markup = _PLAIN) -> Markup:
    """Markup of a text with its path; ``other`` is the form without path."""
    if isinstance(text, KeyedText):
        return Markup('<span data-key="{}">{}</span>').format(text.key, inside)
    return other.format(inside)


def _unbroken(text: str) -> Markup:
    """Text without line breaks between numbers and units."""
    return unbroken(UNIT.sub("\u00a0", text))


def _small(text: str) -> Markup:
    return Markup("<small>{}</small>").format(_unbroken(text))
