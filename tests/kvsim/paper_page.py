"""Writes the result of ``paper`` into docs/paper.md: ``make paper-page``."""

from __future__ import annotations

from pathlib import Path

from experiment.report.facts.paper import claim_cells, counted, fitted_lines, place_in_paper
from experiment.report.files.markup import items, plain, put_between, table
from experiment.text import Translator
from kvsim.paper.result import check_paper

PAGE = Path(__file__).parents[2] / "docs/paper.md"
SEEDS = tuple(range(5))


def region(t: Translator) -> str:
    """Counts, a row per claim, what was fitted and what is not checked."""
    data = check_paper(SEEDS).to_json()
    columns = ("claim", "paper", "ours", "tolerance", "verdict")
    head = ["Place", *(t(f"paper.column_{name}") for name in columns)]
    rows = [[place_in_paper(t, claim), *claim_cells(t, claim)] for claim in data["claims"]]
    lists = {
        "paper.fitted_title": fitted_lines(t, data),
        "paper.unchecked_title": [t(f"paper.unchecked_{key}") for key in data["unchecked"]],
    }
    parts = [
        f"**{plain(t.message(counted(data)))}**",
        table([head, *rows], left=(0, 1, 5)),
        plain(t("paper.marks")),
    ]
    parts += [f"**{plain(t(title))}**\n\n{items(lines)}" for title, lines in lists.items()]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    put_between(PAGE, "paper", lambda _: region(Translator("en")))
