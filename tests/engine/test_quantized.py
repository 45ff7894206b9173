"""Eight bits: the arithmetic, what a pool of it holds, and what kernels make of it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import CASES

from experiment.config.kv_dtype import cache_geometry
from experiment.engine.attention.kernels import KERNELS, Kernel
from experiment.engine.kv_pool import KVPool, PoisonError, scatter
from experiment.engine.quantized import (
    FP8,
    KV_DTYPES,
    POISON,
    QuantizedKV,
    bits,
    from_blocks,
    quantize,
    scale_of,
    to_blocks,
    to_fp8,
    write,
)
from experiment.gpucheck.kernel_cases import Case, make_step
from experiment.memory.tensors import storage_bytes
from kvsim.sizing.geometry import KVGeometry

CPU = torch.device("cpu")
SHAPE = KVGeometry(layers=2, kv_heads=3, head_dim=8, element_bytes=4)
SMALL = sorted(KV_DTYPES)
READERS = {name: kernel for name, kernel in KERNELS.items() if name != "triton"}


def empty(blocks: int, heads: int, block_size: int, dim: int) -> QuantizedKV:
    values = torch.full((2, blocks, heads, block_size, dim), POISON, dtype=torch.int8)
    return QuantizedKV(values, torch.full((2, blocks, heads), math.nan))


def put(kv: QuantizedKV, rows: torch.Tensor, slots: list[int]) -> None:
    """Write ``rows`` [2, tokens, heads, dim] to slots counted through the whole layer."""
    size = kv.shape[3]
    blocks = torch.tensor([slot // size for slot in slots])
    offsets = torch.tensor([slot % size for slot in slots])
    inputs: Any = SimpleNamespace(
        slot_blocks=blocks, slot_offsets=offsets, live=None,
        touched=blocks.unique(return_inverse=True),
    )  # fmt: skip
    if kv.scales is None:
        scatter(bits(kv.values), inputs, *bits(to_fp8(rows)))
    else:
        write(kv, inputs, rows)


def draw(tokens: int, seed: int, spread: float = 4.0) -> torch.Tensor:
    """Keys and values whose size differs much from token to token: [2, tokens, 3, 8]."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.exp2(spread * torch.randn((2, tokens, 3, 1), generator=generator))
    return size * torch.randn((2, tokens, 3, 8), generator=generator)


# -- arithmetic ----------------------------------------------------------------------------------


@given(st.floats(2.0**-90, 2.0**120, width=32))
def test_a_scale_is_the_smallest_power_of_two_that_reaches(largest: float) -> None:
    scale = float(scale_of(torch.tensor(largest)))
    assert math.frexp(scale)[0] == 0.5
    assert 127 * (scale / 2) < largest <= 127 * scale


def test_scales_at_the_edges() -> None:
    assert scale_of(torch.tensor([127.0, 0.0, 1e-45])).tolist() == [1.0, 2.0**-100, 2.0**-100]
    assert scale_of(torch.tensor(127.0).nextafter(torch.tensor(128.0))) == 2.0
    assert scale_of(torch.tensor(254.0).nextafter(torch.tensor(0.0))) == 2.0
    assert scale_of(torch.tensor([math.inf, math.nan])).isnan().all()


def test_a_number_comes_back_within_half_a_scale() -> None:
    """At every place of the grid and just beside it, for small and for large scales."""
    places = torch.arange(-127, 128).float()
    near = torch.cat((places, places.nextafter(places + 1), places.nextafter(places - 1)))
    near = near.clamp(-127, 127)
    for power in (-40, -1, 0, 3, 60):
        scale = torch.tensor(2.0**power)
        q = quantize(near * scale, scale)
        assert (q != POISON).all()
        error = ((q.double() + 0.5) * scale.double() - near.double() * scale.double()).abs()
        assert error.max() <= scale / 2


def test_reading_is_exact_in_every_precision_of_a_model() -> None:
    values = torch.arange(-127, 128, dtype=torch.int8).reshape(1, 1, 1, 1, 255)
    kv = QuantizedKV(values.expand(2, -1, -1, -1, -1), torch.full((2, 1, 1), 2.0**-5))
    exact = (torch.arange(-127, 128).double() + 0.5) / 32
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert torch.equal(to_blocks(kv, dtype)[0, 0, 0, 0].double(), exact)


