"""Task of an arm's process."""

from __future__ import annotations

import torch

from experiment.config.kv_dtype import cache_geometry
from experiment.config.schema import Config
from experiment.workload.arm_reporter import PreparedTask
from kvsim.sizing.geometry import KVGeometry


class ArmTask(PreparedTask):
    """Task of an arm on our interpreter."""

    config: Config
    logs: str | None = None  # directory for files outside of the record

    @property
    def geometry(self) -> KVGeometry:
        """Geometry of the KV cache in the model's dtype."""
        m = self.model
        return KVGeometry(m.layers, m.kv_heads, m.head_dim, m.element_bytes)

    @property
    def cache_geometry(self) -> KVGeometry:
        """Geometry of the paged engine's cache, in the configured dtype."""
        return cache_geometry(self.geometry, self.config.cache.kv_dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, and by default of the cache."""
        dtype = getattr(torch, self.model.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens of the model that end a request; none if they are ignored."""
        return () if self.config.workload.ignore_eos else self.model.eos_token_ids

    @property
    def slabs(self) -> int:
        """Number of slabs of the maximum length in the budget."""
        return self.geometry.blocks_in(self.workload.budget_bytes, self.workload.max_length)
