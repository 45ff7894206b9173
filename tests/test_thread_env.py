"""How threads wait: decided once a run, by what other programs are seen to use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiment.machine import background_load as noise
from experiment.machine.thread_variables import WAITING, has_background_load, thread_variables


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    has_background_load.cache_clear()
    yield
    has_background_load.cache_clear()


def looks(monkeypatch: pytest.MonkeyPatch, *cores: float | None) -> list[float | None]:
    left = list(cores)
    monkeypatch.setattr(noise, "others_cores", lambda: left.pop(0))
    return left


@pytest.mark.parametrize(
    ("seen", "expected", "unused"),
    [
        ((0.0, 1.0, 1.0), False, 2),
        ((1.0, 0.1, 1.0), False, 1),
        ((1.0, 0.5, 0.3), True, 0),
        ((None, None, None), True, 2),
    ],
)
def test_a_busy_moment_is_no_busy_machine(
    monkeypatch: pytest.MonkeyPatch,
    seen: tuple[float | None, ...],
    expected: bool,
    unused: int,
) -> None:
    left = looks(monkeypatch, *seen)
    assert has_background_load() == expected
    assert len(left) == unused


def test_spinning_is_bounded_on_a_busy_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, 2.0, 2.0, 2.0)
    assert WAITING.items() <= thread_variables(2, {}).items()
    has_background_load.cache_clear()
    looks(monkeypatch, 0.0)
    assert not WAITING.keys() & thread_variables(2, {}).keys()


def test_what_the_person_has_set_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch)  # nobody looks
    assert "KMP_BLOCKTIME" not in thread_variables(2, {"OMP_WAIT_POLICY": "active"})


def test_all_arms_of_a_run_wait_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, 2.0, 2.0, 2.0)
    first = thread_variables(2, {})
    looks(monkeypatch)
    assert thread_variables(2, {}) == first
