"""The longest context that one request may have alongside short requests, in one budget.

    slabs   every request gets the length of the longest one     4 x 1,024 > 2,048: two concurrent
    paged   every request gets what it needs                     1,024 + 3 x 128: all four

A slab's length is fixed in advance; here it is optimal, that of the longest request.
``options.others`` are the (prompt, new) of the short requests, ``options.new`` the new tokens of
the long one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiment.analysis.experiment_results import CellResult, Compared, Finding, Side
from experiment.analysis.finding_text import listed
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, varied
from experiment.experiments.findings import (
    BOTH,
    fact,
    factors,
    judged,
    note,
    ratios,
    undecided,
    untested,
    why,
)
from experiment.experiments.found import Found
from experiment.experiments.labels import arm_label
from experiment.experiments.prediction import REFUSED, last_that
from experiment.text.messages import Message
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens

_NAME = "context"
_LONGER = 1.05


def _overrides(config: Config, tokens: int) -> dict[str, Any]:
    """The long request first, and the smallest maximum length for it, in whole blocks."""
    options: Any = config.experiment.options
    prompt, size = tokens - options["new"] + 1, config.cache.block_size
    longest = max(tokens, *(final_tokens(*pair) for pair in options["others"]))
    return {
        "workload.lengths": [[prompt, options["new"]], *options["others"]],
        "cache.max_length": blocks_needed(longest, size) * size,
    }


def _findings(found: Found) -> list[Finding]:
    return [_together(found), _alone(found), _time(found)]


def _together(found: Found) -> Finding:
    """The longest context at which all requests ran concurrently to their ends."""
    longest = {arm: _longest(found, arm, together=True) for arm in BOTH}
    row = _lengths(longest, note(_NAME, "longest_together"))
    slabs, paged = longest["slabs"], longest["paged"]
    if row is None or not slabs or not paged:
        ran = all(any(found.with_arms(arm)) for arm in BOTH)
        never = listed(arm_label(arm) for arm, most in longest.items() if not most)
        named = why("never_together", arms=never) if ran and never else None
        return untested("together", named)
    shown, end = paged > slabs * _LONGER, _predicted(found, slabs, paged)
    return judged("together", row, shown, end, against=why("small"))


def _lengths(longest: Mapping[str, int | None], figure: Message) -> Compared | None:
    """The longest context of each arm in slots; None if an arm has none."""
    slabs, paged = longest["slabs"], longest["paged"]
    if not slabs or not paged:
        return None
    sides = [Side(label=arm_label(arm), value=longest[arm], unit="count") for arm in BOTH]
    return Compared(figure=figure, sides=sides, kind="ratio", estimate=paged / slabs)


def _predicted(found: Found, slabs: int, paged: int) -> Compared | None:
    """kvsim's longest context of each arm, if it agrees with the tested ones.

    None without a simulator, or if no longer context was tested.
    """
    if found.simulate is None:
        return None
    ends: dict[str, int | None] = {}
    for arm, most in (("slabs", slabs), ("paged", paged)):
        longer = [n for cell in found.cells if (n := int(cell.values["context"])) > most]
        ends[arm] = last_that(partial(_fit, found, arm), most, min(longer)) if longer else None
    return _lengths(ends, note(_NAME, "longest_foretold"))


def _fit(found: Found, arm: str, tokens: int) -> bool | None:
    """Whether all requests run concurrently to their ends, as predicted; None if unknown.

    ``tokens``: length of the long one.
    """
    assert found.simulate is not None
    cell = next(found.with_arms(arm))
    result = found.simulate(cell, arm, _overrides(found.config, tokens))
    if isinstance(result, Message):
        return False if result.key == REFUSED else None
    alone = result.requests.refused or result.preemptions.total
    return not alone and result.running.max == cell.requests


def _alone(found: Found) -> Finding:
    """The longest context that ran at all; a slab of that length holds as much as blocks."""
    longest = {arm: _longest(found, arm, together=False) for arm in BOTH}
    return fact("alone", _lengths(longest, note(_NAME, "longest")))


def _time(found: Found) -> Finding:
    """Time of a run in blocks relative to slabs, at each context."""
    seen = ratios(found, found.cells, "generate_s", *BOTH)
    row = factors(seen, "generate_s", *BOTH, "context", least=1)
    if row is not None and row.reason is not None and all(each.lacking for _, each in seen):
        return undecided("time", row, reason=row.reason)
    return fact("time", row)


def _longest(found: Found, arm: str, together: bool) -> int | None:
    """The longest tested context, in slots at its end; None if none ran."""
    ran = [
        int(cell.values["context"])
        for cell in found.with_arms(arm)
        if not together or _all_at_once(found, cell, arm)
    ]
    return max(ran, default=None)


def _all_at_once(found: Found, cell: CellResult, arm: str) -> bool:
    """Whether all ran concurrently, none of them preempted later."""
    peak, preempted = (found.value(cell, arm, name) for name in ("running_peak", "preemptions"))
    return peak == cell.requests and preempted == 0


CONTEXT = Experiment(
    name=_NAME,
    cells=varied("context", _overrides),
    figures=("running_peak", "running_mean", "waste", "preemptions", "steps", "generate_s"),
    charts=("running_peak", "waste"),
    findings=_findings,
    options=("new", "others"),
    without={"contiguous.sequential": "one_at_a_time"},
)
