"""The last layer's feed-forward part: of the rows that sample alone, with the same tokens."""

from __future__ import annotations

import pytest
import torch

from experiment.engine.cpu.packed_weights import pack_weights
from experiment.engine.kv_pool import KVPool
from experiment.engine.last_layer import last_feed_forward, on_rows
from experiment.engine.model_runner import ModelRunner
from experiment.engine.step_inputs import build_inputs
from experiment.gpucheck.tiny_models import CONFIGS, FAMILIES, build, geometry, tiny
from kvsim.core.step import Chunk, StepPlan


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_found_in_every_family_and_is_the_last(family: str) -> None:
    model = build(CONFIGS[family]())
    part = last_feed_forward(model)
    assert part is not None
    names = [name for name, module in model.named_modules() if name.endswith(".mlp")]
    assert dict(model.named_modules())[names[-1]] is part
    pack_weights(model)
    assert last_feed_forward(model) is part


def test_experts_are_left_alone() -> None:
    model = build(CONFIGS["llama"]())
    part = last_feed_forward(model)
    assert part is not None
    part.router = torch.nn.Softmax(0)  # looks at other rows
    assert last_feed_forward(model) is None


def test_rows_are_computed_as_before_and_the_others_not_at_all() -> None:
    part = last_feed_forward(tiny(next(iter(FAMILIES))))
    assert part is not None
    width = next(p.shape[0] for p in part.parameters() if p.ndim == 2)
    x = torch.randn(1, 9, width, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([3, 8])
    with torch.inference_mode():
        whole = part(x)
        with on_rows(part, rows, 9):
            some = part(x)
        again = part(x)
    torch.testing.assert_close(some[:, rows], whole[:, rows])
    assert not some[:, [0, 1, 2, 4, 5, 6, 7]].any()
    assert torch.equal(again, whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_one_chunk_computes_one_row_there(family: str) -> None:
    model = tiny(family)
    part = last_feed_forward(model)
    assert part is not None
    pool = KVPool(geometry(family), 4, 8, torch.float32, torch.device("cpu"))
    prompt = list(range(1, 12))
    plan = StepPlan(0, chunks=(Chunk(0, 0, len(prompt), samples=True),))
    inputs = build_inputs(plan, {0: prompt}, {0: [2, 0]}, 8, torch.device("cpu"))
    seen: list[int] = []
    first = next(m for m in part.modules() if m is not part)
    hook = first.register_forward_hook(lambda _, x, __: seen.append(x[0].shape[1]))
    try:
        ours = ModelRunner(model, pool).logits(inputs)
    finally:
        hook.remove()
    assert seen == [1]
    plain = tiny(family, "sdpa")
    with torch.inference_mode():
        expected = plain(input_ids=torch.tensor([prompt])).logits[0, -1:]
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
