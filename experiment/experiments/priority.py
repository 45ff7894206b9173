"""Two classes of requests under load: who waits how long, first come first served and by priority.

Requests come in turn, ``options.every`` steps of the virtual clock apart; each
``options.urgent_every``-th is urgent. Only the order in which they are served differs. Slabs have
the scheduler of blocks; vLLM is told the same policy and priorities, and decides by its own.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.alike import nothing_gained, place
from experiment.experiments.base import Experiment, contiguous, in_turn
from experiment.experiments.cells import Cell
from experiment.experiments.classes import PATIENT, URGENT
from experiment.experiments.found import (
    Found,
    detail,
    judged,
    judged_as,
    seconds_spread,
    timed,
    untested,
)
from experiment.text.errors import shown, user_error
from experiment.text.messages import Message, arm_message

_NAME = "priority"


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    count = options["requests"]
    lengths = in_turn(options["lengths"], count)
    each_so_many = _urgent_every(options["urgent_every"], count)
    overrides = {
        "workload.lengths": lengths,
        "workload.arrivals": [index * options["every"] for index in range(count)],
        "workload.clock": "steps",
        "workload.priorities": [
            PATIENT if (index + 1) % each_so_many else URGENT for index in range(count)
        ],
    }
    policies = config.experiment.values
    return [Cell({"policy": each}, overrides | {"engine.policy": each}) for each in policies]


def _urgent_every(value: Any, requests: int) -> int:
    """The option, with which there is somebody of either class.

    Raises:
        UserError: it is none of these numbers.
    """
    if isinstance(value, int) and 2 <= value <= requests:
        return value
    raise user_error("error.experiment_urgent", value=shown(value), requests=requests)


def _findings(found: Found) -> list[Finding]:
    cells = {cell.values["policy"]: cell for cell in found.with_arms("paged")}
    fcfs, priority = cells.get("fcfs"), cells.get("priority")
    others = [finding for arm in ("slabs", "vllm") for finding in _other(found, arm)]
    if fcfs is None or priority is None:
        both = {"fcfs", "priority"} <= set(found.config.experiment.values)
        why = None if both else detail(_NAME, "one_order")
        return [untested(n, why) for n in ("urgent", "patient", "seconds", "outputs")] + others
    return [
        _in_steps(found, "urgent", fcfs, priority),
        _in_steps(found, "patient", fcfs, priority),
        _seconds(found, fcfs, priority),
        _outputs(fcfs, priority),
        *others,
    ]


def _other(found: Found, arm: str) -> list[Finding]:
    """What the same priorities do in another arm, where it ran; why it did not is said of the arm.

    In slabs they do without paging what they do in blocks; where as many run in as many steps, it
    is said, and what blocks do to the time.
    """
    cells = {str(cell.values["policy"]): cell for cell in found.with_arms(arm)}

    def steps(which: str) -> dict[str, float]:
        seen = {p: found.value(cell, arm, f"{which}_first_steps") for p, cell in cells.items()}
        return {policy: value for policy, value in seen.items() if value is not None}

    urgent, patient = steps("urgent"), steps("patient")
    if min(len(urgent), len(patient)) < 2:
        return []
    shown = urgent["priority"] < urgent["fcfs"]
    more = detail(_NAME, "other_patient", **patient)
    name = arm_message(arm).model_dump()
    places = [(cell, place(policy)) for policy, cell in cells.items()]
    nothing = nothing_gained(found, places, "urgent_first_s", "urgent") if arm == "slabs" else None
    return [judged_as(_NAME, arm, "other", shown, more, nothing, arm=name, **urgent)]


def _in_steps(found: Found, which: str, fcfs: CellResult, priority: CellResult) -> Finding:
    """Steps to the first token of a class: urgent ones gain, the others pay."""
    name = f"{which}_first_steps"
    before, after = (found.value(cell, "paged", name) for cell in (fcfs, priority))
    if before is None or after is None:
        return untested(which)
    shown = after < before if which == "urgent" else after > before
    groups = _groups(found, fcfs)
    return judged(_NAME, which, shown, groups, fcfs=before, priority=after)


def _groups(found: Found, cell: CellResult) -> Message:
    """How many requests either mean is of, and how many may run at a time."""
    options: Any = found.config.experiment.options
    urgent = cell.requests // options["urgent_every"]
    told = {"urgent": urgent, "others": cell.requests - urgent, "requests": cell.requests}
    return detail(_NAME, "groups", limit=found.config.engine.max_num_seqs, **told)


def _seconds(found: Found, fcfs: CellResult, priority: CellResult) -> Finding:
    one = found.figure(fcfs, "paged", "urgent_first_s")
    other = found.figure(priority, "paged", "urgent_first_s")
    if one is None or other is None:
        return untested("seconds")
    faster = found.compared(
        (fcfs, "paged", "urgent_first_s"), (priority, "paged", "urgent_first_s")
    )
    figures = {"fcfs": one.value, "priority": other.value}
    spreads = {"fcfs_spread": seconds_spread(one), "priority_spread": seconds_spread(other)}
    return timed(_NAME, "seconds", faster, {**figures, **spreads})


def _outputs(fcfs: CellResult, priority: CellResult) -> Finding:
    one, other = fcfs.arm("paged"), priority.arm("paged")
    if one is None or other is None or not one.outputs:
        return untested("outputs")
    equal = sum(a == b for a, b in zip(one.outputs, other.outputs, strict=True))
    requests = len(one.outputs)
    why = None if equal == requests else detail(_NAME, "outputs_why")
    return judged(_NAME, "outputs", equal == requests, why, equal=equal, requests=requests)


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
