"""Page of the paper's numbers compared with ours."""

from __future__ import annotations

import json

from experiment.report import Reports
from experiment.report.facts.paper import (
    Data,
    counted,
    fitted_lines,
    paper_cells,
    paper_csv,
)
from experiment.report.facts.texts import PageText
from experiment.report.html.answer import answer_html
from experiment.text import Translator

PAGE = "paper.html"


def paper_reports(data: Data, lang: str) -> Reports:
    """Files of a check; deterministic for the same seeds."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return {
        "paper.json": text,
        "paper.csv": paper_csv(data),
        PAGE: paper_html(data, lang),
    }


def paper_html(data: Data, lang: str) -> str:
    """Render the page from the data of ``paper.json``."""
    return answer_html(lambda t: paper_text(t, data), lang, "paper.json", data)


def paper_text(t: Translator, data: Data) -> PageText:
    """Texts of the page in one language."""
    return PageText(
        kicker=t("paper.title"),
        headline=t.message(counted(data)),
        facts=[t("paper.about", n=len(data["seeds"])), t("paper.marks")],
        tables=[paper_cells(t, data)],
        lists={
            t("paper.fitted_title"): fitted_lines(t, data),
            t("paper.unchecked_title"): [t(f"paper.unchecked_{key}") for key in data["unchecked"]],
        },
    )
