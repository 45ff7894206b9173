"""A long prefix that all requests share, one question after another: what the cache saves.

    question 0   [ table of people ........ | question ]    all of it computed
    question 1   [ blocks found in the cache | question ]   only what is new

Cells are rows of the table, each without the cache and with it; ``options.models`` and
``options.max_lengths`` name a model and its maximum length for each number of rows.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, contiguous
from experiment.experiments.cells import Cell
from experiment.experiments.found import (
    FEWEST,
    Found,
    detail,
    fact,
    followed,
    judged,
    over,
    seconds_spread,
    sentences,
    timed,
    undecided,
    untested,
)
from experiment.experiments.people import questions
from experiment.text.messages import Message, arm_message

_NAME = "prefix"
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
    # The first is the headline: where times tell nothing, what was counted does.
    counted = later.verdict == "untested" and tokens.verdict == "shown"
    first = [tokens, later] if counted else [later, tokens]
    return [*first, _whole(found, pairs), _outputs(pairs), _first(found, pairs), *others]


def _later(found: Found, pairs: list[tuple[CellResult, CellResult]]) -> Finding:
    """Time to the first token of the questions after the first, with the cache and without."""
    off, on = pairs[-1]
    one, base = (
        found.figure(on, "paged", "later_ttft_s"),
        found.figure(off, "paged", "later_ttft_s"),
    )
    if one is None or base is None:
        return untested("later", _alone(found))
    factors = [
        (int(cell.values["rows"]), faster)
        for before, cell in pairs
        if (
            faster := found.compared(
                (before, "paged", "later_ttft_s"), (cell, "paged", "later_ttft_s")
            )
        )
    ]
    figures = {"off": base.value, "on": one.value, "rows": on.values["rows"]}
    faster = found.compared((off, "paged", "later_ttft_s"), (on, "paged", "later_ttft_s"))
    return timed(_NAME, "later", faster, figures, over(factors))


def _alone(found: Found) -> Message | None:
    """Where one question was asked, none of them is a later one."""
    asked: Any = found.config.experiment.options["questions"]
    return detail(_NAME, "one_question") if asked < 2 else None


def _tokens(found: Found, pairs: list[tuple[CellResult, CellResult]]) -> Finding:
    """Positions that were not computed because their blocks were there."""
    off, on = pairs[-1]
    without, with_it = (found.value(cell, "paged", "computed") for cell in (off, on))
    hits = found.value(on, "paged", "prefix_hits")
    if without is None or with_it is None or hits is None:
        return untested("tokens")
    blocks = int(hits) // on.block_size  # only full ones are found
    figures = {"hits": hits, "off": without, "on": with_it, "share": 1 - with_it / without,
               "blocks": blocks}  # fmt: skip
    return judged(_NAME, "tokens", with_it < without, rows=on.values["rows"], **figures)


def _whole(found: Found, pairs: list[tuple[CellResult, CellResult]]) -> Finding:
    """Time of the run, all questions and answers, with the cache and without.

    Prompts are a part of it: what the cache saves of them may be little beside the answers.
    """
    off, on = pairs[-1]
    one, base = (found.figure(cell, "paged", "generate_s") for cell in (on, off))
    faster = found.compared((off, "paged", "generate_s"), (on, "paged", "generate_s"))
    if one is None or base is None or faster is None:
        return untested("whole")
    told = {"on": one.value, "off": base.value, "rows": on.values["rows"],
            "on_spread": seconds_spread(one), "off_spread": seconds_spread(base)}  # fmt: skip
    return timed(_NAME, "whole", faster, told)


def _outputs(pairs: list[tuple[CellResult, CellResult]]) -> Finding:
    equal, requests = _equal(pairs, "paged")
    if not requests:
        return untested("outputs")
    why = None if equal == requests else detail(_NAME, "outputs_why")
    return judged(_NAME, "outputs", equal == requests, why, equal=equal, requests=requests)


def _equal(pairs: list[tuple[CellResult, CellResult]], arm: str) -> tuple[int, int]:
    """Requests with the same tokens with the cache and without, and how many there are."""
    equal = requests = 0
    for off, on in pairs:
        one, other = off.arm(arm), on.arm(arm)
        if one is None or other is None:
            continue
        requests += len(one.outputs)
        equal += sum(a == b for a, b in zip(one.outputs, other.outputs, strict=False))
    return equal, requests


def _other(found: Found, arm: str) -> Finding | None:
    """What another engine's own prefix cache found and saved, where it ran."""
    pairs = _pairs(found, arm)
    if not pairs:
        return None
    off, on = pairs[-1]
    counts = {
        "hits": found.value(on, arm, "prefix_hits"),
        "off": found.value(off, arm, "computed"),
        "on": found.value(on, arm, "computed"),
    }
    if None in counts.values():
        return None
    told = {"arm": arm_message(arm).model_dump(), "rows": on.values["rows"]}
    equal, requests = _equal(pairs, arm)
    same = detail(_NAME, "other_outputs", equal=equal, requests=requests)
    more = sentences([_sooner(found, off, on, arm), same])
    return Finding(id=arm, verdict=None, text=detail(_NAME, "other", **told, **counts), more=more)


