"""Beam search: blocks shared by a model's real beams, compared with the paper's figures.

The model selects the beams, so counts do not follow from lengths alone. Instead, the simulator
replays the selected beams and must plan every step as the engine did, block for block.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import Finding
from experiment.config.schema import Config
from experiment.experiments.base import (
    DRAW,
    Experiment,
    contiguous,
    draw_terms,
    drawn_lengths,
    other_engines,
    varied,
)
from experiment.experiments.findings import counted, judged, untested
from experiment.experiments.found import Found
from experiment.experiments.paper_shares import paper_comparison, slab_comparison
from experiment.text.messages import message

# Kwon et al. (arXiv 2309.06180), Fig. 15 (b): share of blocks saved with Alpaca's lengths.
PAPER = {2: 0.3756, 4: 0.5313, 6: 0.5516}


def _overrides(config: Config, width: int) -> dict[str, Any]:
    return {"sampling.beam_width": width, "workload.lengths": drawn_lengths(config)}


def _findings(found: Found) -> list[Finding]:
    return [
        paper_comparison(found, "beam_width", PAPER),
        _plans(found),
        *slab_comparison(found, "beam_width"),
    ]


def _plans(found: Found) -> Finding:
    """Whether the simulator, given the selected beams, plans the same steps."""
    seen = [arm.plans for cell in found.cells for arm in cell.arms if arm.plans is not None]
    if not seen:
        return untested("plans")
    equal, steps = (sum(numbers) for numbers in zip(*seen, strict=True))
    return judged("plans", counted(message("experiments.beam.plans"), equal, steps), equal == steps)


BEAM = Experiment(
    name="beam",
    cells=varied("beam_width", _overrides),
    figures=(
        "budget_bytes", "usable_slots", "block_slots", "saved", "unshared_slots", "held_slots",
        "shared_slots", "copied_slots", "running_peak", "steps", "tokens_per_s",
    ),
    charts=("saved", "copied_slots"),
    findings=_findings,
    options=DRAW,
    terms=draw_terms,
    renamed=frozenset(("running_peak",)),  # counts beams, not requests
    without={**contiguous("no_blocks"), **other_engines("no_beams")},
)  # fmt: skip
