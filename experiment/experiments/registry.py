"""All experiments by name, in the order of the menu."""

from __future__ import annotations

from experiment.experiments.base import Experiment
from experiment.experiments.beam import BEAM
from experiment.experiments.block_size import BLOCK_SIZE
from experiment.experiments.capacity import CAPACITY
from experiment.experiments.concurrency import CONCURRENCY
from experiment.experiments.context import CONTEXT
from experiment.experiments.findings import note
from experiment.experiments.holes import HOLES
from experiment.experiments.labels import figure_label
from experiment.experiments.lengths import LENGTHS
from experiment.experiments.lookup import LOOKUP
from experiment.experiments.parallel_sampling import PARALLEL_SAMPLING
from experiment.experiments.preemption import PREEMPTION
from experiment.experiments.prefix import PREFIX
from experiment.experiments.priority import PRIORITY
from experiment.experiments.quantised import QUANTISED
from experiment.experiments.serving import SERVING
from experiment.text.errors import unknown
from experiment.text.messages import Message

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        CAPACITY,
        CONCURRENCY,
        LENGTHS,
        BLOCK_SIZE,
        PARALLEL_SAMPLING,
        BEAM,
        PREFIX,
        PREEMPTION,
        SERVING,
        QUANTISED,
        CONTEXT,
        HOLES,
        PRIORITY,
        LOOKUP,
    )
}


def figure_name(experiment: str, figure: str) -> Message:
    """Name of a figure in an experiment; the general one if the experiment no longer exists."""
    spec = EXPERIMENTS.get(experiment)
    if spec is not None and figure in spec.renamed:
        return note(experiment, figure)
    return figure_label(figure)


def find_experiment(name: str) -> Experiment:
    """Return an experiment by name.

    Raises:
        UserError: an unknown name.
    """
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
