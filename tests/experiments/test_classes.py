"""Who is urgent: those with that priority, not whoever is most urgent of those who came."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import tiny_config

from experiment.experiments.base import planned_cells
from experiment.experiments.classes import (
    PATIENT,
    URGENT,
    of_class,
    predicted_steps,
    steps_to_first,
)
from experiment.experiments.registry import EXPERIMENTS
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError

Measure = tuple[float | None, float | None]


def measured(ranks: Sequence[int]) -> Measure:
    """Request n comes at step n and has its first token three steps later."""
    made: Any = SimpleNamespace(
        workload=SimpleNamespace(
            requests=[SimpleNamespace(id=n, priority=rank) for n, rank in enumerate(ranks)]
        ),
        requests=[
            SimpleNamespace(request=n, arrival_step=n, first_token_step=n + 2 + rank)
            for n, rank in enumerate(ranks)
        ],
    )
    urgent, patient = (of_class(which, steps_to_first)(made) for which in (True, False))
    return urgent, patient


def foretold(ranks: Sequence[int]) -> Measure:
    """The same of kvsim, whose steps take a second each."""
    came = array("d", range(len(ranks)))
    first = array("d", [at + 3 + rank for at, rank in zip(came, ranks, strict=True)])
    rows = {"priority": array("d", ranks), "arrival_s": came, "first_token_s": first}
    made: Any = SimpleNamespace(rows=rows)
    urgent, patient = (predicted_steps(which)(made) for which in (True, False))
    return urgent, patient


@pytest.mark.parametrize("seen", [measured, foretold])
def test_a_class_without_anybody_has_no_mean_and_the_other_has_its_own(seen: Any) -> None:
    assert seen([URGENT, PATIENT, PATIENT]) == (3, 4)
    assert seen([PATIENT, PATIENT]) == (None, 4)
    assert seen([URGENT, URGENT]) == (3, None)


@pytest.mark.parametrize(("every", "urgent"), [(2, 4), (3, 2), (8, 1)])
def test_somebody_of_either_class_comes(every: int, urgent: int) -> None:
    for cell in planned_cells(EXPERIMENTS["priority"], asked(every)):
        ranks = cell.overrides["workload.priorities"]
        assert (ranks.count(URGENT), ranks.count(PATIENT)) == (urgent, 8 - urgent)


@pytest.mark.parametrize("every", [9, 100, 2.5, 4.0, 1, 0, -3, True, "4", None, [2]])
def test_what_leaves_a_class_empty_or_is_no_whole_number_is_refused(every: object) -> None:
    with pytest.raises(UserError) as caught:
        planned_cells(EXPERIMENTS["priority"], asked(every))
    text = caught.value.text
    assert (text.key, text.params["requests"]) == ("error.experiment_urgent", 8)
    for lang in LANGUAGES:
        assert str(every) in Translator(lang).message(text)


def asked(every: object) -> Any:
    options = {"requests": 8, "every": 1, "urgent_every": every, "lengths": [[6, 8]]}
    return tiny_config("priority", experiment__options=options)
