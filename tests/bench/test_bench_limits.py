"""What a machine does at best, and what a token takes of it by the model's shape."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import torch

from experiment.bench.shares import fastest
from experiment.children.limits import (
    _read_bytes,
    matrix_rate,
    model_size,
    read_rate,
)
from experiment.events import MachineLimits
from experiment.model.builtin import build_model

CPU = torch.device("cpu")


def test_rates_are_of_the_bytes_and_operations_that_were_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "experiment.children.limits._best_s", lambda work, device: work() is None or 2
    )
    assert read_rate(CPU, torch.float32, 1 << 20) == (1 << 20) / 2
    assert matrix_rate(CPU, torch.float32, 64) == 2 * 64**3 / 2


@pytest.mark.parametrize(("free", "read"), [(3 << 30, 768 << 20), (70 << 30, 4 << 30)])
def test_a_small_gpu_is_read_by_a_quarter_of_what_is_free(
    free: int, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free, 80 << 30))
    assert _read_bytes(torch.device("cuda")) == read
    assert _read_bytes(CPU) == 256 << 20


@pytest.mark.parametrize(("plain", "packed", "best"), [(2, 4, 2), (8, 4, 4)])
def test_the_best_of_several_tries_and_of_both_libraries_counts(
    plain: int, packed: int, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [tries for way in (plain, packed) for tries in (5, way, 9, way + 1, 7, 6, 8)]
    now = chain.from_iterable((10 * i, 10 * i + took) for i, took in enumerate(times))
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    monkeypatch.setattr("experiment.children.limits._packed_product", lambda a: lambda: a)
    assert matrix_rate(CPU, torch.float32, 8) == 2 * 8**3 / best


def test_of_several_measurements_the_larger_rate_counts() -> None:
    def measured(read: float, rate: float) -> MachineLimits:
        return MachineLimits(
            threads=2, read_bytes_per_s=read, flops_per_s=rate, matrix_parameters=1,
            output_parameters=1, attention_width=1,
        )  # fmt: skip

    found = fastest([measured(3.0, 40.0), measured(5.0, 20.0)])
    assert found is not None
    assert (found.read_bytes_per_s, found.flops_per_s) == (5.0, 40.0)
    assert fastest([]) is None


@pytest.mark.parametrize("recipe", ["tiny-gpt2", "tiny-llama"])
def test_weights_that_a_token_is_multiplied_with(recipe: str, model_cache: Path) -> None:
    matrix, output, attention, sampled = model_size(str(build_model(recipe, 0, 0.08))).values()
    assert output == 50257 * 64
    assert attention == 2 * 4 * 16
    # GPT-2: 12 width² a layer. Llama: q and o whole, k and v half, three of 64 times 128.
    of_a_layer = 12 * 64**2 if recipe == "tiny-gpt2" else 3 * 64**2 + 3 * 64 * 128
    assert matrix == 2 * of_a_layer
    # Only keys and values of the last layer are needed of a token that gives none.
    keys_and_values = 2 * 64**2 if recipe == "tiny-gpt2" else 2 * 64 * 32
    assert sampled == of_a_layer - keys_and_values
