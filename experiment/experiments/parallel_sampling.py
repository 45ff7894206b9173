"""Several samples of each prompt: shared and copied blocks, compared with the closed formula.

Lengths are sampled like those of the Alpaca workload (arXiv 2309.06180: means of Fig. 11; the
distribution is assumed), so that the saved share can be compared with Fig. 15. A run resamples
pairs longer than its maximum length, which shortens outputs and so raises the weight of prompts;
the closed sum over many requests does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiment.analysis.experiment_results import Compared, Finding
from experiment.config.schema import Config
from experiment.experiments.base import (
    DRAW,
    Experiment,
    contiguous,
    draw_terms,
    drawn_lengths,
    varied,
)
from experiment.experiments.findings import fact, judged, note, series, untested, why
from experiment.experiments.found import Found
from experiment.experiments.labels import same_in
from experiment.experiments.paper_shares import (
    paper_comparison,
    saved_shares,
    shares_row,
    slab_comparison,
)
from kvsim.paper.sharing import samples_sharing

_NAME, _AXIS = "parallel-sampling", "samples"
_FORKS = "transformers_paged"
# Kwon et al., Fig. 15 (a): share of blocks saved with Alpaca's lengths, by samples.
PAPER = {2: 0.0609, 4: 0.0853, 6: 0.0979}
# Number of requests with which the choice of the sample hardly matters.
MANY = 10_000
# Both are ratios of integers, so only division rounds.
_EXACT = 1e-9


def _overrides(config: Config, samples: int) -> dict[str, Any]:
    return {"sampling.n": samples, "workload.lengths": drawn_lengths(config)}


def _findings(found: Found) -> list[Finding]:
    sizes = {int(cell.values[_AXIS]): cell.block_size for cell, _ in saved_shares(found)}
    lengths = drawn_lengths(found.config)
    sums = {samples: _share(lengths, samples, size) for samples, size in sizes.items()}
    here = shares_row(note(_NAME, "sum", n=len(lengths)), _AXIS, sums)
    drawn = closed_sums(found.config, sizes)
    many = shares_row(note(_NAME, "sum", n=MANY), _AXIS, drawn)
    return [
        paper_comparison(found, _AXIS, PAPER, here, many),
        _formula(found, sums, here),
        *slab_comparison(found, _AXIS),
        *_forked(found),
    ]


def _formula(found: Found, sums: Mapping[int, float], here: Compared) -> Finding:
    """Whether the saved share equals the closed sum over the lengths, block for block."""
    saved = saved_shares(found)
    if not saved:
        return untested("formula")
    off = max(abs(sums[int(cell.values[_AXIS])] - share) for cell, share in saved)
    row = series(found, found.cells, "saved", "paged", _AXIS)
    return judged("formula", row, off < _EXACT, here, against=why("sum_off", off=off))


def _forked(found: Found) -> list[Finding]:
    """Compare saved and copied blocks with Transformers' forks; empty if those did not run."""
    cells = [cell for cell, _ in saved_shares(found) if found.figure(cell, _FORKS, "saved")]
    if not cells:
        return []
    rows = [
        series(found, cells, figure, arm, _AXIS)
        for figure in ("saved", "copied_slots")
        for arm in (_FORKS, "paged")
    ]
    return [fact(_FORKS, *rows, notes=[note(_NAME, "forked_why")], title=same_in(_FORKS))]


def closed_sums(config: Config, sizes: Mapping[int, int]) -> dict[int, float]:
    """Saved share (0 to 1) of :data:`MANY` such requests, by number of samples.

    ``sizes``: block size in tokens, by number of samples.
    """
    lengths = drawn_lengths(config, MANY, cut=False)
    return {samples: _share(lengths, samples, size) for samples, size in sizes.items()}


def _share(lengths: list[list[int]], samples: int, block_size: int) -> float:
    pairs = [(prompt, new) for prompt, new in lengths]
    return samples_sharing(pairs, samples, block_size).share or 0.0


PARALLEL_SAMPLING = Experiment(
    name=_NAME,
    cells=varied(_AXIS, _overrides),
    figures=(
        "budget_bytes", "usable_slots", "block_slots", "saved", "unshared_slots", "held_slots",
        "shared_slots", "copied_slots", "waste", "tokens_per_s",
    ),
    charts=("saved", "copied_slots"),
    findings=_findings,
    options=DRAW,
    terms=draw_terms,
    without={**contiguous("no_blocks"), "vllm": "samples_apart"},
)  # fmt: skip
