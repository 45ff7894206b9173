"""Kernels against the dense definition, and the definition against arithmetic by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import FULL

from experiment.engine.attention import kernels
from experiment.engine.attention.kernel_choice import choose_kernel
from experiment.engine.attention.kernels import KERNELS, Kernel, reference_kernel
from experiment.engine.cpu import torch_threads
from experiment.engine.cuda import triton_support
from experiment.engine.cuda.triton_support import reason_against
from experiment.engine.step_inputs import StepInputs
from experiment.files import code_cache as compiled_cache
from experiment.gpucheck.kernel_cases import CASES, Case, make_step

CPU = torch.device("cpu")


def numba_alone(
    q: torch.Tensor, kv: torch.Tensor, inputs: StepInputs, scale: float
) -> torch.Tensor:
    """Everything in place: the choice of ``numba_kernel`` leaves large chunks to torch."""
    out = q.new_empty(q.shape)
    chosen = torch.arange(len(inputs.sequences), dtype=torch.int32)
    kernels.cpu_kernel_module().attend(q, kv, out, inputs.flat, chosen, scale)
    return out


# Triton's is tested in test_triton.py: here there is no GPU for it.
HERE = {name: kernel for name, kernel in KERNELS.items() if name != "triton"}
ALL = {**HERE, "numba alone": numba_alone}
OTHERS = {name: kernel for name, kernel in ALL.items() if name != "reference"}
TOLERANCE = 1e-5


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("kernel", OTHERS.values(), ids=OTHERS)
def test_a_kernel_gives_the_reference(kernel: Kernel, case: Case) -> None:
    step = make_step(case)
    ours = kernel(step.q, step.kv, step.inputs, step.scale)
    expected = reference_kernel(step.q, step.kv, step.inputs, step.scale)
    assert not expected.isnan().any()
    torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("block_size", [1, 7, 16, 512] if FULL else [7, 16])
@pytest.mark.parametrize("dim", [8, 16, 32, 64, 80, 96, 128])
@pytest.mark.parametrize("group", range(1, 9) if FULL else (1, 4, 7))
def test_every_shape_of_heads_gives_the_reference(group: int, dim: int, block_size: int) -> None:
    sequences = ((140, 1), (0, 1), (15, 2), (0, 18), (7, 1))
    step = make_step(Case(sequences, block_size, 3 * group, 3, dim), seed=group)
    expected = reference_kernel(step.q, step.kv, step.inputs, step.scale)
    for kernel in OTHERS.values():
        ours = kernel(step.q, step.kv, step.inputs, step.scale)
        torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("dim", [64, 72])
def test_no_bit_depends_on_how_slots_are_divided_into_blocks(dim: int) -> None:
    sequences = ((37, 1), (200, 1), (15, 1))
    slabs, blocks = (make_step(Case(sequences, size, 4, 2, dim)) for size in (512, 3))
    for slab, table in zip(slabs.inputs.sequences, blocks.inputs.sequences, strict=True):
        for at in range(slab.context):
            blocks.kv[:, table.table[at // 3], :, at % 3] = slabs.kv[:, slab.table[0], :, at]
    blocks.q.copy_(slabs.q)
    first, second = (numba_alone(one.q, one.kv, one.inputs, one.scale) for one in (slabs, blocks))
    assert torch.equal(first, second)


@pytest.mark.parametrize("size", [1e-4, 30.0, 1000.0])
def test_extreme_scores_give_the_reference(size: float) -> None:
    """Weights from all equal to one alone; exp must neither overflow nor lose the largest."""
    step = make_step(Case(((300, 1), (130, 3), (0, 20)), 16, dim=64))
    step.q *= size
    expected = reference_kernel(step.q, step.kv, step.inputs, step.scale)
    for kernel in OTHERS.values():
        ours = kernel(step.q, step.kv, step.inputs, step.scale)
        # Rounding of a score grows with the score, and the weights with it.
        torch.testing.assert_close(ours, expected, atol=TOLERANCE * max(1.0, size), rtol=0)


@pytest.mark.parametrize("heads", [(12, 12), (4, 1), (6, 2)])
@pytest.mark.parametrize("block_size", [16, 512])
@pytest.mark.parametrize("on_torch", [True, False])
def test_threads_change_nothing(
    on_torch: bool, block_size: int, heads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_torch:
        monkeypatch.setattr(torch_threads, "parallel_region", lambda: None)
    step = make_step(Case(((400, 1), (9, 1), (90, 3)), block_size, *heads, dim=64))
    alone = numba_alone(step.q, step.kv, step.inputs, step.scale)
    monkeypatch.setattr("experiment.engine.cpu.compiled._WORTH_A_THREAD", 0)
    for threads in (2, 3, 40):
        monkeypatch.setattr(
            "experiment.engine.cpu.compiled._threads", lambda threads=threads: threads
        )
        for _ in range(5):
            assert torch.equal(numba_alone(step.q, step.kv, step.inputs, step.scale), alone)


@settings(max_examples=60)
@given(
    sequences=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=5
    ).map(tuple),
    block_size=st.integers(1, 9),
    groups=st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    seed=st.integers(0, 1000),
)
def test_a_kernel_gives_the_reference_for_random_steps(
    sequences: tuple[tuple[int, int], ...], block_size: int, groups: tuple[int, int], seed: int
) -> None:
    step = make_step(Case(sequences, block_size, *groups), seed)
    expected = reference_kernel(step.q, step.kv, step.inputs, step.scale)
    for kernel in OTHERS.values():
        ours = kernel(step.q, step.kv, step.inputs, step.scale)
        torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


def test_the_reference_is_softmax_of_scaled_products_over_what_came_before() -> None:
    """One head, three positions in two blocks; the tensors are laid out by hand."""
    step = make_step(Case(((1, 2),), 2, heads=1, kv_heads=1))
    first, second = step.tables[0]
    keys = torch.stack([step.kv[0, first, 0, 0], step.kv[0, first, 0, 1], step.kv[0, second, 0, 0]])
    values = torch.stack(
        [step.kv[1, first, 0, 0], step.kv[1, first, 0, 1], step.kv[1, second, 0, 0]]
    )
    out = reference_kernel(step.q, step.kv, step.inputs, 0.5)
    for row, seen in ((0, 2), (1, 3)):
        weights = torch.softmax(0.5 * keys[:seen] @ step.q[row, 0], 0)
        torch.testing.assert_close(out[row, 0], weights @ values[:seen], atol=1e-6, rtol=0)


def test_queries_are_read_where_they_stand() -> None:
    """Beside keys and values, as a model's one product leaves them; or heads outside tokens."""
    step = make_step(Case(((400, 1), (9, 1), (20, 3)), 16, 4, 2, dim=64))
    expected = reference_kernel(step.q, step.kv, step.inputs, step.scale)
    tokens, heads, dim = step.q.shape
    wide = torch.full((tokens, 3, heads, dim), torch.nan)
    wide[:, 1] = step.q
    for q in (wide[:, 1], step.q.transpose(0, 1).contiguous().transpose(0, 1)):
        for kernel in OTHERS.values():
            ours = kernel(q, step.kv, step.inputs, step.scale)
            assert ours.is_contiguous()
            torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=0)


