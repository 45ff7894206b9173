"""Logits of paged steps against plain Transformers, for each token of each request."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from tiny_engine import make_engine

from experiment.engine.control import damage_block, damage_slot
from experiment.engine.engine import Engine
from experiment.engine.step_inputs import StepInputs
from experiment.gpucheck.tiny_models import FAMILIES, POSITIONS, VOCABULARY, tiny
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens

TOLERANCE = 1e-4  # of the largest magnitude among the logits of a position

Damage = Callable[[Engine], None]


class Listener:
    """Keeps the logits of each sampled position of an engine's steps."""

    def __init__(self, engine: Engine) -> None:
        self.rows: dict[tuple[int, int], torch.Tensor] = {}
        self.plain = engine.runner.logits
        engine.runner.logits = self.listen  # type: ignore[method-assign]

    def listen(self, inputs: StepInputs) -> torch.Tensor:
        logits = self.plain(inputs)
        ends = [inputs.position_ids[0, row].item() for row in inputs.sampled_rows]
        for request, end, row in zip(inputs.sampled_requests, ends, logits, strict=True):
            self.rows[request, int(end)] = row.clone()
        return logits


@torch.inference_mode()
def worst_error(family: str, engine: Engine, listener: Listener) -> float:
    """Largest difference to the plain model, relative to the largest logit of its position."""
    worst = 0.0
    for request in {request for request, _ in listener.rows}:
        tokens = engine._generations[request].tokens
        plain = tiny(family, "sdpa")(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        for (owner, position), row in listener.rows.items():
            if owner == request:
                difference = (row - plain[position]).abs().max() / plain[position].abs().max()
                worst = max(worst, float(difference))
    return worst


def random_run(
    family: str, block_size: int, budget: int, seed: int, damage: Damage | None = None
) -> float:
    """A random batch, in a pool of a random size; the error of the worst logit of any step."""
    draw = random.Random(seed)
    stem = draw.choices(range(VOCABULARY), k=12)
    jobs = []
    for _ in range(draw.randint(2, 6)):
        tail = draw.choices(range(VOCABULARY), k=draw.randint(4, 25))
        jobs.append((stem[: draw.choice((0, 6, 12))] + tail, draw.randint(4, 10)))
    finals = [blocks_needed(final_tokens(len(p), new), block_size) for p, new in jobs]
    blocks = sum(finals) if damage else max(finals) + draw.randint(0, sum(finals))
    engine = make_engine(
        family,
        blocks,
        block_size,
        max_num_batched_tokens=budget,
        prefix_caching=damage is None and seed % 2 == 0,
    )
    listener = Listener(engine)
    for request, (prompt, new) in enumerate(jobs):
        engine.add(request, prompt, new)
    steps = 0
    while engine.scheduler.has_work:
        engine.step()
        steps += 1
        if damage is not None and steps == 1:
            with torch.inference_mode():
                damage(engine)
    # Each token was sampled from logits that were heard, whatever was computed twice.
    assert len(listener.rows) == sum(new for _, new in jobs)
    return worst_error(family, engine, listener)


@pytest.mark.parametrize("block_size", [1, 3, 16, POSITIONS])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_logit_of_every_step_is_that_of_the_plain_model(family: str, block_size: int) -> None:
    for seed, budget in enumerate((2, 5, 13, 31, 2048)):
        assert random_run(family, block_size, budget, 100 * block_size + seed) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("damage", [damage_slot, damage_block])
def test_a_damaged_cache_is_far_outside_the_tolerance(family: str, damage: Damage) -> None:
    clean = random_run(family, 8, 2048, 7)
    assert clean < TOLERANCE
    assert random_run(family, 8, 2048, 7, damage) > 100 * TOLERANCE
