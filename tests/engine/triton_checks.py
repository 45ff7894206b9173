"""The Triton kernels against the definition, on CPU tensors in Triton's interpreter.

Collected by test_triton.py in a process with TRITON_INTERPRET=1, never by its name alone.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from checked_run import CheckedRun
from sweeps import FULL
from tiny_engine import geometry, solo

from experiment.arms.engine_setup import compile_kernel
from experiment.config.kv_dtype import cache_geometry
from experiment.engine import quantized
from experiment.engine.attention.kernel_choice import choose_kernel
from experiment.engine.attention.kernels import reference_kernel
from experiment.engine.cuda import triton_decode, triton_kernel, triton_rescale, triton_write
from experiment.engine.cuda.triton_kernel import attend, warm_up
from experiment.engine.cuda.triton_support import reason_against
from experiment.engine.cuda.triton_tile import interpreted, layer_of
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool, scatter
from experiment.engine.model_runner import ModelRunner
from experiment.engine.quantized import FP8, KV_DTYPES, LayerKV, from_blocks
from experiment.engine.step_inputs import FlatSequences, build_inputs
from experiment.gpucheck.kernel_cases import CASES, Case, Step, make_step
from experiment.gpucheck.tiny_models import POSITIONS, VOCABULARY, tiny
from kvsim.core.step import Chunk, StepPlan
from kvsim.sizing.geometry import KVGeometry

TOLERANCE = 1e-5
CPU = torch.device("cpu")


def test_the_interpreter_is_on() -> None:
    assert interpreted()
    assert reason_against(CPU) is None


def test_a_gpu_is_no_place_for_the_interpreter() -> None:
    reason = reason_against(torch.device("cuda"))
    assert reason is not None
    assert "TRITON_INTERPRET" in reason.params["detail"]
    assert choose_kernel("auto", torch.device("cuda"), torch.float16) == ("torch", reason)


def agrees(step: Step, kv: LayerKV, tolerance: float) -> None:
    ours = attend(step.q, kv, step.inputs, step.scale)
    expected = reference_kernel(step.q, kv, step.inputs, step.scale)
    assert not expected.isnan().any()
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)


def split(step: Step, positions: int = 32, tile: int = 16) -> torch.Tensor:
    """Rows of a step that only decodes, in small splits of small tiles."""
    out = torch.full_like(step.q, float("nan"))
    triton_decode.decode(
        step.q, layer_of(step.kv), step.inputs.flat, step.inputs.decoding, step.inputs.longest,
        step.scale, out, positions, tile,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_kernels_give_the_reference(case: Case) -> None:
    step = make_step(case)
    agrees(step, step.kv, TOLERANCE)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"),
    [(2, 2, 16, 256), (3, 3, 80, 1), (4, 2, 128, 16), (7, 1, 24, 7), (6, 2, 64, 32)],
)
def test_heads_and_blocks_of_any_size(heads: int, kv_heads: int, dim: int, block_size: int) -> None:
    sequences = ((70, 1), (0, 1), (31, 1), (15, 3), (0, 18))
    step = make_step(Case(sequences, block_size, heads, kv_heads, dim), seed=dim)
    agrees(step, step.kv, TOLERANCE)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_contexts_in_splits_give_the_reference(heads: tuple[int, int]) -> None:
    """Shorter than a split, exactly one, one more, a last split of one position, many."""
    contexts = (0, 15, 31, 32, 63, 64, 200)
    step = make_step(Case(tuple((c, 1) for c in contexts), 7, *heads, dim=16))
    expected = reference_kernel(step.q, step.kv, step.inputs, step.scale)
    torch.testing.assert_close(split(step), expected, atol=TOLERANCE, rtol=0)


def test_more_splits_than_are_combined_at_a_time() -> None:
    step = make_step(Case(((300, 1), (520, 1)), 32, 2, 2, 16))
    step.q *= 4.0  # so that some later split has the largest score
    expected = reference_kernel(step.q, step.kv, step.inputs, step.scale)
    torch.testing.assert_close(split(step, 16, 16), expected, atol=TOLERANCE, rtol=0)


def test_a_request_does_not_depend_on_the_batch() -> None:
    together = make_step(Case(((40, 1), (150, 1), (90, 1)), 8, 2, 2, 16))
    out = split(together)
    alone = replace(together.inputs, sequences=together.inputs.sequences[:1])
    assert alone.longest == 41
    assert torch.equal(split(replace(together, inputs=alone))[0], out[0])


# Precision of the model, and of the cache where it is another.
PRECISIONS = [(torch.float16, None), (torch.bfloat16, torch.int8), (torch.float32, FP8)]
if FULL:
    PRECISIONS += [
        (torch.bfloat16, None), (torch.float16, torch.int8), (torch.float32, torch.int8),
        (torch.float16, FP8), (torch.bfloat16, FP8),
    ]  # fmt: skip
TOLERANCES = {torch.float32: TOLERANCE, torch.float16: 2e-3, torch.bfloat16: 2e-2}
precisions = pytest.mark.parametrize(("dtype", "pool"), PRECISIONS, ids=str)
groups = pytest.mark.parametrize("heads", [(8, 2), (2, 2)] if FULL else [(8, 2)])


def cached(step: Step, dtype: torch.dtype, pool: torch.dtype | None) -> LayerKV:
    return step.kv.to(dtype) if pool is None else from_blocks(step.kv, pool)


@precisions
@groups
def test_every_precision_gives_the_reference_within_its_own(
    dtype: torch.dtype, pool: torch.dtype | None, heads: tuple[int, int]
) -> None:
    step = make_step(Case(((100, 1), (0, 1), (20, 9)), 16, *heads, 24))
    kv = cached(step, dtype, pool)
    step.q = step.q.to(dtype)
    agrees(step, kv, TOLERANCES[dtype])


@precisions
@groups
@pytest.mark.parametrize("half", [0, 1], ids=["key", "value"])
def test_poison_shows_in_every_precision(
    dtype: torch.dtype, pool: torch.dtype | None, heads: tuple[int, int], half: int
) -> None:
    """The first slot of one request, the last of another and one behind a chunk, of KV head 1.

    The interpreter reads the NaN of float8 as a number; there the poisoned rows must differ. That
    conversion on a GPU keeps it is what PTX promises of cvt.rn.f16x2.e4m3x2.
    """
    step = make_step(Case(((69, 1), (69, 1), (30, 2), (69, 1)), 16, *heads, 16))
    clean = attend(step.q.to(dtype), cached(step, dtype, pool), step.inputs, step.scale)
    for request, place in ((0, 0), (1, 69), (2, 7)):
        block = step.tables[request][place // 16]
        step.kv[half, block, 1, place % 16] = float("nan")
    out = attend(step.q.to(dtype), cached(step, dtype, pool), step.inputs, step.scale)
    spoilt = (out != clean if pool == FP8 else out.isnan()).any(-1)  # [tokens, heads]
    first = heads[0] // 2  # of those that read KV head 1
    assert spoilt[:4, first:].all()
    assert not spoilt[:4, :first].any()
    assert not spoilt[4].any()
    assert not clean.isnan().any()


@pytest.mark.parametrize("size", [1e-4, 1000.0])
def test_extreme_scores_give_the_reference(size: float) -> None:
    step = make_step(Case(((100, 1), (30, 3)), 16, dim=16))
    step.q *= size
    agrees(step, step.kv, TOLERANCE * max(1.0, size))


@pytest.mark.parametrize("positions", [32, 256])
def test_a_context_of_nothing_gives_zeros(positions: int) -> None:
    step = make_step(Case(((69, 1), (3, 1)), 16, 2, 2, 16))
    flat = step.inputs.flat
    padding = FlatSequences(flat.tables, flat.contexts * torch.tensor([1, 0]).int(), flat.starts)
    out = torch.full_like(step.q, float("nan"))
    rows = step.inputs.decoding
    triton_decode.decode(
        step.q, layer_of(step.kv), padding, rows, 70, step.scale, out, positions, 16
    )
    assert (out[1] == 0).all()
    assert not out[0].isnan().any()


@pytest.mark.parametrize(("kv_heads", "dim"), [(3, 24), (1, 16)])
def test_keys_and_values_go_to_their_slots_and_dropped_rows_nowhere(
    kv_heads: int, dim: int
) -> None:
    step = make_step(Case(((5, 3), (0, 4), (6, 1)), 4, 3, kv_heads, dim))
    # As attention hands them over: heads outside tokens in memory.
    rows = torch.randn(2, kv_heads, 8, dim).transpose(1, 2)
    dropped = torch.tensor([0, 4, 7])
    step.inputs.slot_blocks[dropped] = -1
    ours, expected = step.kv.clone(), step.kv.clone()
    triton_write.write(ours, step.inputs, rows[0], rows[1])
    kept = torch.tensor([row for row in range(8) if row not in dropped])
    plain = replace(
        step.inputs,
        slot_blocks=step.inputs.slot_blocks[kept],
        slot_offsets=step.inputs.slot_offsets[kept],
    )
    scatter(expected, plain, rows[0][kept], rows[1][kept])
    torch.testing.assert_close(ours, expected, atol=0, rtol=0, equal_nan=True)
    assert not torch.allclose(ours, step.kv, equal_nan=True)


def test_warming_up_changes_nothing() -> None:
    kv = torch.full((2, 3, 2, 4, 16), float("nan"))
    warm_up(kv, 4, torch.float32)
    assert kv.isnan().all()


@pytest.mark.parametrize(("kv_heads", "blocks", "kinds"), [(3, 5, 2), (4, 5, 1)])
def test_one_layer_of_each_alignment_is_compiled(
    kv_heads: int, blocks: int, kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales of 3 heads and 5 blocks begin at 0, 60, 120, 180 .. bytes."""
    pool = KVPool(KVGeometry(6, kv_heads, 16, 1), blocks, 4, torch.int8, CPU)
    warmed: list[LayerKV] = []
    monkeypatch.setattr(triton_kernel, "warm_up", lambda layer, *rest: warmed.append(layer))
    model = torch.nn.Linear(1, 1)
    model.config = SimpleNamespace(num_attention_heads=12)  # type: ignore[assignment]
    compile_kernel(model, SimpleNamespace(pool=pool), "triton")  # type: ignore[arg-type]
    assert len(warmed) == kinds
    assert len({triton_kernel.alignment_of(layer) for layer in warmed}) == kinds


