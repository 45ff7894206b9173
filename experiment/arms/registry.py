"""All arms by their names in ``--arms``."""

from __future__ import annotations

from collections.abc import Callable

from experiment.arms.base import ArmRun
from experiment.arms.contiguous import run_batch, run_growing, run_sequential
from experiment.arms.paged import run_paged, run_slabs
from experiment.arms.transformers_paged import run_transformers_paged

ARMS: dict[str, Callable[[ArmRun], None]] = {
    "contiguous.sequential": run_sequential,
    "contiguous.batch": run_batch,
    "contiguous.compiled": run_batch,
    "contiguous.growing": run_growing,
    "slabs": run_slabs,
    "paged": run_paged,
    "transformers_paged": run_transformers_paged,
}
