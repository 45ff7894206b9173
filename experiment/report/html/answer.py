"""The frame of all pages but that of a run: question, answer, chart and table, then folds.

                  PageText               charts
    verdict       kicker, headline
                  lines, alarms
                  first table            under its name
                  facts, notes
                                         "sliders"
    folds         other tables           under their names
                  lists
    files         downloads

Texts are rendered once per language; the page shows the selected one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from experiment.files.shipped import program
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.texts import PageText
from experiment.report.facts.values import has_invisible, shell_text
from experiment.report.html.embed import safe_json
from experiment.report.html.templates import page_assets, templates, text_markup
from experiment.text import Translator

Charts = Mapping[str, Markup]
_OPEN_ROWS = 24  # of the first table; others are folded


def answer_html(
    tell: Callable[[Translator], PageText],
    lang: str,
    name: str,
    data: Mapping[str, Any],
    tables: Mapping[str, str] | None = None,
    draw: Callable[[Bilingual], Charts] | None = None,
    scripts: Sequence[str] = (),
    styles: tuple[str, ...] = (),
    command: Sequence[str] = (),
) -> str:
    """Render the page; ``lang`` is its initial language.

    Args:
        tell: returns the page's texts in a language.
        name: file name of ``data``, for downloading.
        tables: packed CSV files by name, for downloading.
        draw: returns charts by the names of their tables; ``sliders`` is below the answer.
        scripts, styles: of the page, names of templates.
        command: that made the data.
    """
    b = Bilingual(lang)
    page: str = templates(lang).get_template("answer.html.j2").render(
        lang=lang,
        **page_assets(*scripts, styles=styles),
        **answer_context(b, tell, draw(b) if draw else {}),
        file=name,
        command=shell_text([*program(), *command]) if command else "",
        numbered=has_invisible(command),
        data=safe_json({"name": name, **data, "tables": tables or {}}),
    )  # fmt: skip
    return page


def answer_context(
    b: Bilingual, tell: Callable[[Translator], PageText], charts: Charts
) -> dict[str, Any]:
    """Variables of ``answer.html.j2``."""
    pages = [tell(Translator(lang)) for lang in b.order]

    def each(texts: Iterable[str]) -> Markup:
        spans = zip(b.order, map(text_markup, texts), strict=True)
        return Markup("").join(Markup('<span lang="{}">{}</span>').format(*one) for one in spans)

    return {
        "texts": list(zip(b.order, pages, strict=True)),
        "kicker": each(page.kicker for page in pages),
        "headline": each(page.headline for page in pages),
        "table_titles": [
            each(table.title for table in same)
            for same in zip(*(page.tables for page in pages), strict=True)
        ],
        "list_titles": list(map(each, zip(*(page.lists for page in pages), strict=True))),
        "titles": {lang: page.kicker for lang, page in zip(b.order, pages, strict=True)},
        "charts": charts,
        "open_rows": _OPEN_ROWS,
        "has_folds": any(len(page.tables) > 1 or page.lists for page in pages),
    }
