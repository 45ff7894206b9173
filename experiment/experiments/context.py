"""One long context beside short requests, in one budget: how long it may be.

    slabs   every request gets the length of the longest one     4 x 1,024 > 2,048: two at a time
    paged   every request gets what it needs                     1,024 + 3 x 128: all four

A slab's length has to be known before; here it is given the best one, that of the longest request.
``options.others`` are the (prompt, new) of the short ones, ``options.new`` what the long one adds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.alike import longer, no_more_run, place
from experiment.experiments.base import Experiment
from experiment.experiments.cells import Cell
from experiment.experiments.found import (
    Faster,
    Found,
    beside,
    detail,
    fact,
    followed,
    judged,
    listed,
    undecided,
    untested,
)
from experiment.experiments.prediction import REFUSED, last_that
from experiment.text.messages import Message, arm_message
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens

_NAME = "context"
_LONGER = 1.05


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    return [
        Cell({"context": int(tokens)}, _overrides(config, int(tokens), options))
        for tokens in config.experiment.values
    ]


def _overrides(config: Config, tokens: int, options: Any) -> dict[str, Any]:
    """The long request first, and a maximum length that it fits into exactly."""
    prompt, size = tokens - options["new"] + 1, config.cache.block_size
    longest = max(tokens, *(final_tokens(*pair) for pair in options["others"]))
    return {
        "workload.lengths": [[prompt, options["new"]], *options["others"]],
        "cache.max_length": blocks_needed(longest, size) * size,
    }


def _findings(found: Found) -> list[Finding]:
    return [_together(found), _alone(found), _time(found)]


def _together(found: Found) -> Finding:
    """The longest context at which all requests ran at the same time, to their ends."""
    longest = {arm: _longest(found, arm, together=True) for arm in ("slabs", "paged")}
    slabs, paged = longest["slabs"], longest["paged"]
    if not slabs or not paged:
        return untested("together", _never(found, longest))
    requests = found.cells[0].requests
    figures = {"slabs": slabs, "paged": paged, "factor": paged / slabs, "requests": requests}
    tried = detail(_NAME, "together_tried")
    return judged(
        _NAME, "together", paged > slabs * _LONGER, tried, _foretold(found, slabs, paged), **figures
    )


def _foretold(found: Found, slabs: int, paged: int) -> Message | None:
    """The longest of all lengths by kvsim, where it bears out both that ran and next ones tried.

    None: it is not asked, or none longer was tried, so that nothing brackets an end.
    """
    if found.simulate is None:
        return None
    ends: dict[str, int] = {}
    for arm, most in (("slabs", slabs), ("paged", paged)):
        longer = [n for cell in found.cells if (n := int(cell.values["context"])) > most]
        if not longer:
            return None
        end = last_that(partial(_fit, found, arm), most, min(longer))
        if end is None:
            return detail(_NAME, "together_apart", arm=arm_message(arm).model_dump())
        ends[arm] = end
    return detail(_NAME, "together_foretold", factor=ends["paged"] / ends["slabs"], **ends)


def _fit(found: Found, arm: str, tokens: int) -> bool | None:
    """Whether all run at the same time to their ends beside so long a one; None: nobody knows."""
    assert found.simulate is not None
    cell = next(found.with_arms(arm))
    said = found.simulate(
        cell, arm, _overrides(found.config, tokens, found.config.experiment.options)
    )
    if isinstance(said, Message):
        return False if said.key == REFUSED else None
    alone = said.requests.refused or said.preemptions.total
    return not alone and said.running.max == cell.requests


def _never(found: Found, longest: dict[str, int | None]) -> Message | None:
    """Which arms ran, and never all requests at a time."""
    arms = [arm for arm, most in longest.items() if not most]
    if not all(any(found.with_arms(arm)) for arm in longest):
        return None
    said = listed(arm_message(arm).model_dump() for arm in arms)
    return detail(_NAME, "together_never", arms=said, requests=found.cells[0].requests)


def _alone(found: Found) -> Finding:
    """The longest that ran at all: there a slab of the right length holds what blocks hold."""
    slabs, paged = (_longest(found, arm, together=False) for arm in ("slabs", "paged"))
    if not slabs or not paged:
        return untested("alone")
    return fact(_NAME, "alone", "longest", detail(_NAME, "alone_why"), slabs=slabs, paged=paged)


def _time(found: Found) -> Finding:
    """Time in blocks over that in slabs, at each context, and where paging lets no more run."""
    seen = [
        (cell, factor)
        for cell in found.cells
        if (factor := longer(found, cell, "generate_s")) is not None
    ]
    if not seen:
        return untested("time")
    places = [(cell, place("context", n=cell.values["context"])) for cell, _ in seen]
    nothing = no_more_run(found, places)
    if all(factor.lacking for _, factor in seen):
        return followed(undecided("time", seen[0][1]), nothing)
    factors = listed(_at(cell, factor) for cell, factor in seen)
    return fact(_NAME, "time", "seen", nothing, factors=factors)


def _at(cell: CellResult, factor: Faster) -> object:
    """The factor of a context, and where repeats do not tell it from none."""
    at = {"context": cell.values["context"], **factor.told, "note": beside(factor)}
    return detail(_NAME, "time_at", **at).model_dump()


def _longest(found: Found, arm: str, together: bool) -> int | None:
    """Of the contexts that were tried, in slots at its end; None: none of them ran."""
    ran = [
        int(cell.values["context"])
        for cell in found.with_arms(arm)
        if not together or _all_at_once(found, cell, arm)
    ]
    return max(ran, default=None)


def _all_at_once(found: Found, cell: CellResult, arm: str) -> bool:
    """Who was preempted later did not fit, though it ran beside the others for a while."""
    peak, preempted = (found.value(cell, arm, name) for name in ("running_peak", "preemptions"))
    return peak == cell.requests and preempted == 0


CONTEXT = Experiment(
    name=_NAME,
    cells=_cells,
    figures=("running_peak", "running_mean", "waste", "preemptions", "steps", "generate_s"),
    charts=("running_peak", "waste"),
    findings=_findings,
    options=("new", "others"),
    without={"contiguous.sequential": "one_at_a_time"},
)