@settings(max_examples=80)
@given(
    block_size=st.integers(1, 9),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    order=st.randoms(use_true_random=False),
    seed=st.integers(0, 10_000),
)
def test_the_order_of_writing_changes_nothing_and_errors_do_not_add_up(
    block_size: int, cuts: list[int], order: object, seed: int
) -> None:
    """Slots in any order and any company: the same bytes, each within half a scale."""
    tokens = sum(cuts)
    rows = draw(tokens, seed)
    slots = list(range(tokens))
    order.shuffle(slots)  # type: ignore[attr-defined]
    blocks = -(-tokens // block_size) + 1
    kv, at_once = (empty(blocks, 3, block_size, 8) for _ in range(2))
    plain = torch.full((2, blocks, 3, block_size, 8), math.nan)
    done = 0
    for count in cuts:
        put(kv, rows[:, done : done + count], slots[done : done + count])
        done += count
    put(at_once, rows, slots)
    for row, slot in enumerate(slots):
        plain[:, slot // block_size, :, slot % block_size] = rows[:, row]
    assert kv.scales is not None
    assert at_once.scales is not None
    for other in (at_once, from_blocks(plain, torch.int8)):
        assert torch.equal(kv.values, other.values)
        assert torch.equal(kv.scales.nan_to_num(-1), other.scales.nan_to_num(-1))
    back = to_blocks(kv, torch.float64)
    assert torch.equal(back.isnan(), plain.isnan())
    off = (back - plain).abs() / kv.scales[..., None, None]
    assert off.nan_to_num(0).max() <= 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_shows_as_nan_and_is_never_forgotten(bad: float) -> None:
    kv = empty(2, 3, 4, 8)
    rows = draw(4, 0)
    put(kv, rows, [0, 1, 4, 5])
    spoilt = draw(1, 1)
    spoilt[0, 0, 1, 3] = bad
    put(kv, spoilt, [2])
    put(kv, draw(1, 2), [3])  # a sound token afterwards heals nothing that was there
    back = to_blocks(kv, torch.float32)
    assert back[0, 0, 1, :3].isnan().all()
    assert not back[0, 0, [0, 2]].isnan().any()
    assert not back[1, 0].isnan().any()
    assert not back[:, 1, :, :2].isnan().any()


def test_fp8_rounds_to_three_bits_and_ends_at_448() -> None:
    values = torch.full((2, 2, 3, 4, 8), 0x7F, dtype=torch.uint8).view(FP8)
    kv = QuantizedKV(values, None)
    rows = draw(5, 3, spread=2.0).clamp(-400, 400)
    rows[0, 0, 0, :3] = torch.tensor([1e9, -1e9, math.nan])
    put(kv, rows, [0, 1, 2, 3, 6])
    back = to_blocks(kv, torch.float32)
    assert back[0, 0, 0, 0, :2].tolist() == [448.0, -448.0]
    assert back[0, 0, 0, 0, 2].isnan()
    assert back[:, 1, :, [0, 1, 3]].isnan().all()
    error = (back[:, 0, :, 1:4] - rows[:, 1:4].transpose(1, 2)).abs()
    # Half of the last of three bits, or of the smallest step of 2 to the -9.
    assert (error <= rows[:, 1:4].transpose(1, 2).abs() / 16 + 2.0**-10).all()


# -- kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("kv_dtype", SMALL)
def test_every_kernel_reads_the_same_from_eight_bits(kv_dtype: str, case: Case) -> None:
    step = make_step(case)
    kv = from_blocks(step.kv, KV_DTYPES[kv_dtype])
    expected = KERNELS["reference"](step.q, to_blocks(kv, torch.float32), step.inputs, step.scale)
    assert not expected.isnan().any()
    found = {name: kernel(step.q, kv, step.inputs, step.scale) for name, kernel in READERS.items()}
    if kv_dtype == "int8":
        found["alone"] = int8_alone(step.q, kv, step)
    for out in found.values():
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)


def int8_alone(q: torch.Tensor, kv: QuantizedKV, step: object) -> torch.Tensor:
    """Everything in place, large chunks too."""
    from experiment.engine.cpu import attention_kernel_int8 as cpu_kernel_int8

    inputs, scale = step.inputs, step.scale  # type: ignore[attr-defined]
    out = torch.empty_like(q)
    chosen = torch.arange(len(inputs.sequences), dtype=torch.int32)
    cpu_kernel_int8.attend(q, kv, out, inputs.flat, chosen, scale)
    return out


@pytest.mark.parametrize("block_size", [1, 7, 16, 512])
@pytest.mark.parametrize("groups", [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("kernel", READERS.values(), ids=READERS)
def test_attention_is_off_by_no_more_than_the_scales_allow(
    kernel: Kernel, groups: tuple[int, int], block_size: int
) -> None:
    """Against the dense reference in full precision.

    A key is off by at most s/2 in each number, so a score by at most d = scale * s/2 * sum |q|.
    A weight of a softmax whose scores are off by d changes by a factor between exp(-2d) and
    exp(2d), and each value is off by at most s'/2, so an output is off by at most
    (exp(2d) - 1) * max |v| + s'/2, with the largest s and s' of the head.
    """
    step = make_step(Case(((140, 1), (0, 1), (15, 2), (0, 18)), block_size, *groups, dim=16))
    step.q *= 0.2
    kv = from_blocks(step.kv, torch.int8)
    assert kv.scales is not None
    exact = KERNELS["reference"](step.q, step.kv, step.inputs, step.scale)
    out = kernel(step.q, kv, step.inputs, step.scale)
    group = groups[0] // groups[1]
    of_keys, of_values = kv.scales.nan_to_num(0).amax(1).repeat_interleave(group, 1)  # [heads]
    largest = step.kv[1].nan_to_num(0).abs().amax((0, 2, 3)).repeat_interleave(group)
    d = step.scale * of_keys / 2 * step.q.abs().sum(-1)  # [tokens, heads]
    bound = torch.expm1(2 * d) * largest + of_values / 2
    error = (out - exact).abs().amax(-1)
    assert (error <= bound + 1e-5).all()
    assert error.max() > 0
    assert bound.median() < 0.1 * largest.max()  # a bound that anything would keep proves nothing


@pytest.mark.parametrize("half", [0, 1], ids=["key", "value"])
@pytest.mark.parametrize("place", [0, 127, 128, 200])
@pytest.mark.parametrize("kv_dtype", [None, *SMALL])
def test_one_poisoned_slot_anywhere_in_a_context_shows(
    kv_dtype: str | None, place: int, half: int
) -> None:
    """In the first or last place of a tile; and a weight of zero does not hide it."""
    step = make_step(Case(((200, 1), (200, 1)), 16, dim=64))
    step.q *= 1000.0
    step.kv[half, step.tables[0][place // 16], 2, place % 16] = math.nan
    kv = from_blocks(step.kv, KV_DTYPES[kv_dtype]) if kv_dtype else step.kv
    for kernel in READERS.values():
        out = kernel(step.q, kv, step.inputs, step.scale)
        assert out[0, 2].isnan().any()
        assert not out[0, [0, 1, 3]].isnan().any()
        assert not out[1].isnan().any()


# -- the pool ------------------------------------------------------------------------------------


def make_pool(
    kv_dtype: str, blocks: int = 5, block_size: int = 4, host: int = 0, shape: KVGeometry = SHAPE
) -> KVPool:
    small = cache_geometry(shape, kv_dtype)
    return KVPool(small, blocks, block_size, KV_DTYPES[kv_dtype], CPU, host)


def fill(pool: KVPool, slots: list[int], seed: int) -> None:
    """The same slots in every layer, each layer with numbers of its own."""
    for layer in range(pool.kv.shape[0]):
        kv = pool.layer(layer)
        assert isinstance(kv, QuantizedKV)
        rows = draw(len(slots), 100 * seed + layer)
        if kv.scales is None:
            rows = rows.clamp(-400, 400)
        put(kv, rows, slots)


@pytest.mark.parametrize("block_size", [1, 3, 16, 512])
@pytest.mark.parametrize("kv_dtype", SMALL)
def test_formula_storage_and_poison_agree_to_the_byte(kv_dtype: str, block_size: int) -> None:
    for shape in (SHAPE, KVGeometry(1, 1, 1, 2), KVGeometry(3, 2, 80, 4)):
        pool = make_pool(kv_dtype, 7, block_size, shape=shape)
        small = cache_geometry(shape, kv_dtype)
        by_hand = shape.layers * 2 * shape.kv_heads * (block_size * shape.head_dim)
        by_hand += shape.layers * 2 * shape.kv_heads * 4 if kv_dtype == "int8" else 0
        assert small.block_bytes(block_size) == by_hand
        assert storage_bytes(pool.tensors) == pool.poisoned_bytes() == 7 * by_hand
        budget = shape.block_bytes(block_size) * 100
        assert small.blocks_in(budget, block_size) == budget // by_hand


@pytest.mark.parametrize("kv_dtype", SMALL)
def test_poison_counts_what_is_left_and_scales_with_it(kv_dtype: str) -> None:
    pool = make_pool(kv_dtype)
    fill(pool, [0, 1, 9], seed=1)
    assert pool.written_slots() == 3
    slot = 2 * 2 * 3 * 8
    scales = 0 if kv_dtype == "fp8" else 2 * 2 * 3 * 4
    assert pool.poisoned_bytes() == 17 * slot + 3 * scales  # two of five blocks have a scale


def test_scales_and_slots_that_contradict_each_other_are_an_engine_error() -> None:
    for damage in (
        lambda pool: pool.scales[1, 0, 0, 2].fill_(math.nan),
        lambda pool: pool.scales[0, 1, 4, 0].fill_(1.0),
        lambda pool: pool.kv[0, 1, 0, :, 1].fill_(POISON),
    ):
        pool = make_pool("int8")
        fill(pool, [0, 1, 2], seed=6)
        assert pool.written_slots() == 3
        damage(pool)
        with pytest.raises(PoisonError):
            pool.written_slots()
