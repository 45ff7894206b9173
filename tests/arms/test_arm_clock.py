"""The clock of an arm: it stands still while readings are taken, whoever looks at it then."""

from __future__ import annotations

import time

from experiment.arm_clock import Clock


def test_it_stands_still_inside_a_pause_and_goes_on_from_there() -> None:
    clock = Clock()
    before = clock.now()
    with clock.paused():
        stopped = clock.now()
        time.sleep(0.02)
        with clock.paused():
            assert clock.now() == stopped
        assert clock.now() == stopped
    after = clock.now()
    assert before <= stopped <= after
    assert after - stopped < 0.02e9  # the pause itself is not in it


def test_what_is_raised_inside_a_pause_ends_it() -> None:
    clock = Clock()
    try:
        with clock.paused():
            raise KeyError
    except KeyError:
        pass
    first = clock.now()
    time.sleep(0.001)
    assert clock.now() > first
