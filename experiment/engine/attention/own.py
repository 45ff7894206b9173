"""Models with their own attention code, over keys and values gathered from the blocks.

    forward(one request's tokens, cache) ─► layer ─► cache.update(K, V) ─► pool.write ─► blocks
                                              └──── all K, V of the request ◄─ gather ◄─┘

Such a model accepts no other attention function, or passes arguments that ours does not support
(sinks, soft-capped scores, positions added to scores). Its layers call Transformers' cache, so the
pool replaces that cache: one forward pass per request, with the model's own masks.
"""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from experiment.engine.attention.interface import PagedStep, check_shape
from experiment.engine.attention.kernels import gather
from experiment.engine.step_inputs import PackedSequence, StepInputs, sequence_inputs


@cache
def _arguments(kind: Any) -> frozenset[str]:
    """Names of the parameters of a model's forward pass."""
    return frozenset(signature(kind.forward).parameters)


class _BlockLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of Transformers' cache, stored in a request's blocks."""

    is_sliding = False

    def __init__(self, layer: int, step: PagedStep, inputs: StepInputs) -> None:
        super().__init__()
        self._layer, self._step, self._inputs = layer, step, inputs
        self._sequence: PackedSequence = inputs.sequences[0]
        self._length = self._sequence.context - self._sequence.queries
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the pool is reserved."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [1, kv_heads, tokens, head_dim] each; return those of all tokens so far."""
        pool = self._step.pool
        check_shape(pool, key_states, value_states)
        self._step.calls.append(self._layer)
        keys, values = (x[0].transpose(0, 1) for x in (key_states, value_states))
        pool.write(self._layer, self._inputs, keys, values)
        self._length = self._sequence.context
        keys, values = gather(pool.layer(self._layer), self._sequence, key_states.dtype)
        return keys[None], values[None]

    def get_seq_length(self) -> int:
        """Number of tokens in the layer."""
        return self._length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - the base's
        """Number of keys visible to the queries, and position of the first."""
        return self._sequence.context, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1


def forward(model: torch.nn.Module, inputs: StepInputs, step: PagedStep) -> torch.Tensor:
    """Run one forward pass per request; return logits, [requests that sample, vocabulary]."""
    kind: Any = type(model)
    accepted = _arguments(kind)
    sampling = set(inputs.sampled_rows.tolist())
    logits = []
    for sequence in inputs.sequences:
        own = sequence_inputs(inputs, sequence)
        layers = [_BlockLayer(layer, step, own) for layer in range(len(step.pool.kv))]
        arguments: dict[str, Any] = {
            "position_ids": own.position_ids,
            "logits_to_keep": 1,
            "past_key_values" if "past_key_values" in accepted else "cache": Cache(layers=layers),
        }
        output = model(
            input_ids=own.input_ids,
            attention_mask=own.input_ids.new_ones(1, sequence.context),
            use_cache=True,
            **{name: value for name, value in arguments.items() if name in accepted},
        )
        samples = sequence.rows.stop - 1 in sampling
        logits.append(output.logits[0, -1:] if samples else output.logits[0, :0])
    return torch.cat(logits)
