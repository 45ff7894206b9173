"""Shares of blocks that sharing saved, beside the PagedAttention paper's Fig. 15 and slabs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.experiments.alike import nothing_gained, place
from experiment.experiments.found import Found, detail, fact, judged, listed, untested
from experiment.text.messages import Message, message


def saved_shares(found: Found) -> list[tuple[CellResult, float]]:
    """Each cell whose saved share is known, with it."""
    known = ((cell, found.value(cell, "paged", "saved")) for cell in found.cells)
    return [(cell, float(saved)) for cell, saved in known if saved is not None]


def beside_the_paper(
    found: Found, name: str, axis: str, paper: Mapping[int, float], *more: Message
) -> Finding:
    """What every cell saved, beside what the paper prints for the same setting.

    The paper's requests and model are others, so that it is no prediction and gives no verdict.
    """
    seen = [
        (int(cell.values[axis]), share)
        for cell, share in saved_shares(found)
        if cell.values[axis] in paper
    ]
    if not seen:
        other = message("experiments.untested_paper", settings=listed(paper))
        return untested("paper", other if saved_shares(found) else None)
    told = {
        "settings": listed(at for at, _ in seen),
        "shares": percents(share for _, share in seen),
        "paper": percents(paper[at] for at, _ in seen),
    }
    return fact(name, "paper", "seen", *more, **told)


def beside_slabs(found: Found, name: str, axis: str) -> list[Finding]:
    """What slabs save where their requests share as blocks do; nothing where none ran.

    Of a slab all of it is shared or, from the first write on, nothing, and it is copied whole.
    Where blocks let no more run all the same, sharing bought nothing.
    """
    seen = [
        (cell, float(slabs), share)
        for cell, share in saved_shares(found)
        if (slabs := found.value(cell, "slabs", "saved")) is not None
    ]
    if not seen:
        return []
    told = {
        "settings": listed(cell.values[axis] for cell, _, _ in seen),
        "slabs": percents(slabs for _, slabs, _ in seen),
        "shares": percents(share for _, _, share in seen),
        "max_length": seen[-1][0].max_length,
    }
    copied = {
        f"{arm}_copied": sum(
            int(found.value(cell, arm, "copied_slots") or 0) for cell, _, _ in seen
        )
        for arm in ("slabs", "paged")
    }
    less = all(slabs < share for _, slabs, share in seen)
    places = [(cell, place(axis, n=cell.values[axis])) for cell, _, _ in seen]
    nothing = nothing_gained(found, places, "tokens_per_s")
    copies = detail(name, "slabs_copied", **copied)
    outputs = _outputs([cell for cell, _, _ in seen])
    return [judged(name, "slabs", less, copies, nothing, outputs, **told)]


def _outputs(cells: list[CellResult]) -> Message | None:
    """Whether slabs and blocks generated the same; None: nobody knows."""
    pairs: list[tuple[str, str]] = []
    for cell in cells:
        slabs, paged = cell.arm("slabs"), cell.arm("paged")
        if slabs is None or paged is None or not slabs.outputs:
            return None
        if len(slabs.outputs) != len(paged.outputs):
            return None
        pairs += zip(slabs.outputs, paged.outputs, strict=True)
    equal = sum(one == other for one, other in pairs)
    key = "all" if equal == len(pairs) else "some"
    return message(f"experiments.shared_outputs.{key}", equal=equal, outputs=len(pairs))


def percents(shares: Iterable[float]) -> object:
    """Shares, for a text."""
    return listed(f"{share * 100:.2f} %" for share in shares)