def test_the_engine_runs_on_it_with_padded_batches() -> None:
    """Tokens of plain Transformers, and after every step the tensors hold what the plan says."""
    pool = KVPool(geometry("llama"), 12, 4, torch.float32, CPU)
    runner = ModelRunner(tiny("llama"), pool, "triton")
    assert pool.scatter is triton_write.write
    graphs = runner.capture_decoding(4, 32, lambda work: (work(), work)[1])
    assert pool.written_slots() == 0
    engine = Engine(runner, None, (), VOCABULARY, POSITIONS)
    prompts = [list(range(3, 3 + length)) for length in (1, 9, 4)]
    for request, prompt in enumerate(prompts):
        engine.add(request, prompt, 3)
    CheckedRun(engine).to_the_end()
    for request, prompt in enumerate(prompts):
        assert engine.generated(request) == solo("llama", prompt, 3)
    assert (graphs.counts.steps, graphs.counts.rows, graphs.counts.padding_rows) == (2, 6, 2)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_decoding_over_eight_bits_can_be_captured(kv_dtype: str) -> None:
    """The same tokens as without graphs, and padding is written nowhere."""
    found = []
    for captured in (False, True):
        shape = cache_geometry(geometry("llama"), kv_dtype)
        runner = ModelRunner(
            tiny("llama"), KVPool(shape, 12, 4, KV_DTYPES[kv_dtype], CPU), "triton"
        )
        if captured:
            runner.capture_decoding(4, 32, lambda work: (work(), work)[1])
            assert runner.pool.written_slots() == 0
        engine = Engine(runner, None, (), VOCABULARY, POSITIONS)
        for request, length in enumerate((1, 9, 4)):
            engine.add(request, list(range(3, 3 + length)), 3)
        CheckedRun(engine).to_the_end()
        found.append([engine.generated(request) for request in range(3)])
    assert found[0] == found[1]


