"""The paper's numbers beside ours as a page."""

from __future__ import annotations

from itertools import groupby

from experiment.i18n import Translator
from experiment.report.bench_tables import Cells
from experiment.report.paper import Data, claim_cells, counted
from experiment.report.tables_page import Told, tables_html

PAGE = "paper.html"
_COLUMNS = ("claim", "paper", "ours", "tolerance", "verdict")


def paper_html(data: Data, lang: str) -> str:
    """The page of what ``paper.json`` holds."""
    return tables_html(lambda t: _told(t, data), lang, "paper.json", data)


def _told(t: Translator, data: Data) -> Told:
    tables = [
        Cells(
            source,
            [t(f"paper.column_{name}") for name in _COLUMNS],
            [claim_cells(t, claim) for claim in claims],
            left=(0, 4),
        )
        for source, claims in groupby(data["claims"], lambda claim: claim["source"])
    ]
    fitted = [
        t(f"paper.fitted_{each['item']}", value=f"{each['value']:.6g}") for each in data["fitted"]
    ]
    return Told(
        kicker=t("paper.title"),
        headline=t.message(counted(data)),
        facts=[t("paper.about", n=len(data["seeds"])), t("paper.marks")],
        tables=tables,
        lists={
            t("paper.fitted_title"): fitted,
            t("paper.unchecked_title"): [t(f"paper.unchecked_{key}") for key in data["unchecked"]],
        },
    )
