"""Page of the paper's numbers compared with ours."""

from __future__ import annotations

import json
from itertools import groupby

from experiment.report import Reports
from experiment.report.facts.bench_tables import Cells
from experiment.report.facts.paper import (
    Data,
    claim_cells,
    counted,
    fitted_lines,
    paper_csv,
    place_in_paper,
)
from experiment.report.pages.tables import PageText, tables_html
from experiment.text import Translator

PAGE = "paper.html"
_COLUMNS = ("claim", "paper", "ours", "tolerance", "verdict")


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
    return tables_html(lambda t: paper_text(t, data), lang, "paper.json", data)


def paper_text(t: Translator, data: Data) -> PageText:
    """Texts of the page in one language."""
    tables = [
        Cells(
            place_in_paper(t, claims[0]),
            [t(f"paper.column_{name}") for name in _COLUMNS],
            [claim_cells(t, claim) for claim in claims],
            left=(0, 4),
        )
        for claims in _by_source(data)
    ]
    return PageText(
        kicker=t("paper.title"),
        headline=t.message(counted(data)),
        facts=[t("paper.about", n=len(data["seeds"])), t("paper.marks")],
        tables=tables,
        lists={
            t("paper.fitted_title"): fitted_lines(t, data),
            t("paper.unchecked_title"): [t(f"paper.unchecked_{key}") for key in data["unchecked"]],
        },
    )


def _by_source(data: Data) -> list[list[Data]]:
    groups = groupby(data["claims"], lambda claim: claim["source"])
    return [list(claims) for _, claims in groups]
