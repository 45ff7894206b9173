"""Which cell of an experiment the page shows in full: one with arms to compare."""

from __future__ import annotations

from made_up import Figures, cell

from experiment.analysis.experiment_results import CellArm, CellResult
from experiment.experiments.evaluate import focus_of
from experiment.text.messages import message

RAN: Figures = {"waste": 0.1}


def of(index: int, *arms: str) -> CellResult:
    """A cell in which these arms ended well."""
    return cell(index, {"context": 256 * (index + 1)}, **dict.fromkeys(arms, RAN))


def test_the_page_looks_at_a_cell_in_which_something_ran() -> None:
    ran, gone = [of(0, "paged"), of(1, "paged")], of(2, "paged")
    skipped = gone.model_copy(
        update={"arms": [arm.model_copy(update={"status": "skipped"}) for arm in gone.arms]}
    )
    assert focus_of([*ran, gone]) == 2
    assert focus_of([*ran, skipped]) == 1
    assert focus_of([skipped]) == 0


def test_the_page_looks_at_the_last_cell_in_which_the_most_arms_ran() -> None:
    """One arm alone has nothing to be compared with."""
    cells = [of(0, "paged"), of(1, "slabs", "paged"), of(2, "slabs", "paged"), of(3, "paged")]
    assert focus_of(cells) == 2


def test_who_does_the_same_in_every_cell_is_missed_in_none() -> None:
    """It runs at the first number alone; a page about that would have one request at a time."""
    alone = CellArm(
        arm="contiguous.sequential", status="skipped", repeats=0, figures={},
        reason=message("skip.one_at_a_time"),
    )  # fmt: skip
    first = of(0, "contiguous.sequential", "slabs", "paged")
    more, last = (
        one.model_copy(update={"arms": [alone, *one.arms]})
        for one in (of(1, "slabs", "paged"), of(2, "paged"))
    )
    assert focus_of([first, more]) == 1
    assert focus_of([first, more, last]) == 1
