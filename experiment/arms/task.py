"""What the runner asks of an arm's process."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict

from experiment.config.kv_dtype import cache_geometry
from experiment.config.schema import Config
from experiment.events import ModelPrepared, WorkloadReady
from kvsim.sizing.geometry import KVGeometry


class ArmTask(BaseModel):
    """The arm, what was prepared for it, and where its files go."""

    model_config = ConfigDict(frozen=True)

    arm: str
    config: Config
    device: str
    directory: str
    model: ModelPrepared
    workload: WorkloadReady
    logs: str | None = None  # directory for files that are no part of the record

    @property
    def geometry(self) -> KVGeometry:
        """Shape of the KV cache."""
        m = self.model
        return KVGeometry(m.layers, m.kv_heads, m.head_dim, m.element_bytes)

    @property
    def cache_geometry(self) -> KVGeometry:
        """Shape of the cache of the paged engine, in the precision that the config names."""
        return cache_geometry(self.geometry, self.config.cache.kv_dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of weights, and of the cache where the config names no other."""
        dtype = getattr(torch, self.model.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def slabs(self) -> int:
        """Slabs of the maximum length that the budget holds."""
        return self.geometry.blocks_in(self.workload.budget_bytes, self.workload.max_length)