def _sooner(found: Found, off: CellResult, on: CellResult, arm: str) -> Message | None:
    one, base = (found.figure(cell, arm, "later_ttft_s") for cell in (on, off))
    faster = found.compared((off, arm, "later_ttft_s"), (on, arm, "later_ttft_s"))
    if one is None or base is None or faster is None:
        return None
    if faster.lacking:
        return detail(_NAME, f"other_{faster.lacking}", n=faster.repeats, least=FEWEST)
    key = "same" if not faster.clear else "sooner" if faster.factor > 1 else "later"
    told = {"on": one.value, "off": base.value, **faster.told}
    return detail(_NAME, f"other_{key}", **told)


def _first(found: Found, pairs: list[tuple[CellResult, CellResult]]) -> Finding:
    """The first question pays for the table, with the cache too, and what the cache adds to it."""
    off, on = pairs[-1]
    first, later = (found.figure(on, "paged", f"{which}_ttft_s") for which in ("first", "later"))
    faster = found.compared((on, "paged", "first_ttft_s"), (on, "paged", "later_ttft_s"))
    if first is None or later is None or faster is None:
        return untested("first", _alone(found))
    spreads = {"first_spread": seconds_spread(first), "later_spread": seconds_spread(later)}
    added = _added(found, off, on)
    if not faster.enough:
        return followed(undecided("first", faster), added)
    told = {"first": first.value, "later": later.value, **faster.told}
    key = "same" if not faster.clear else "seen" if faster.factor > 1 else "less"
    return fact(_NAME, "first", key, added, **told, **spreads)


def _added(found: Found, off: CellResult, on: CellResult) -> Message | None:
    """The first question with the cache beside the first without: what looking and filing take."""
    one, base = (found.figure(cell, "paged", "first_ttft_s") for cell in (on, off))
    longer = found.compared((on, "paged", "first_ttft_s"), (off, "paged", "first_ttft_s"))
    if one is None or base is None or longer is None or longer.lacking:
        return None
    key = "same" if not longer.clear else "more" if longer.factor > 1 else "less"
    told = {"on": one.value, "off": base.value, **longer.told}
    return detail(_NAME, f"first_added_{key}", **told)


def _pairs(found: Found, arm: str) -> list[tuple[CellResult, CellResult]]:
    """For each number of rows, the cell without the cache and the one with it."""
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
    charts=("later_ttft_s", "computed"),
    findings=_findings,
    values="paired",
    options=("models", "max_lengths", "questions"),
    without={**contiguous("no_prefix"), "slabs": "no_full_blocks"},
)  # fmt: skip
