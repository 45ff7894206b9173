"""Two classes of requests under load: waiting times with FCFS and priority scheduling.

Requests arrive ``options.every`` steps of the virtual clock apart; every
``options.urgent_every``-th is urgent. Only the scheduling order differs. Slabs use the same
scheduler as blocks; vLLM gets the same policy and priorities, and uses its own scheduler.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import CellResult, Compared, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, contiguous, in_turn
from experiment.experiments.cells import Cell
from experiment.experiments.classes import PATIENT, URGENT
from experiment.experiments.findings import (
    factors,
    judged,
    note,
    ratios,
    same,
    same_outputs,
    timed,
    untested,
    versus,
    why,
)
from experiment.experiments.found import Found
from experiment.experiments.labels import same_in
from experiment.text.errors import shown, user_error
from experiment.text.messages import Message

_NAME = "priority"
_POLICIES = ("fcfs", "priority")


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    count = options["requests"]
    lengths = in_turn(options["lengths"], count)
    urgent_every = _urgent_every(options["urgent_every"], count)
    overrides = {
        "workload.lengths": lengths,
        "workload.arrivals": [index * options["every"] for index in range(count)],
        "workload.clock": "steps",
        "workload.priorities": [
            PATIENT if (index + 1) % urgent_every else URGENT for index in range(count)
        ],
    }
    policies = config.experiment.values
    return [Cell({"policy": each}, overrides | {"engine.policy": each}) for each in policies]


def _urgent_every(value: Any, requests: int) -> int:
    """Validate the option: both classes must have requests.

    Raises:
        UserError: not an integer, or a class would be empty.
    """
    if isinstance(value, int) and 2 <= value <= requests:
        return value
    raise user_error("error.experiment_urgent", value=shown(value), requests=requests)


def _findings(found: Found) -> list[Finding]:
    cells = _by_policy(found, "paged")
    others = [finding for arm in ("slabs", "vllm") for finding in _other(found, arm)]
    if len(cells) < 2:
        both = set(_POLICIES) <= set(found.config.experiment.values)
        wanted = ", ".join(_POLICIES)
        reason = None if both else why("needs", option="experiment.values", values=wanted)
        names = ("urgent", "patient", "seconds", "outputs")
        return [untested(name, reason) for name in names] + others
    fcfs, priority = ((cell, "paged", "urgent_first_s") for cell in cells)
    one, other = (cell.arm("paged") for cell in cells)
    return [
        _in_steps(found, "urgent", "paged", "urgent", notes=[_groups(found, cells[0])]),
        _in_steps(found, "patient", "paged", "patient"),
        timed(found, "seconds", fcfs, priority),
        same("outputs", same_outputs([(other, one)])),
        *others,
    ]


def _by_policy(found: Found, arm: str) -> list[CellResult]:
    """The cell of each policy in which an arm succeeded."""
    cells = {cell.values["policy"]: cell for cell in found.with_arms(arm)}
    return [cells[policy] for policy in _POLICIES if policy in cells]


def _other(found: Found, arm: str) -> list[Finding]:
    """Effect of the same priorities in another arm; empty if it did not run.

    For slabs, with the time in blocks for comparison.
    """
    patient = _steps(found, arm, "patient")
    if patient is None or _steps(found, arm, "urgent") is None:
        return []
    over = None
    if arm == "slabs":
        seen = ratios(found, _by_policy(found, arm), "urgent_first_s", "paged", arm)
        over = factors(seen, "urgent_first_s", "paged", arm, "policy", least=1)
    return [_in_steps(found, arm, arm, "urgent", patient, over, title=same_in(arm))]


def _steps(found: Found, arm: str, which: str) -> Compared | None:
    """Compare steps to a class's first token with FCFS and priority scheduling.

    The longer wait, as expected, comes first: urgent requests' with FCFS, the others' with
    priorities.
    """
    places = [(cell, arm, f"{which}_first_steps") for cell in _by_policy(found, arm)]
    places = places if which == "urgent" else places[::-1]
    return versus(found, places[0], places[1]) if len(places) > 1 else None


def _in_steps(
    found: Found, name: str, arm: str, which: str, *others: Compared | None, **more: Any
) -> Finding:
    """Whether urgent requests wait less with priority scheduling, or the others more."""
    row = _steps(found, arm, which)
    longer, shorter = (each.value or 0 for each in row.sides) if row else (0, 0)
    against = why("small" if longer == shorter else "opposite")
    return judged(name, row, longer > shorter, *others, against=against, **more)


def _groups(found: Found, cell: CellResult) -> Message:
    """Number of requests per class, and the concurrency limit."""
    options: Any = found.config.experiment.options
    urgent = cell.requests // options["urgent_every"]
    params = {"urgent": urgent, "others": cell.requests - urgent, "requests": cell.requests}
    return note(_NAME, "groups", limit=found.config.engine.max_num_seqs, **params)


PRIORITY = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "urgent_first_steps", "patient_first_steps", "urgent_first_s", "patient_first_s", "steps",
        "preemptions", "running_peak",
    ),
    charts=("urgent_first_steps", "patient_first_steps"),
    findings=_findings,
    values="names",
    options=("requests", "every", "urgent_every", "lengths"),
    without={**contiguous("in_order"), "transformers_paged": "in_order"},
)  # fmt: skip
