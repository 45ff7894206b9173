"""Products of few rows from the panels of packed weights: the plain product, whatever the rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling
from sweeps import full

from experiment.engine.attention import kernels
from experiment.engine.attention.kernels import few_rows_module
from experiment.engine.cpu.packed_layers import PackedLinear
from experiment.engine.cpu.packed_weights import pack_weights
from experiment.engine.cpu.panels import pack, panels_of


def module() -> Any:
    """Importing it compiles its loops."""
    return few_rows_module()


@pytest.fixture(autouse=True)
def _needs_it() -> None:
    if module() is None:
        pytest.skip("needs AVX2 and Numba")


def product_of(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    packed = pack(weight)
    panels = panels_of(packed, weight)
    assert panels is not None
    if torch.__version__ < "2.8" and panels.shape[-1] != module().WIDTH:
        pytest.skip("oneDNN packs narrower panels here, whose products are its own")
    assert panels.shape[-1] == module().WIDTH
    return module().PanelProduct(packed, panels, bias, len(weight))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@full
def test_a_processor_with_narrower_vectors_computes_the_same(tmp_path: Path) -> None:
    """In an interpreter and a cache of its own: what is compiled there is for another processor."""
    if module().LANES == 8:
        pytest.skip("what the others test here already")
    script = Path(__file__).with_name("narrow_vectors.py")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, encoding="utf-8",
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "as exact\n"), ended.stderr


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 64), (48, 129), (400, 5), (768, 200)])
@torch.inference_mode()
def test_every_number_of_rows_gives_the_plain_product(
    inputs: int, outputs: int, biased: bool
) -> None:
    weight, x = numbers(outputs, inputs), numbers(module().MAX_ROWS, inputs)
    bias = numbers(outputs) if biased else None
    product = product_of(weight, bias)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double()).float()
    for rows in range(1, module().MAX_ROWS + 1):
        ours = product(x[:rows])
        torch.testing.assert_close(ours, exact[:rows], atol=2e-6 * inputs**0.5, rtol=1e-5)


@torch.inference_mode()
def test_not_a_number_stays_one() -> None:
    x = numbers(4, 16)
    x[2, 3] = torch.nan
    ours = product_of(numbers(70, 16), numbers(70))(x)
    assert ours[2].isnan().all()
    assert not ours[[0, 1, 3]].isnan().any()


@torch.inference_mode()
def test_a_row_is_the_same_to_the_last_bit_whatever_runs_beside_it() -> None:
    product, x = product_of(numbers(300, 400), numbers(300)), numbers(module().MAX_ROWS, 400)
    together = product(x)
    threads = torch.get_num_threads()
    for row in range(module().MAX_ROWS):
        assert torch.equal(product(x[row : row + 1])[0], together[row])
    try:
        torch.set_num_threads(3 - min(threads, 2))
        assert torch.equal(product(x), together)
    finally:
        torch.set_num_threads(threads)


def test_rows_that_are_not_contiguous_are_refused_and_the_layer_makes_them_so() -> None:
    weight, x = numbers(64, 16), numbers(6, 32)[:, ::2]
    product = product_of(weight, None)
    with pytest.raises(ValueError, match="contiguous"):
        product(x)
    with pytest.raises(ValueError, match="float64"):
        product(numbers(6, 16).double())
    layer = PackedLinear(pack(weight), None, 64, 16, product)
    torch.testing.assert_close(layer(x), F.linear(x, weight), atol=1e-5, rtol=1e-5)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 64)).requires_grad_(False)


@pytest.mark.parametrize("fault", ["no Numba", "no vectors", "raises", "wrong"])
def test_without_it_layers_are_onednns(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "no Numba":
        monkeypatch.setattr(
            kernels, "cpu_kernel_module", _raiser(ImportError("no module named numba"))
        )
    elif fault == "raises":
        broken = _raiser(RuntimeError("a compiled loop failed"))
        monkeypatch.setattr(module().PanelProduct, "__call__", broken)
    elif fault == "no vectors":
        monkeypatch.setattr(module().binding, "get_host_cpu_features", dict)
    else:
        monkeypatch.setattr(module().PanelProduct, "__call__", lambda *_: torch.zeros(3, 97))
    made = model()
    x = numbers(3, 16)
    expected = made(x)
    done = pack_weights(made)
    assert (done.layers, done.few_rows, done.reason) == (1, 0, None)
    torch.testing.assert_close(made(x), expected, atol=1e-5, rtol=1e-5)


def _raiser(error: Exception) -> Any:
    def raises(*_: Any) -> None:
        raise error

    return raises
