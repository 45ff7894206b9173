"""A model's layers compiled by torch while decoding steps are captured, but for our attention.

    layer     norm, projections, rotation │ attention │ projection, norm, feed-forward part
              compiled                      as it is    compiled

In Transformers' modules a norm or a rotation is several kernels, each as short as its launch; the
compiler joins them. The captured graphs keep its kernels, so nothing stays changed in the model.
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
    """Within it the layers of a model run compiled.

    Args:
        model: one of Transformers'; all its layers share what is compiled for one of them.
        backend: of ``torch.compile``.

    Raises:
        RuntimeError: none of its modules is such a layer, or one cannot be compiled.
    """
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    if not layers:
        raise RuntimeError("no layers of Transformers' own kind to compile")
    compiler: Any = torch.compiler  # torch leaves some of it without types
    try:
        AttentionInterface.register(ATTENTION, compiler.disable(paged_attention))
        for layer in layers:
            # Batches of every captured size; a size of 1 is compiled apart in any case.
            layer.forward = torch.compile(layer.forward, backend=backend, dynamic=True)
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)  # what the class says stands again
        AttentionInterface.register(ATTENTION, paged_attention)
