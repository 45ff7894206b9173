"""Several samples of each prompt: blocks shared and copied on write, against the closed formula.

Lengths are drawn as those of Alpaca's instructions are (arXiv 2309.06180, Fig. 11, prints their
means; how they spread is assumed), so that the share that is saved can stand beside what the
paper's Fig. 15 says of that workload. A run draws pairs again that are longer than its slots allow,
which shortens answers and makes prompts weigh more: many more requests, by the sum, are drawn
without that.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.base import DRAW, Experiment, contiguous, draw_terms, drawn_lengths
from experiment.experiments.cells import Cell
from experiment.experiments.found import Found, detail, judged, listed, untested
from experiment.experiments.paper_shares import (
    beside_slabs,
    beside_the_paper,
    percents,
    saved_shares,
)
from experiment.text.messages import arm_message
from kvsim.paper.sharing import samples_sharing

_NAME = "parallel-sampling"
_FORKS = "transformers_paged"
# Kwon et al., Fig. 15 (a): share of blocks saved with Alpaca's lengths, by samples.
PAPER = {2: 0.0609, 4: 0.0853, 6: 0.0979}
# So many requests that which ones were drawn no longer matters.
MANY = 10_000
# Both are ratios of whole numbers; only the rounding of the division is allowed for.
_EXACT = 1e-9


def _cells(config: Config) -> list[Cell]:
    lengths = drawn_lengths(config)
    return [
        Cell({"samples": n}, {"sampling.n": n, "workload.lengths": lengths})
        for n in config.experiment.values
    ]


def _findings(found: Found) -> list[Finding]:
    lengths = drawn_lengths(found.config)
    said = [_closed_sum(lengths, cell) for cell, _ in saved_shares(found)]
    sizes = {int(cell.values["samples"]): cell.block_size for cell, _ in saved_shares(found)}
    many = percents(closed_sums(found.config, sizes).values())
    told = {"requests": len(lengths), "formula": percents(said), "drawn": MANY, "many": many}
    drawn = detail(_NAME, "paper_drawn", **told)
    return [
        _formula(found),
        beside_the_paper(found, _NAME, "samples", PAPER, drawn),
        *beside_slabs(found, _NAME, "samples"),
        *_forked(found),
    ]


def _formula(found: Found) -> Finding:
    """Whether what was saved is the closed sum over the lengths, block for block."""
    lengths = drawn_lengths(found.config)
    saved = saved_shares(found)
    if not saved:
        return untested("formula")
    said = [_closed_sum(lengths, cell) for cell, _ in saved]
    shares = [share for _, share in saved]
    off = max(abs(one - other) for one, other in zip(said, shares, strict=True))
    told = {"shares": percents(shares), "formula": percents(said), "samples": _samples(saved)}
    why = None if off < _EXACT else detail(_NAME, "formula_why")
    return judged(_NAME, "formula", off < _EXACT, why, off=off, **told)


def _forked(found: Found) -> list[Finding]:
    """What Transformers' own forks save and copy beside ours; nothing where they did not run."""
    seen = [
        (cell, float(saved), share)
        for cell, share in saved_shares(found)
        if (saved := found.value(cell, _FORKS, "saved")) is not None
    ]
    if not seen:
        return []
    told: dict[str, object] = {
        "arm": arm_message(_FORKS).model_dump(),
        "settings": listed(cell.values["samples"] for cell, _, _ in seen),
        "shares": percents(saved for _, saved, _ in seen),
        "own": percents(share for _, _, share in seen),
    }
    for name, arm in (("copied", _FORKS), ("own_copied", "paged")):
        told[name] = sum(int(found.value(cell, arm, "copied_slots") or 0) for cell, _, _ in seen)
    why = detail(_NAME, "forked_why")
    return [Finding(id=_FORKS, verdict=None, text=detail(_NAME, "forked", **told), more=why)]


def _closed_sum(lengths: list[list[int]], cell: CellResult) -> float:
    return _share(lengths, int(cell.values["samples"]), cell.block_size)


def closed_sums(config: Config, sizes: Mapping[int, int]) -> dict[int, float]:
    """What many such requests of any length save, by samples: a run is held against it.

    ``sizes`` are the block sizes, by samples.
    """
    lengths = drawn_lengths(config, MANY, cut=False)
    return {samples: _share(lengths, samples, size) for samples, size in sizes.items()}


def _share(lengths: list[list[int]], samples: int, block_size: int) -> float:
    pairs = [(prompt, new) for prompt, new in lengths]
    return samples_sharing(pairs, samples, block_size).share or 0.0


def _samples(saved: list[tuple[CellResult, float]]) -> object:
    return listed(cell.values["samples"] for cell, _ in saved)


PARALLEL_SAMPLING = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "budget_bytes", "usable_slots", "block_slots", "saved", "unshared_slots", "held_slots",
        "shared_slots", "copied_slots", "waste", "tokens_per_s",
    ),
    charts=("saved", "copied_slots"),
    findings=_findings,
    options=DRAW,
    within=True,
    terms=draw_terms,
    without={**contiguous("whole_copies"), "vllm": "samples_apart"},
)  # fmt: skip
