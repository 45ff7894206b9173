"""Where blocks let no more run than slabs: what paging costs there, if it costs anything.

requests at a time, steps   the same in both arms     counted: paging gains nothing by them
time in blocks over slabs   repeats apart, or not     it costs time, or that cannot be told

The first is counted and holds on any machine; the second heeds the spread and a busy machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isclose

from experiment.analysis.experiment_results import CellResult
from experiment.experiments.figures import FIGURES
from experiment.experiments.found import FEWEST, Faster, Found, listed, sentences
from experiment.text.messages import Message, message

# A cell, and where that is for a text: "with 4 requests".
At = tuple[CellResult, Message]
# Which of them an experiment has; means tell more than peaks.
_AT_A_TIME = ("running_mean", "running_peak")


def place(name: str, **numbers: object) -> Message:
    """Where a cell is: a name under ``experiments.place``."""
    return message(f"experiments.place.{name}", **numbers)


def no_more(found: Found, cell: CellResult) -> bool:
    """Whether as many ran at a time in blocks as in slabs, in as many steps; unknown is no."""
    if not _equal(found, cell, "steps"):
        return False
    known = [name for name in _AT_A_TIME if found.value(cell, "paged", name) is not None]
    return bool(known) and _equal(found, cell, known[0])


def _equal(found: Found, cell: CellResult, name: str) -> bool:
    slabs, paged = (found.value(cell, arm, name) for arm in ("slabs", "paged"))
    return slabs is not None and paged is not None and isclose(slabs, paged)


def longer(found: Found, cell: CellResult, figure: str) -> Faster | None:
    """How many times as long blocks take as slabs, by a time or by a rate."""
    paged, slabs = (cell, "paged", figure), (cell, "slabs", figure)
    rate = FIGURES[figure].better == "more"
    return found.compared(slabs, paged) if rate else found.compared(paged, slabs)


def no_more_run(found: Found, cells: Iterable[At]) -> Message | None:
    """In which of the cells paging lets no more run, without a time; None: in none of them."""
    places = [at for cell, at in cells if no_more(found, cell)]
    return _told("counted", places) if places else None


def nothing_gained(
    found: Found, cells: Iterable[At], figure: str, what: str = "run"
) -> Message | None:
    """In which of the cells paging lets no more run, and whether it costs time there.

    ``figure`` is the time, or the rate, and ``what`` what it is of: a name under
    ``experiments.alike``. None: in none of them.
    """
    seen = [(cell, at) for cell, at in cells if no_more(found, cell)]
    if not seen:
        return None
    said = [_told("counted", [at for _, at in seen])]
    lacking: dict[str, list[tuple[Message, int]]] = {}
    for cell, at in seen:
        factor = longer(found, cell, figure)
        if factor is None or factor.lacking:
            why = "unknown" if factor is None else str(factor.lacking)
            lacking.setdefault(why, []).append((at, factor.repeats if factor else 0))
            continue
        key = "same" if not factor.clear else "slower" if factor.factor > 1 else "faster"
        of = message(f"experiments.alike.{what}").model_dump()
        told = {"what": of, "place": at.model_dump(), **factor.told}
        said.append(message(f"experiments.alike.{key}", **told))
    for why, those in lacking.items():
        numbers = {"n": min(n for _, n in those), "least": FEWEST} if why == "few" else {}
        said.append(_told(why, [at for at, _ in those], **numbers))
    return sentences(said)


def _told(key: str, places: list[Message], **numbers: object) -> Message:
    said = listed(at.model_dump() for at in places)
    return message(f"experiments.alike.{key}", places=said, **numbers)
