"""Run a Transformers model on a packed step, and check whether that is supported."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from experiment.engine.attention import own
from experiment.engine.attention.interface import (
    ATTENTION,
    NO_INTERFACE,
    PagedStep,
    UnsupportedModelError,
)
from experiment.engine.attention.kernels import KERNELS, Kernel, triton_module
from experiment.engine.cuda.compiled_layers import compiled_layers
from experiment.engine.cuda.decode_graphs import Capture, DecodeGraphs, padded_sizes
from experiment.engine.cuda.static_decode import StaticBuffers, StaticInputs
from experiment.engine.kv_pool import KVPool
from experiment.engine.sampling import check_logits
from experiment.engine.step_inputs import StepInputs, build_inputs
from kvsim.core.step import Chunk, StepPlan
from kvsim.sizing.geometry import KVGeometry


class ModelRunner:
    """A model and the pool of its keys and values.

    Args:
        model: in eval mode, loaded with ``attn_implementation=ATTENTION``, or with any other one:
            then its own attention computes (:mod:`experiment.engine.attention.own`).
        kernel: a key of :data:`experiment.engine.attention.kernels.KERNELS`; unused by a model
            with its own attention.
    """

    def __init__(self, model: torch.nn.Module, pool: KVPool, kernel: str = "torch") -> None:
        self.model = model
        self.pool = pool
        self.kernel: Kernel = KERNELS[kernel]
        self._own = has_own_attention(model)
        # Set by capture_decoding.
        self.graphs: DecodeGraphs | None = None
        if kernel == "triton":
            pool.scatter, pool.rescale = triton_module().write, triton_module().rescale

    @torch.inference_mode()
    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """Run the packed step; return unchecked logits, [requests that sample, vocabulary].

        The device may still be computing them.
        """
        if isinstance(inputs, StaticInputs):
            assert self.graphs is not None
            return self.graphs.replay(inputs)
        return self.forward(inputs)

    def capture_decoding(
        self, most: int, max_length: int, capture: Capture, *, compiled: bool = False
    ) -> DecodeGraphs:
        """Capture decode steps of up to ``most`` requests with contexts up to ``max_length``.

        With ``compiled`` the layers are compiled by torch. The model runs on rows of padding only;
        nothing is written to the pool.

        Raises:
            RuntimeError: the model cannot be captured or compiled, or memory is exhausted.
            UnsupportedModelError: the model has a window shorter than the maximum length.
        """
        buffers = StaticBuffers(most, max_length, self.pool.block_size, self.pool.kv.device)
        layers = compiled_layers(self.model) if compiled else nullcontext()
        with torch.inference_mode(), layers:
            self.graphs = DecodeGraphs(self.forward, buffers, padded_sizes(most), capture)
        return self.graphs

    def forward(self, inputs: StepInputs, step: PagedStep | None = None) -> torch.Tensor:
        """Run the packed step; return unchecked logits, [requests that sample, vocabulary].

        ``step`` records the layers that called our attention.
        """
        step = step or PagedStep(self.pool, inputs, self.kernel)
        if self._own:
            return own.forward(self.model, inputs, step)
        output = self.model(
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            use_cache=False,
            logits_to_keep=inputs.sampled_rows,
            paged_step=step,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def has_own_attention(model: torch.nn.Module) -> bool:
    """Whether a model was loaded with another attention than ours."""
    config: Any = model.config
    return bool(config._attn_implementation != ATTENTION)


# Token ids of the probe.
_PROBED = tuple(range(1, 8))


@torch.inference_mode()
def probe(
    model: torch.nn.Module,
    geometry: KVGeometry,
    kernel: str = "torch",
    expected: torch.Tensor | None = None,
) -> None:
    """Compare a few tokens through our attention with Transformers' own.

    The tolerance is relative to the largest logit. ``expected`` are the :func:`plain_logits` of the
    unmodified model. By default they are computed from the model as it is, which does not check its
    weights.

    A model on torch's device ``meta`` has no logits to compare. One that needs data to run, as some
    mixtures of experts do, is accepted there.

    Raises:
        UnsupportedModelError: a layer does not call our function exactly once, passes an
            unsupported argument, has keys of another shape than its config, fails, or the logits
            differ.
        InvalidLogitsError: NaN or infinity among the logits.
    """
    parameter = next(model.parameters())
    pool = KVPool(geometry, 3, 4, parameter.dtype, parameter.device)
    prompt = list(_PROBED)
    plan = StepPlan(0, chunks=(Chunk(0, 0, len(prompt), samples=True),))
    # Blocks out of order: this detects a model that ignores the table.
    inputs = build_inputs(plan, {0: prompt}, {0: [2, 0]}, pool.block_size, parameter.device)
    step = PagedStep(pool, inputs, KERNELS[kernel])
    try:
        paged = ModelRunner(model, pool, kernel).forward(inputs, step)
    except (torch.OutOfMemoryError, MemoryError, UnsupportedModelError):
        raise
    except (RuntimeError, IndexError) as error:
        if parameter.is_meta:
            return
        raise UnsupportedModelError("kv_shape") from error
    except Exception as error:  # models may raise anything about missing arguments
        raise UnsupportedModelError(NO_INTERFACE) from error
    if sorted(step.calls) != list(range(geometry.layers)):
        raise UnsupportedModelError(NO_INTERFACE)
    if parameter.is_meta:
        return
    paged = check_logits(paged)
    plain = plain_logits(model) if expected is None else expected
    limit = 1e-4 if parameter.dtype == torch.float32 else 3e-2
    # Negated, so that NaN on either side is a difference.
    if not (paged[0] - plain).abs().max() <= limit * plain.abs().max():
        raise UnsupportedModelError("logits")


@torch.inference_mode()
def plain_logits(model: torch.nn.Module) -> torch.Tensor:
    """Last logits [vocabulary] of :func:`probe`'s tokens, with Transformers' own attention."""
    device = next(model.parameters()).device
    input_ids = torch.tensor([_PROBED], device=device)
    if has_own_attention(model):
        return model(input_ids=input_ids, use_cache=False).logits[0, -1]  # type: ignore[no-any-return]
    set_attention = model.set_attn_implementation
    assert callable(set_attention)
    set_attention("sdpa")
    try:
        return model(input_ids=input_ids, use_cache=False).logits[0, -1]
    finally:
        set_attention(ATTENTION)