@pytest.mark.parametrize(("block_size", "dim"), [(1, 8), (4, 24), (300, 16)])
def test_scales_of_int8_grow_as_by_torch(block_size: int, dim: int) -> None:
    """Blocks that begin, grow by any power, stay, or are given what is no number."""
    generator = torch.Generator().manual_seed(block_size)
    plain = torch.randn((2, 7, 3, block_size, dim), generator=generator)
    ours, theirs = (from_blocks(plain, torch.int8) for _ in range(2))
    assert isinstance(ours.scales, torch.Tensor)
    chunks = [Chunk(r, 0, 1, samples=True) for r in range(6)]
    tables = {r: [block] for r, block in enumerate((5, 0, 3, 6, 1, 2))}
    inputs = build_inputs(
        StepPlan(0, chunks=tuple(chunks)), {r: [0] for r in tables}, tables, block_size, CPU
    )
    old = ours.scales[:, inputs.touched[0]].clone()
    power = torch.randint(-3, 10, old.shape, generator=generator).clamp(min=0)
    new = old * torch.exp2(power.float())
    new[0, 1, 2] = float("nan")
    old[1, 2, 0] = float("nan")
    triton_rescale.rescale(ours.values, inputs, old, new)
    quantized.rescale(theirs.values, inputs, old, new)
    assert not torch.equal(theirs.values, from_blocks(plain, torch.int8).values)
    assert torch.equal(ours.values, theirs.values)
