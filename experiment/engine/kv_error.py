"""Accuracy of a quantized cache, measured on the model and a prompt of the run.

    prompt + a few greedy tokens ──► model with a cache in its own dtype ──► logits
                 │                       └ in each layer: the same K and V, quantized, and the same
                 │                         queries through the same kernel ──► attention error
                 └──────────────► model with a quantized cache ──► logits

Both runs get the same tokens (teacher forcing), so that positions can be compared independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from experiment.engine.attention.kernels import KERNELS
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.quantized import LayerKV, from_blocks
from experiment.engine.sampling import check_logits
from experiment.engine.step_inputs import StepInputs, build_inputs
from kvsim.core.blocks import blocks_needed
from kvsim.core.step import Chunk, StepPlan
from kvsim.sizing.geometry import KVGeometry

PROMPT_TOKENS = 256
NEW_TOKENS = 16
# Logits of this many prompt positions are kept, because a vocabulary is large.
_PROMPT_LOGITS = 32


@dataclass(frozen=True, slots=True)
class KVError:
    """A quantized cache compared with the model's dtype, on the same tokens.

    Attributes:
        tokens: number of tokens, prompt included.
        attention: relative error of attention outputs, root mean square, all layers.
        attention_worst: the same in the layer where it is largest.
        logit_mean: mean absolute difference of logits.
        logit_largest: largest absolute difference.
        logit_spread: standard deviation of the logits, for reference.
        positions: positions at which logits were compared.
        same_token: of those, with the same most likely token.
    """

    tokens: int
    attention: float
    attention_worst: float
    logit_mean: float
    logit_largest: float
    logit_spread: float
    positions: int
    same_token: int


class _ErrorMeter:
    """A kernel that also computes with quantized K and V, and accumulates the squared error."""

    def __init__(self, kernel: str, dtype: torch.dtype) -> None:
        self.kernel = KERNELS[kernel]
        self.dtype = dtype
        self.calls: list[tuple[float, float]] = []  # squares of error and of output

    def __call__(
        self, q: torch.Tensor, kv: LayerKV, inputs: StepInputs, scale: float
    ) -> torch.Tensor:
        assert isinstance(kv, torch.Tensor)
        out = self.kernel(q, kv, inputs, scale)
        other = self.kernel(q, from_blocks(kv, self.dtype), inputs, scale)
        error, size = (other.double() - out.double()), out.double()
        self.calls.append((float(error.square().sum()), float(size.square().sum())))
        return out

    def by_layer(self, layers: int) -> list[tuple[float, float]]:
        """Sums over the steps, by layer; every step calls the layers in the same order."""
        every = [self.calls[layer::layers] for layer in range(layers)]
        return [(sum(e for e, _ in calls), sum(s for _, s in calls)) for calls in every]


@torch.inference_mode()
def measure(
    model: torch.nn.Module,
    plain: KVGeometry,
    cache: KVGeometry,
    dtype: torch.dtype,
    block_size: int,
    kernel: str,
    prompt: Sequence[int],
    new_tokens: int,
) -> KVError:
    """Run the beginning of a prompt and some new tokens with both caches.

    Args:
        model: loaded for the paged engine and probed.
        plain: geometry of the cache in the model's dtype.
        cache: geometry of the quantized cache.
        dtype: its dtype.
        new_tokens: new tokens of the request; at most 16 are used.
    """
    parameter = next(model.parameters())
    tokens = list(prompt[:PROMPT_TOKENS])
    new = min(new_tokens, NEW_TOKENS)
    # A slab may be much longer than the tokens measured; its scale depends only on written slots.
    size = min(block_size, len(tokens) + new)
    blocks = blocks_needed(len(tokens) + new, size)

    def run(shape: KVGeometry, kind: torch.dtype, forced: list[int] | None) -> _Run:
        pool = KVPool(shape, blocks, size, kind, parameter.device)
        return _Run(ModelRunner(model, pool, kernel), (tokens, new), forced)

    first = run(plain, parameter.dtype, None)
    first.runner.kernel = meter = _ErrorMeter(kernel, dtype)
    reference = first.logits()
    quantized = run(cache, dtype, first.tokens).logits()
    return _compare(reference, quantized, meter.by_layer(plain.layers), len(first.tokens))


class _Run:
    """Run the prompt in one step, then token by token: greedy, or given tokens."""

    def __init__(
        self, runner: ModelRunner, job: tuple[list[int], int], forced: list[int] | None
    ) -> None:
        prompt, new = job
        self.runner = runner
        self.prompt, self.end = len(prompt), len(prompt) + new - 1
        self.tokens = list(forced or prompt)
        self.greedy = forced is None

    def logits(self) -> torch.Tensor:
        """Logits [positions, vocabulary], float32: end of the prompt, and each further token."""
        rows = [self._step(0, self.prompt)]
        for position in range(self.prompt, self.end):
            if self.greedy:
                self.tokens.append(int(rows[-1][-1].argmax()))
            rows.append(self._step(position, 1))
        return torch.cat(rows)

    def _step(self, start: int, count: int) -> torch.Tensor:
        pool = self.runner.pool
        plan = StepPlan(0, chunks=(Chunk(0, start, count, samples=True),))
        table = list(range(pool.num_blocks))
        inputs = build_inputs(plan, {0: self.tokens}, {0: table}, pool.block_size, pool.kv.device)
        last = torch.arange(max(0, count - _PROMPT_LOGITS), count, device=pool.kv.device)
        return check_logits(self.runner.logits(replace(inputs, sampled_rows=last))).float()


def _compare(
    reference: torch.Tensor, quantized: torch.Tensor, layers: list[tuple[float, float]], tokens: int
) -> KVError:
    difference = (reference - quantized).abs()
    error, size = sum(e for e, _ in layers), sum(s for _, s in layers)
    return KVError(
        tokens=tokens,
        attention=_root(error, size),
        attention_worst=max(_root(e, s) for e, s in layers),
        logit_mean=float(difference.mean()),
        logit_largest=float(difference.max()),
        logit_spread=float(reference.std()),
        positions=len(reference),
        same_token=int((reference.argmax(-1) == quantized.argmax(-1)).sum()),
    )


def _root(error: float, size: float) -> float:
    return float((error / size) ** 0.5) if size else 0.0
