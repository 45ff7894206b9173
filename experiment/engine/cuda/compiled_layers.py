"""torch.compile for the model's layers while decode steps are captured, except our attention.

    layer     norm, projections, rotation │ attention │ projection, norm, feed-forward part
              compiled                      eager       compiled

In Transformers' modules a norm or rotation is several kernels, each as short as its launch; the
compiler fuses them. The captured graphs keep the kernels, so the model is restored afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from experiment.engine.attention.interface import ATTENTION, paged_attention


@contextmanager
def compiled_layers(model: torch.nn.Module, backend: str = "inductor") -> Iterator[None]:
    """Run the layers of a model compiled in the block.

    Args:
        model: a Transformers model; its layers share the code compiled for one of them.
        backend: of ``torch.compile``.

    Raises:
        RuntimeError: the model has no such layers, or one cannot be compiled.
    """
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    if not layers:
        raise RuntimeError("no layers of Transformers' own kind to compile")
    compiler: Any = torch.compiler  # torch has no types for some of it
    try:
        AttentionInterface.register(ATTENTION, compiler.disable(paged_attention))
        for layer in layers:
            # Batches of every captured size; a size of 1 is always specialised.
            layer.forward = torch.compile(layer.forward, backend=backend, dynamic=True)
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)  # restores the method of the class
        AttentionInterface.register(ATTENTION, paged_attention)
