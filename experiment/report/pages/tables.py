"""A page of tables: the claims, the paper's numbers, a benchmark. Both languages, nothing loaded.

What these commands print is made of text for one language at a time, so the page holds it twice,
and shows the one that is chosen. Its numbers say where they came from: see
:mod:`experiment.report.facts.sourced`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from experiment.report.facts.bench_tables import Cells
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.sourced import cell_markup, lines_markup, shown
from experiment.report.html.embed import safe_json
from experiment.report.page.page import page_assets, templates
from experiment.text import Translator


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
    env.filters.update(sourced=shown, lines=lines_markup, cell=cell_markup)
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