def test_half_precision_goes_to_torch() -> None:
    step = make_step(Case(((5, 3), (20, 1)), 4))
    q, kv = step.q.bfloat16(), step.kv.bfloat16()
    ours = KERNELS["numba"](q, kv, step.inputs, step.scale)
    assert torch.equal(ours, KERNELS["torch"](q, kv, step.inputs, step.scale))


def test_auto_is_numba_in_float32_on_the_cpu_and_torch_elsewhere() -> None:
    assert choose_kernel("auto", CPU, torch.float32) == ("numba", None)
    assert choose_kernel("auto", CPU, torch.bfloat16) == ("torch", None)
    assert choose_kernel("auto", torch.device("cuda"), torch.float32)[0] == "torch"
    assert choose_kernel("reference", CPU, torch.float32) == ("reference", None)


def test_compiled_code_is_kept_apart_for_each_state_of_the_sources(tmp_path: Path) -> None:
    """A loop has what it calls inside, and Numba looks at its own file alone."""
    states = []
    for number, (name, text) in enumerate(
        [("a", "x = 1"), ("a", "x = 1"), ("a", "x = 2"), ("b", "x = 1"), ("a", "x = 1\n")]
    ):
        sources = tmp_path / str(number)
        sources.mkdir()
        (sources / f"{name}.py").write_text(text, encoding="utf-8")
        states.append(compiled_cache.state_of(sources))
    assert states[0] == states[1]
    assert len(set(states)) == 4
    assert compiled_cache.numba_cache().parent.name == "numba"


def test_where_no_compiled_code_can_be_kept_it_is_compiled_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])  # nowhere may be written

    def nothing(address: object) -> None: ...

    def added(one: int, two: int) -> int:
        return one + two

    cpu_kernel = kernels.cpu_kernel_module()
    assert cpu_kernel.job_body(nothing).address
    assert cpu_kernel.jit("int64(int64, int64)", set())(added)(1, 2) == 3


def test_a_triton_that_cannot_be_imported_is_a_reason_not_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_support.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "experiment.engine.cuda.triton_tile", None)
    kernel, reason = choose_kernel("auto", torch.device("cuda"), torch.float16)
    assert reason is not None
    assert (kernel, reason.key) == ("torch", "kernel.triton_fails")


def test_a_shape_that_asks_for_too_much_is_refused_before_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU, and kernels that agree there for another shape, are made up."""
    pytest.importorskip("triton")

    def launch(device: torch.device, shape: triton_support.LayerShape) -> None:
        if shape.head_dim > 256:
            raise RuntimeError("out of resource: shared memory")

    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(triton_support, "_agree", lambda device: True)
    monkeypatch.setattr(triton_support, "_launch", launch)
    triton_support._trial.cache_clear()
    try:
        for dim, kernel in ((64, "triton"), (1024, "torch")):
            shape = triton_support.LayerShape(8, 2, dim, 16, torch.float32, torch.int8)
            assert choose_kernel("auto", gpu, torch.float32, shape)[0] == kernel
        assert reason_against(gpu) is None
        refused = reason_against(gpu, shape)
        assert refused is not None
        assert "shared memory" in refused.params["detail"]
    finally:
        triton_support._trial.cache_clear()
