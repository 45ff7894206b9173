"""Sampling a whole step at once, against Transformers' logits processors and each row alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from experiment.engine.sampling import (
    GREEDY,
    InvalidLogitsError,
    Sampler,
    SamplingParams,
    sample_all,
)

VOCABULARY = 40
POINTS = 5_000
CASES = [
    SamplingParams(temperature, top_k, top_p)
    for temperature in (0.3, 1.0, 2.5)
    for top_k, top_p in ((0, 1.0), (1, 1.0), (7, 1.0), (400, 1.0), (0, 0.5), (0, 0.95), (0, 1e-20),
                         (5, 0.7), (20, 0.9))
]  # fmt: skip


class At(Sampler):
    """Draws the number that it is given."""

    def __init__(self, params: SamplingParams, number: float) -> None:
        super().__init__(params)
        self.number = number

    def uniform(self) -> float:
        return self.number


def probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Transformers' probabilities of each token of [vocabulary].

    Which of equal logits it leaves depends on how torch sorts; here they are the first ones.
    """
    chain: list[Any] = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        chain.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chain.append(TopPLogitsWarper(params.top_p))
    empty = torch.zeros((1, 0), dtype=torch.long)
    found = LogitsProcessorList(chain)(empty, logits[None].double()).softmax(-1)[0]
    order = found.sort(descending=True).indices
    order = order[logits[order].sort(stable=True).indices]
    return torch.empty_like(found).index_put_((logits.sort(stable=True).indices,), found[order])


def draw(seed: int, rows: int, vocabulary: int = VOCABULARY, spread: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn((rows, vocabulary), generator=generator)


@pytest.mark.parametrize("step", [0.0, 0.5], ids=["no ties", "ties"])
def test_every_token_has_the_probability_that_transformers_gives_it(step: float) -> None:
    """At the numbers 1/N, 2/N ... 1 each token comes as often as its probability says.

    All cases stand in one batch, each of its rows with other filters than the one before.
    """
    logits = draw(0, 1)[0]
    if step:
        logits = (logits / step).round() * step
    numbers = [(point + 1) / POINTS for point in range(POINTS)]
    samplers = [At(params, number) for number in numbers for params in CASES]
    rows = logits.expand(len(samplers), -1)
    tokens = torch.tensor(sample_all(rows, samplers, [0] * len(samplers)))
    for place, params in enumerate(CASES):
        counts = tokens[place :: len(CASES)].bincount(minlength=VOCABULARY)
        expected = probabilities(logits, params)
        allowed = expected > 0
        assert not counts[~allowed].any(), params
        assert counts[expected > 2 / POINTS].all(), params
        # Within one of the exact number at both ends of a token's share.
        assert (counts - POINTS * expected).abs().max() <= 1 + 1e-3, params


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from((0.0, 0.2, 1.0, 3.0)),
    top_k=st.sampled_from((0, 1, 5, 300)),
    top_p=st.sampled_from((1.0, 0.9, 0.3)),
    seed=st.integers(0, 2**40),
    stop_token_ids=st.frozensets(st.integers(0, 199), max_size=3),
    min_new_tokens=st.integers(0, 2),
)


@settings(max_examples=60)
@given(
    params=st.lists(PARAMS, min_size=1, max_size=12),
    generated=st.integers(0, 2),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from((torch.float32, torch.float16, torch.bfloat16)),
)
def test_a_row_gets_what_it_gets_alone(
    params: list[SamplingParams], generated: int, seed: int, dtype: torch.dtype
) -> None:
    logits = draw(seed, len(params), 200, spread=2.0).to(dtype)
    before = logits.clone()
    together = [Sampler(each) for each in params]
    alone = [Sampler(each) for each in params]
    for step in range(generated, generated + 2):
        found = sample_all(logits, together, [step] * len(params))
        for row, (sampler, token) in enumerate(zip(alone, found, strict=True)):
            assert sample_all(logits[row : row + 1], [sampler], [step]) == [token]
            if step < sampler.params.min_new_tokens:
                assert token not in sampler.params.stop_token_ids
            elif sampler.params.temperature == 0:
                assert token == int(logits[row].argmax())
    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_no_number_is_an_error_though_it_stands_at_a_stop_token(
    temperature: float, bad: float
) -> None:
    logits = draw(0, 3)
    logits[1, 7] = bad
    params = SamplingParams(temperature, stop_token_ids=frozenset({7}), min_new_tokens=1)
    samplers = [Sampler(params) for _ in range(3)]
    for generated in (0, 1):
        with pytest.raises(InvalidLogitsError):
            sample_all(logits, samplers, [generated] * 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_numbers_the_first_is_taken(dtype: torch.dtype) -> None:
    inf = float("inf")
    rows = [[0.0, 2.0, 2.0, -1.0], [-inf, -3.0, -inf, -3.0], [-1.0, -2.0, -3.0, -0.5]]
    logits = torch.tensor(rows, dtype=dtype)
    assert sample_all(logits, [Sampler(GREEDY)] * 3, [0] * 3) == [1, 1, 3]
