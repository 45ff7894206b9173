"""The control: a paged cache made wrong on purpose must change the generated tokens.

Equal tokens between two arms prove something only if a damaged cache would have made them
differ. Each damage below is done after the prefill, to a request in the middle of others.
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
    """One entry of the block table points at another request's block."""
    tables = engine.blocks._tables
    tables[_VICTIM][0] = tables[_OTHER][0]


def damage_slot(engine: Engine) -> None:
    """One slot holds keys and values of the wrong sign."""
    block = engine.blocks.table(_VICTIM)[0]
    engine.pool.kv[:, :, block, :, _DAMAGED_SLOT].neg_()


def damage_block(engine: Engine) -> None:
    """One block holds what another request's block holds."""
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
    """Tokens of the victim, with ``damage`` done after the prefill, or without any."""
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
    # The damaged table would confuse the pool when the request ends: stop just before.
    for _ in range(_NEW_TOKENS - 2):
        engine.step()
    return engine.generated(_VICTIM)


def unnoticed_damages(
    model: torch.nn.Module, geometry: KVGeometry, vocab_size: int
) -> dict[str, bool]:
    """For each damage whether the tokens did not change; all must be False."""
    clean = control_tokens(model, geometry, vocab_size)
    return {
        name: control_tokens(model, geometry, vocab_size, damage) == clean
        for name, damage in DAMAGES.items()
    }
