"""Savings of the prefix cache with a long shared prefix and sequential questions.

    question 0   [ table of people ........ | question ]    computed completely
    question 1   [ blocks found in the cache | question ]   only the question is computed

Cells are numbers of table rows, each without and with the cache; ``options.models`` and
``options.max_lengths`` are the model and its maximum length for each number of rows.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import CellResult, Compared, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, contiguous
from experiment.experiments.cells import Cell
from experiment.experiments.findings import (
    fact,
    judged,
    same,
    same_outputs,
    tally,
    timed,
    untested,
    versus,
    why,
)
from experiment.experiments.found import Found
from experiment.experiments.labels import same_in
from experiment.text.messages import Message
from experiment.workload.requests import check_size

_FIRST = ("Mira", "Tomas", "Ingrid", "Kenji", "Salma", "Bruno", "Oona", "Pavel", "Lucia", "Dev")
_LAST = ("Holt", "Varga", "Sorensen", "Okafor", "Lindqvist", "Marchetti")
_TRADES = ("baker", "pilot", "nurse", "potter", "surveyor", "cellist", "welder")
_CITIES = ("Bergen", "Porto", "Sapporo", "Accra", "Tallinn", "Lima", "Quebec", "Cork")
_ROW_TOKENS = 20  # a lower bound for every tokenizer
_INTRODUCTION = "You answer questions about the people in this table.\n"
_HEAD = "| No. | Name | Age | Trade | City | Street | Telephone | Mail |\n"
_ASKED = ("How old is {name}?", "What does {name} do?", "Where does {name} live?")


def name(index: int) -> str:
    """Name of a person; the first 30 are unique."""
    return f"{_FIRST[index % len(_FIRST)]} {_LAST[(index + index // len(_FIRST)) % len(_LAST)]}"


def table(rows: int) -> str:
    """A table of people with ``rows`` rows."""
    lines = [_row(index) for index in range(rows)]
    return _INTRODUCTION + _HEAD + "".join(lines)


def questions(rows: int, count: int) -> list[str]:
    """Return ``count`` prompts: the same table, then a question about a person in it.

    Raises:
        UserError: more than a run may have.
    """
    check_size(max(rows, count), _ROW_TOKENS * rows * count)
    shared = table(rows)
    texts = [_ASKED[each % len(_ASKED)].format(name=name(each * 7 % rows)) for each in range(count)]
    return [f"{shared}Question: {question}\nAnswer:" for question in texts]


def _row(index: int) -> str:
    age = 21 + index * 13 % 58
    trade, city = _TRADES[index % len(_TRADES)], _CITIES[index % len(_CITIES)]
    street = f"{3 + index * 17 % 90} {_LAST[index * 5 % len(_LAST)]} Road"
    phone = f"555-{1000 + index * 271 % 9000}"
    mail = name(index).lower().replace(" ", ".") + "@example.org"
    cells = (index + 1, name(index), age, trade, city, street, phone, mail)
    return "".join(f"| {cell} " for cell in cells) + "|\n"


_NAME = "prefix"
Pair = tuple[CellResult, CellResult]
Pairs = list[Pair]
_OTHERS = ("transformers_paged", "vllm")


def _cells(config: Config) -> list[Cell]:
    options: dict[str, Any] = config.experiment.options
    cells = []
    for place, rows in enumerate(config.experiment.values):
        overrides = {
            "workload.prompts": questions(int(rows), options["questions"]),
            "model.name": options["models"][place],
            "cache.max_length": options["max_lengths"][place],
            "engine.max_num_seqs": 1,
        }
        for caching in (False, True):
            values = {"rows": rows, "prefix_cache": "on" if caching else "off"}
            cells.append(Cell(values, overrides | {"engine.prefix_caching": caching}))
    return cells


def _findings(found: Found) -> list[Finding]:
    pairs = _pairs(found, "paged")
    others = [other for arm in _OTHERS if (other := _other(found, arm)) is not None]
    if not pairs:
        names = ("later", "tokens", "whole", "outputs")
        return [*(untested(name) for name in names), *others]
    later, tokens = _later(found, pairs), _tokens(found, pairs)
    # The first is the headline: the count, if times are inconclusive.
    counted = later.verdict == "untested" and tokens.verdict == "shown"
    first = [tokens, later] if counted else [later, tokens]
    outputs = same("outputs", _outputs(pairs))
    return [*first, _whole(found, pairs), outputs, _first(found, pairs), *others]


def _later(found: Found, pairs: Pairs) -> Finding:
    """TTFT of the questions after the first, without and with the cache."""
    off, on = pairs[-1]
    if found.figure(on, "paged", "later_ttft_s") is None:
        return untested("later", _alone(found))
    rows = (_off_on(found, pair, "paged", "later_ttft_s") for pair in pairs[:-1])
    one, base = ((cell, "paged", "later_ttft_s") for cell in (off, on))
    return timed(found, "later", one, base, *rows)


def _off_on(found: Found, pair: Pair, arm: str, figure: str) -> Compared | None:
    """Compare a figure without and with the cache."""
    off, on = pair
    return versus(found, (off, arm, figure), (on, arm, figure))


def _alone(found: Found) -> Message | None:
    """The reason if there was only one question."""
    count: Any = found.config.experiment.options["questions"]
    return why("needs", option="experiment.options.questions", values=2) if count < 2 else None


def _tokens(found: Found, pairs: Pairs) -> Finding:
    """Positions that were not computed because their blocks were cached."""
    off, on = pairs[-1]
    row = _off_on(found, (off, on), "paged", "computed")
    hits = tally(found, on, "paged", "prefix_hits")
    if hits is None or row is None:
        return untested("tokens")
    return judged("tokens", row, (row.estimate or 0) > 1, hits, against=why("small"))


def _whole(found: Found, pairs: Pairs) -> Finding:
    """Time of all questions and answers, without and with the cache.

    It includes generation, so the savings on prompts may be a small share.
    """
    off, on = ((cell, "paged", "generate_s") for cell in pairs[-1])
    return timed(found, "whole", off, on)


def _outputs(pairs: Pairs, arm: str = "paged") -> Compared | None:
    """Number of requests with the same tokens with and without the cache."""
    return same_outputs((on.arm(arm), off.arm(arm)) for off, on in pairs)


def _other(found: Found, arm: str) -> Finding | None:
    """Hits and savings of another engine's prefix cache; None if it did not run."""
    pairs = _pairs(found, arm)
    if not pairs:
        return None
    row = _off_on(found, pairs[-1], arm, "computed")
    hits = tally(found, pairs[-1][1], arm, "prefix_hits")
    if row is None or hits is None:
        return None
    sooner = _off_on(found, pairs[-1], arm, "later_ttft_s")
    return fact(arm, row, hits, sooner, _outputs(pairs, arm), title=same_in(arm))


