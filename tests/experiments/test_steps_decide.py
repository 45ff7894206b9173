"""What is said where repeats are too few for times: counts decide, or it is called chance."""

from __future__ import annotations

import pytest
from made_up import Figures, begun_busy, below, budget, cell, findings

from experiment.text import Translator

FEW = ([100], [100, 101])


def ran(mean: float, steps: int, rates: list[float]) -> Figures:
    return {**budget(mean, rates), "steps": steps, "waste": 0.1}


@pytest.mark.parametrize("name", ["capacity", "lengths"])
@pytest.mark.parametrize(
    ("rates", "steps", "verdict"),
    [
        *((few, 120, "not_shown") for few in FEW),
        *((few, 90, "shown") for few in FEW),
        # Where times decide, more steps are no matter: they did not take longer.
        ([100, 101, 102], 120, "shown"),
    ],
)
def test_where_times_decide_nothing_steps_do(
    name: str, rates: list[float], steps: int, verdict: str
) -> None:
    """More at a time by preempting again and again is no gain, however few repeats there are."""
    axis = {"requests": 24} if name == "capacity" else {"shape": "short"}
    one = cell(0, {**axis}, slabs=ran(4.0, 100, rates), paged=ran(8.0, steps, rates))
    seen = findings(name, one)["at_once" if name == "capacity" else "short"]
    assert seen.verdict == verdict
    told = below(seen).get("speed.steps")
    assert told == (None if len(rates) > 2 else {"blocks": steps, "slabs": 100})


def test_on_a_busy_machine_steps_decide_too() -> None:
    rates = [100.0, 101, 102]
    arms = {"slabs": ran(4.0, 100, rates), "paged": ran(8.0, 120, rates)}
    seen = findings("capacity", begun_busy(cell(0, {"requests": 24}, **arms), "paged"))["at_once"]
    assert seen.verdict == "not_shown"
    assert "speed.steps" in below(seen)


def test_who_is_later_in_steps_is_not_called_slower() -> None:
    """A claim has this sentence alone, without what decided it below."""
    one = cell(0, {"requests": 24}, slabs=ran(4.0, 100, [100]), paged=ran(8.0, 120, [100]))
    text = findings("capacity", one)["at_once"].text
    for lang, said, wrong in (("en", "or later.", "slower"), ("zh", "或更晚完成。", "慢")):
        told = Translator(lang).message(text)
        assert told.endswith(said)
        assert wrong not in told


@pytest.mark.parametrize("asked", [2, 5])
@pytest.mark.parametrize(("repeats", "told"), [(1, "one"), (2, "few"), (3, None)])
def test_a_limit_that_was_seen_a_few_times_may_be_chance(
    repeats: int, told: str | None, asked: int
) -> None:
    """More repeats are advised where few were run, and not where some of enough tell nothing."""
    figures: Figures = {"kept_up": [0.5] * repeats, "later_tokens": [2.0] * repeats}
    made = cell(0, {"rate": 4, "clock": "wall"}, slabs=figures)
    arms = [arm.model_copy(update={"repeats": max(asked, repeats)}) for arm in made.arms]
    seen = findings("serving", made.model_copy(update={"arms": arms}))
    wanted = {f"repeats_{told}"} | ({"repeats_advice"} if asked < 3 else set()) if told else set()
    for name in ("first", "limit_slabs"):
        assert {key for key in below(seen[name]) if key.startswith("repeats_")} == wanted
