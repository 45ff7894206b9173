"""Bytes of K and V per token, from the shape of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.core.blocks import blocks_needed
from kvsim.sizing.fields import UnsupportedGeometryError, layer_count, text_config
from kvsim.sizing.layers import Serving, layer_caches, layer_kinds

__all__ = [
    "KVGeometry",
    "UnsupportedGeometryError",
    "geometry_from_config",
    "max_concurrent_requests",
]

# Models whose caches have no one shape, by a field of theirs.
_REFUSED_FIELDS = {
    "num_kv_shared_layers": "shared_layers",
    "global_head_dim": "head_sizes",
    "num_global_key_value_heads": "head_sizes",
    "index_head_dim": "indexer",
}
_REFUSED_KINDS = {"state": "recurrent", "chunked": "chunked", "indexer": "indexer"}


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """Shape of a KV cache: each layer has one key and one value per KV head and token.

        layer 0   K [kv_heads, head_dim]   V [kv_heads, head_dim]     one slot (token) spans
        layer 1   K                        V                          all layers
        ...

    Latent attention (DeepSeek's MLA) has one vector for both: ``tensors`` is 1.

    Attributes:
        head_dim: elements of one head; for MLA, latent rank + rotary part.
        tensors: 2 for K and V, 1 for MLA.
        scale_bytes: bytes of one scale of a quantised cache (per block, layer, KV head and K/V).
    """

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    tensors: int = 2
    scale_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one slot: 2 x layers x KV heads x head size x element size.

        Ignores sliding windows, like a pool with one block table for all layers.
        """
        return self.layers * self.tensors * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def scales_per_block(self) -> int:
        """Bytes of scales in one block: layers x (K and V) x KV heads x scale size."""
        return self.layers * self.tensors * self.kv_heads * self.scale_bytes

    def block_bytes(self, block_size: int) -> int:
        """Return the bytes of a block of ``block_size`` slots, scales included."""
        return block_size * self.bytes_per_token + self.scales_per_block

    def blocks_in(self, budget_bytes: int, block_size: int) -> int:
        """Return the whole blocks of ``block_size`` slots that fit in ``budget_bytes``."""
        return budget_bytes // self.block_bytes(block_size)


def geometry_from_config(config: Mapping[str, Any], element_bytes: int) -> KVGeometry:
    """Return the shape of a cache whose layers all have one, from a Transformers config.

    Raises:
        UnsupportedGeometryError: another kind of cache, with the reason.
        ValueError: a size is missing.
    """
    config = text_config(config)
    for name, reason in _REFUSED_FIELDS.items():
        if config.get(name):
            raise UnsupportedGeometryError(reason, name)
    for kind in {kind for kinds in layer_kinds(config) for kind in kinds}:
        if kind in _REFUSED_KINDS:
            raise UnsupportedGeometryError(_REFUSED_KINDS[kind], kind)
    caches = layer_caches(config, Serving(dtype_bytes=element_bytes, kv_bytes=element_bytes))
    if len(caches) != layer_count(config):
        raise UnsupportedGeometryError("layer_types", "layers without a cache")
    first = caches[0]
    if any(cache.shape != first.shape for cache in caches):
        raise UnsupportedGeometryError("head_sizes", "of layers")
    if first.kind == "latent":
        return KVGeometry(len(caches), 1, first.shape[1], element_bytes, tensors=1)
    kv_heads, head_dim, value_dim = first.shape
    if value_dim != head_dim:
        raise UnsupportedGeometryError("head_sizes", f"v_head_dim {value_dim}, head_dim {head_dim}")
    return KVGeometry(len(caches), kv_heads, head_dim, element_bytes)


def max_concurrent_requests(
    lengths: list[int], blocks: int, block_size: int, shared: Sequence[int] = ()
) -> int:
    """Return the maximum number of concurrent requests in ``blocks``, all at their final lengths.

    ``lengths`` are slots per request (see :func:`kvsim.core.request.final_tokens`), repeated in
    order. ``shared`` gives the leading positions that each request shares with the one before it;
    whole blocks of these are not counted again.

    Raises:
        ValueError: no lengths, or one below 1.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError("lengths must be positive")
    per_cycle = [blocks_needed(length, block_size) for length in lengths]
    if shared:
        per_cycle = [
            need - same // block_size for need, same in zip(per_cycle, shared, strict=True)
        ]
    return fitting_requests(per_cycle, blocks)


def fitting_requests(needs: Sequence[int], blocks: int) -> int:
    """Return how many requests fit at once, their needs in blocks repeated in order."""
    cycles, left = divmod(blocks, sum(needs))
    fitting = cycles * len(needs)
    for need in needs:
        if need > left:
            break
        left -= need
        fitting += 1
    return fitting