def _first(found: Found, pairs: Pairs) -> Finding:
    """Overhead of the cache for the first question, which computes the table in any case."""
    off, on = pairs[-1]
    one, base = (on, "paged", "first_ttft_s"), (on, "paged", "later_ttft_s")
    if found.compared(one, base) is None:
        return untested("first", _alone(found))
    added = versus(found, one, (off, "paged", "first_ttft_s"))
    return timed(found, "first", one, base, added, least=None)


def _pairs(found: Found, arm: str) -> Pairs:
    """For each number of rows, the cells without and with the cache."""
    ran = list(found.with_arms(arm))
    off = {cell.values["rows"]: cell for cell in ran if cell.values["prefix_cache"] == "off"}
    on = [cell for cell in ran if cell.values["prefix_cache"] == "on"]
    return [(off[cell.values["rows"]], cell) for cell in on if cell.values["rows"] in off]


PREFIX = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "prefix_hits", "computed", "steps", "first_ttft_s", "later_ttft_s", "generate_s",
        "budget_bytes", "usable_blocks",
    ),
    charts=("computed", "later_ttft_s"),
    findings=_findings,
    values="paired",
    options=("models", "max_lengths", "questions"),
    without={**contiguous("no_prefix"), "slabs": "no_prefix"},
)  # fmt: skip
