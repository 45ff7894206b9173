"""What the engine refuses: a clear error, and the pool as it was before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_engine import finish, make_engine, solo

from experiment.engine.checks import InvalidRequestError
from experiment.engine.engine import Engine
from experiment.engine.sampling import InvalidLogitsError, Sampler, SamplingParams, sample_all
from experiment.gpucheck.tiny_models import POSITIONS, VOCABULARY, tiny
from kvsim.core.scheduler import RequestRefusedError

BLOCKS = 12
PROMPT = [1, 2, 3, 4, 5]


def state(engine: Engine) -> tuple[Any, ...]:
    """All that a refusal must leave as it was; the pool is checked on the way."""
    engine.blocks.check_integrity()
    return (
        (engine.blocks.num_free, engine.blocks.num_cached),
        {r: list(engine.blocks.table(r)) for r in engine.blocks.owners},
        (engine.scheduler.running, engine.scheduler.waiting),
        engine.pool.written_slots(),
        engine.pool.poisoned_bytes(),
        engine.scheduler.has_work,
        sorted(engine._generations),
        sorted(engine._reserved_ids),
    )


@pytest.fixture(params=["empty", "busy"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """An engine before any request, and one in the middle of two."""
    engine = make_engine("gpt2", BLOCKS, 4, prefix_caching=True)
    if request.param == "busy":
        engine.add(100, PROMPT, 9, children=(101,))
        engine.add(102, [6, 7], 9)
        engine.step()
        engine.step()
    return engine


@pytest.mark.parametrize(
    ("prompt", "new", "says"),
    [
        ([], 3, "prompt"),
        (PROMPT, 0, "new token"),
        (PROMPT, -1, "new token"),
        ([1, VOCABULARY], 3, f"no such token: {VOCABULARY}"),
        ([-1, 1], 3, "no such token: -1"),
        ([1, 2.0], 3, "no such token: 2.0"),
        ([True], 3, "no such token: True"),
        ([1] * POSITIONS, 2, "maximum length"),
        ([1] * (POSITIONS + 1), 1, "maximum length"),
    ],
)
def test_a_request_that_cannot_be_computed_is_refused(
    engine: Engine, prompt: list[Any], new: int, says: str
) -> None:
    before = state(engine)
    with pytest.raises(InvalidRequestError, match=says):
        engine.add(0, prompt, new)
    assert state(engine) == before


def test_a_request_of_exactly_the_maximum_length_is_accepted() -> None:
    engine = make_engine("gpt2", 200, 4)
    engine.add(0, [1] * POSITIONS, 1)
    engine.step()
    assert len(engine.generated(0)) == 1


@pytest.mark.parametrize(
    ("request_id", "children"), [(0, (0,)), (0, (1, 1)), (100, ()), (101, ()), (0, (102,))]
)
def test_an_id_in_use_or_given_twice_is_refused(request_id: int, children: tuple[int, ...]) -> None:
    engine = make_engine("gpt2", BLOCKS, 4)
    engine.add(100, PROMPT, 9, children=(101,))
    engine.add(102, [6, 7], 9)
    before = state(engine)
    with pytest.raises(InvalidRequestError, match="already"):
        engine.add(request_id, PROMPT, 3, children=children)
    assert state(engine) == before


def test_the_ids_of_samples_that_never_began_are_free_once_their_parent_is_forgotten() -> None:
    engine = make_engine("gpt2", BLOCKS, 4)
    engine.add(0, PROMPT, 3, children=(1,))
    engine.abort(0)
    with pytest.raises(InvalidRequestError, match="already"):
        engine.add(1, PROMPT, 3)
    engine.forget(0)
    engine.add(1, PROMPT, 3)
    finish(engine)
    assert engine.generated(1) == solo("gpt2", PROMPT, 3)


def test_a_pool_that_holds_no_request_refuses_each(engine: Engine) -> None:
    small = make_engine("gpt2", 1, 4)
    with pytest.raises(RequestRefusedError, match="2 blocks"):
        small.add(0, PROMPT, 1)
    assert (small.blocks.num_free, small.pool.written_slots()) == (1, 0)
    before = state(engine)
    with pytest.raises(RequestRefusedError):
        engine.add(0, [1] * (4 * BLOCKS), 2)  # a slot more than there is
    assert state(engine) == before


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_a_pool_of_nothing_is_no_pool(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="pool needs blocks"):
        make_engine("gpt2", *sizes)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(stop_token_ids=frozenset({VOCABULARY})),
        SamplingParams(stop_token_ids=frozenset({-1})),
        SamplingParams(stop_token_ids=frozenset(range(VOCABULARY)), min_new_tokens=1),
    ],
)
def test_stop_tokens_that_make_no_sense_are_refused(
    engine: Engine, sampling: SamplingParams
) -> None:
    before = state(engine)
    with pytest.raises(InvalidRequestError, match="token"):
        engine.add(0, PROMPT, 3, sampling)
    assert state(engine) == before


def all_nan(logits: torch.Tensor) -> None:
    logits[..., 3] = float("nan")


def all_minus_infinity(logits: torch.Tensor) -> None:
    logits[:] = float("-inf")


def infinity(logits: torch.Tensor) -> None:
    logits[..., 7] = float("inf")


@pytest.mark.parametrize("damage", [all_nan, all_minus_infinity, infinity])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_no_numbers_end_the_step_and_nothing_is_lost(
    damage: Callable[[torch.Tensor], None], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine("gpt2", BLOCKS, 4, prefix_caching=True)
    empty = (engine.blocks.num_free, engine.pool.poisoned_bytes())
    engine.add(0, PROMPT, 5, SamplingParams(temperature), children=(1, 2))
    engine.add(3, [8, 9], 5)

    def broken(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        damage(output.logits)
        return output

    forward = tiny("gpt2").forward
    monkeypatch.setattr(tiny("gpt2"), "forward", broken)
    with pytest.raises(InvalidLogitsError):
        engine.step()
    monkeypatch.undo()
    assert engine.generated(0) == engine.generated(3) == []
    engine.blocks.check_integrity()
    engine.shutdown()
    assert (engine.blocks.num_free, engine.pool.poisoned_bytes()) == empty
    assert engine.blocks.num_cached == 0  # what was never written may not be found
    # The engine goes on as if nothing had been.
    for request in (0, 3):
        engine.forget(request)
    engine.add(0, PROMPT, 5)
    finish(engine)
    assert engine.generated(0) == solo("gpt2", PROMPT, 5)


def test_a_choice_without_candidates_is_an_error() -> None:
    logits = torch.full((8,), float("-inf"))
    logits[2] = 1.0
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature, stop_token_ids=frozenset({2}), min_new_tokens=1)
        with pytest.raises(InvalidLogitsError):
            sample_all(logits[None], [Sampler(params)], [0])
        assert sample_all(logits[None], [Sampler(params)], [1]) == [2]


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-3, 1e30])
def test_an_extreme_temperature_still_gives_a_token(temperature: float) -> None:
    logits = torch.tensor([1.0, 5.0, -60000.0, 4.9])
    samplers = [Sampler(SamplingParams(temperature, seed=seed)) for seed in range(60)]
    tokens = set(sample_all(logits.expand(60, -1), samplers, [0] * 60))
    assert tokens == ({0, 1, 2, 3} if temperature > 1 else {1})
