"""Several samples of each prompt: blocks shared and copied on write, against the closed formula.

Lengths are drawn as those of Alpaca's instructions are (arXiv 2309.06180, Fig. 11: their means), so
that the share that is saved can stand beside what the paper's Fig. 15 says of that workload.
"""

from __future__ import annotations

from experiment.config import Config
from experiment.experiments.base import Cell, Experiment, drawn_lengths
from experiment.experiments.found import Found, judged, untested
from experiment.experiments.paper_shares import like_the_paper, saved_shares
from experiment.experiments.results import CellResult, Finding
from kvsim.paper.sharing import samples_sharing

_NAME = "parallel-sampling"
# Kwon et al., Fig. 15 (a): share of blocks saved with Alpaca's lengths, by samples.
PAPER = {2: 0.0609, 4: 0.0853, 6: 0.0979}
# The paper's shares are of its whole trace; a few requests of such lengths lie so far from it.
_WITHIN = 0.05


def _cells(config: Config) -> list[Cell]:
    lengths = drawn_lengths(config)
    return [
        Cell({"samples": n}, {"sampling.n": n, "workload.lengths": lengths})
        for n in config.experiment.values
    ]


def _findings(found: Found) -> list[Finding]:
    requests = len(drawn_lengths(found.config))
    paper = like_the_paper(found, _NAME, "samples", PAPER, _WITHIN, requests=requests)
    return [_formula(found), paper]


def _formula(found: Found) -> Finding:
    """Whether what was saved is the closed sum over the lengths, block for block."""
    lengths = drawn_lengths(found.config)
    off, most = 0.0, 0.0
    saved = saved_shares(found)
    for cell, share in saved:
        pairs = [(prompt, new) for prompt, new in lengths]
        said = samples_sharing(pairs, int(cell.values["samples"]), cell.block_size).share or 0.0
        off, most = max(off, abs(said - share)), max(most, share)
    if not saved:
        return untested("formula")
    return judged(_NAME, "formula", off < 1e-9, most=most, off=off, samples=_samples(saved))


def _samples(saved: list[tuple[CellResult, float]]) -> str:
    return ", ".join(str(cell.values["samples"]) for cell, _ in saved)


PARALLEL_SAMPLING = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "saved", "held_blocks", "table_entries", "shared_peak", "copied_blocks", "waste",
        "tokens_per_s",
    ),
    charts=("saved", "copied_blocks"),
    findings=_findings,
)  # fmt: skip
