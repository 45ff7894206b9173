"""Which figures tell that times scatter between repeats."""

from __future__ import annotations

import pytest
from made_up import Figures, cell, found_of

from experiment.experiments.time_notes import NOISY, time_notes


def test_a_share_next_to_nothing_does_not_make_a_machine_noisy() -> None:
    ran: Figures = {"lookup_share": [-0.01, 0.0001, 0.01], "generate_s": [1.0, 1.0, 1.0]}
    found = found_of("lookup", cell(0, {"context": 64}, paged=ran))
    assert not [note for note in time_notes(found.cells, found.config) if "noisy" in note.key]
    scattered: Figures = {**ran, "generate_s": [1.0, 1.0, 1.0 + 2 * NOISY]}
    noisy = found_of("lookup", cell(0, {"context": 64}, paged=scattered))
    told = next(
        note for note in time_notes(noisy.cells, noisy.config) if "noisy" in note.key
    ).params
    assert (told["n"], told["of"]) == (1, 1)


@pytest.mark.parametrize(
    ("name", "repeats", "noisy"),
    [
        ("lookup_of_step", [0.0125, 0.0168, 0.0175], True),  # a verdict rests on it
        ("lookup_of_step", [0.0165, 0.0168, 0.0175], False),
        ("lookup_of_step", [0.0, 0.0001, 0.0003], False),
        ("waste", [0.1, 0.2, 0.3], False),  # counted
    ],
)
def test_a_share_of_times_that_is_more_than_nothing_tells_of_noise(
    name: str, repeats: list[float], noisy: bool
) -> None:
    found = found_of("lookup", cell(0, {"context": 512}, paged={name: repeats}))
    notes = {note.key: note.params for note in time_notes(found.cells, found.config)}
    assert ("experiments.note.noisy" in notes) is noisy
    if noisy:
        worst = notes["experiments.note.noisy"]["worst"]
        assert worst == pytest.approx((max(repeats) - min(repeats)) / repeats[1])
