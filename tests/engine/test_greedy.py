"""The likeliest token, whichever library looks for it."""

from __future__ import annotations

import pytest
import torch

from experiment.engine.sampling import GREEDY, Sampler, sample_all


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_numbers_the_first_is_taken(dtype: torch.dtype) -> None:
    inf = float("inf")
    rows = [[0.0, 2.0, 2.0, -1.0], [-inf, -3.0, -inf, -3.0], [-1.0, -2.0, -3.0, -0.5]]
    logits = torch.tensor(rows, dtype=dtype)
    assert sample_all(logits, [Sampler(GREEDY)] * 3, [0] * 3) == [1, 1, 3]


def test_the_likeliest_tokens_are_those_that_torch_finds() -> None:
    logits = torch.randn(40, 1009, generator=torch.Generator().manual_seed(0))
    for part in (logits, logits[::3], logits.T.contiguous().T, logits[:, 5:900]):
        found = sample_all(part, [Sampler(GREEDY)] * len(part), [0] * len(part))
        assert found == part.argmax(-1).tolist()
