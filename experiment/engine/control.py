"""Negative control: corrupting the paged cache must change the generated tokens.

Equal tokens between two arms are evidence only if a corrupt cache would change them. Each
corruption is applied after the prefill, with several requests running.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from kvsim.sizing.geometry import KVGeometry

_BLOCK_SIZE = 16
_VICTIM, _OTHER = 0, 1
_PROMPT_TOKENS, _NEW_TOKENS = 40, 8
_DAMAGED_SLOT = 5


def damage_table(engine: Engine) -> None:
    """Point one entry of the block table at another request's block."""
    tables = engine.blocks._tables
    tables[_VICTIM][0] = tables[_OTHER][0]


def damage_slot(engine: Engine) -> None:
    """Negate the keys and values of one slot."""
    block = engine.blocks.table(_VICTIM)[0]
    engine.pool.kv[:, :, block, :, _DAMAGED_SLOT].neg_()


def damage_block(engine: Engine) -> None:
    """Overwrite one block with another request's block."""
    block = engine.blocks.table(_VICTIM)[1]
    engine.pool.kv[:, :, block] = engine.pool.kv[:, :, engine.blocks.table(_OTHER)[1]]


DAMAGES: dict[str, Callable[[Engine], None]] = {
    "table": damage_table,
    "slot": damage_slot,
    "block": damage_block,
}


def control_tokens(
    model: torch.nn.Module,
    geometry: KVGeometry,
    vocab_size: int,
    damage: Callable[[Engine], None] | None = None,
) -> list[int]:
    """Tokens of the victim, with ``damage`` applied after the prefill, or without."""
    parameter = next(model.parameters())
    pool = KVPool(geometry, 8, _BLOCK_SIZE, parameter.dtype, parameter.device)
    engine = Engine(ModelRunner(model, pool))
    generator = torch.Generator().manual_seed(1)
    for request in (_VICTIM, _OTHER):
        prompt = torch.randint(vocab_size, (_PROMPT_TOKENS,), generator=generator)
        engine.add(request, prompt.tolist(), _NEW_TOKENS)
    engine.step()
    if damage is not None:
        with torch.inference_mode():
            damage(engine)
    # The pool would fail on the damaged table when the request ends: stop just before.
    for _ in range(_NEW_TOKENS - 2):
        engine.step()
    return engine.generated(_VICTIM)


def unnoticed_damages(
    model: torch.nn.Module, geometry: KVGeometry, vocab_size: int
) -> dict[str, bool]:
    """For each corruption, whether the tokens did not change; all must be False."""
    clean = control_tokens(model, geometry, vocab_size)
    return {
        name: control_tokens(model, geometry, vocab_size, damage) == clean
        for name, damage in DAMAGES.items()
    }
