"""How vLLM lays out the KV cache of a model whose layers differ: groups, blocks, capacity.

    layers      f w w w w w f w w w w w     f: full attention, w: a sliding window
    groups      [f f] [w w] [w w] [w w] [w w] [w w]       equally many layers in each
    pool        blocks of (layers of a group × page); any group may take any block

A request has a block table for each group. Layers that keep as many slots of equal size for any
request form one group; otherwise pages are unified, and layers are dealt out to groups of equal
size. A pool's block then belongs to one group at a time.

Follows vLLM 0.32 and 0.33, ``v1/core/kv_cache_utils.py`` and ``v1/kv_cache_interface.py``, with
separate memory for each layer (FlashAttention, FlashMLA).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvsim.base.coded_error import CodedError
from kvsim.core.blocks import blocks_needed
from kvsim.sizing.vllm_capacity import VllmCapacity

LayerKind = Literal["full", "latent", "window", "chunked", "state"]
# Kinds that keep every token.
_WHOLE = ("full", "latent")
# Below this ratio of the largest kind to the smallest, a group takes as many layers as the largest.
_ALIKE = 1.5
_UNLIMITED = 1 << 62


class LayoutError(CodedError):
    """vLLM has no layout for these layers.

    Attributes:
        code: ``pages``: their pages cannot be unified.
        params: values for the message.
    """


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps, on one rank.

    Attributes:
        kind: full: K and V of every token; latent: one vector of every token; window, chunked: of
            the tokens in a window or chunk; state: a state of the request.
        token_bytes: of one token; of a ``state``, bytes of the state.
        span: tokens of the window or chunk; else 0.
        block_size: tokens of a block.
        shape: distinguishes layers of equal bytes, such as (KV heads, head size).
        page_padded: bytes to which its page is padded; None: it is not.
        states: states that a request keeps at once, one block each.
    """

    kind: LayerKind
    token_bytes: int
    block_size: int
    span: int = 0
    shape: tuple[int, ...] = ()
    page_padded: int | None = None
    states: int = 1

    @property
    def name(self) -> str:
        """The kind; ``indexer`` for the keys of a sparse attention's index, which have no heads."""
        return "indexer" if self.kind == "latent" and self.shape[:1] == (0,) else self.kind

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in this layer."""
        if self.page_padded is not None:
            return self.page_padded
        return self.token_bytes * (1 if self.kind == "state" else self.block_size)


def token_bytes(layers: Sequence[LayerCache]) -> int:
    """Return the bytes of a token in all layers, windows and chunks as if they kept every token."""
    return sum(layer.token_bytes for layer in layers if layer.kind != "state")


@dataclass(frozen=True, slots=True)
class Service:
    """Limits that decide how many blocks a request may take.

    Attributes:
        max_length: tokens of the longest request.
        max_num_batched_tokens: tokens of a step.
        concurrent_batches: steps in flight: 2 with asynchronous scheduling, and one more for each
            further pipeline stage; windows and chunks keep what is in flight.
    """

    max_length: int
    max_num_batched_tokens: int = 8192
    concurrent_batches: int = 2

    @property
    def in_flight(self) -> int:
        """Tokens that are scheduled and not settled."""
        return self.concurrent_batches * self.max_num_batched_tokens

    @property
    def decoding(self) -> Service:
        """The same for a request that generates: one token in flight."""
        return Service(self.max_length, max_num_batched_tokens=1, concurrent_batches=1)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with one block table. ``layers`` are indices; ``cache`` is that of each of them."""

    layers: tuple[int, ...]
    cache: tuple[LayerCache, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of one block over its layers."""
        return sum(cache.page_bytes for cache in self.cache)

    def blocks(self, service: Service, length: int | None = None) -> int:
        """Return the most blocks of a request of ``length`` tokens, by default the maximum."""
        return max(_blocks(cache, service, length or service.max_length) for cache in self.cache)


def _blocks(cache: LayerCache, service: Service, length: int) -> int:
    if cache.kind == "state":
        return cache.states
    if cache.kind == "window":
        kept = min(cache.span - 1 + service.in_flight, length)
        # One more: a window need not begin where a block does.
        return blocks_needed(kept, cache.block_size) + 1
    if cache.kind == "chunked":
        return blocks_needed(min(cache.span + service.in_flight, length), cache.block_size)
    return blocks_needed(length, cache.block_size)


@dataclass(frozen=True, slots=True)
class Layout:
    """The groups of a model.

    ``stages``: layers of each pipeline stage; empty: of one.
    """

    groups: tuple[CacheGroup, ...]
    stages: Sequence[Sequence[int]] = ()

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool: those of the largest group, on the largest stage.

        All stages have as many blocks as that one.
        """
        if not self.stages:
            return max(group.page_bytes for group in self.groups)
        return max(self._block_bytes(set(stage)) for stage in self.stages)

    @property
    def padding_layers(self) -> int:
        """Layers that would fill the smaller groups; their memory stays unused."""
        sizes = [len(group.layers) for group in self.groups]
        return sum(max(sizes) - size for size in sizes)

    def request_blocks(self, service: Service, length: int | None = None) -> int:
        """Return the blocks of a request of ``length`` tokens, by default the maximum length."""
        return sum(group.blocks(service, length) for group in self.groups)

    def prompt_blocks(self, service: Service, prompt: int) -> int:
        """Return the most blocks that a request has while its prompt is computed in chunks.

        Windows and chunks keep what is in flight until it is settled. The most are those of the
        last whole chunk or of the last one.
        """
        chunk = service.max_num_batched_tokens
        most = 0
        for end in {prompt // chunk * chunk, prompt} - {0}:
            settled = max(0, (-(-end // chunk) - service.concurrent_batches) * chunk)
            kept = Service(service.max_length, end - settled, concurrent_batches=1)
            most = max(most, self.request_blocks(kept, end))
        return most

    def fixed_bytes(self, service: Service) -> int:
        """Return the bytes of a long request in groups that keep no more for further tokens."""
        return self.block_bytes * sum(
            group.blocks(service, _UNLIMITED)
            for group in self.groups
            if not any(cache.kind in _WHOLE for cache in group.cache)
        )

    def capacity(self, memory_bytes: int, service: Service) -> VllmCapacity:
        """Return what vLLM prints for ``memory_bytes`` of KV cache on each rank."""
        blocks = memory_bytes // self.block_bytes
        return VllmCapacity(blocks, self.request_blocks(service), service.max_length)

    def _block_bytes(self, stage: set[int]) -> int:
        """Bytes of a block on a pipeline stage."""
        return max(
            sum(
                cache.page_bytes
                for layer, cache in zip(group.layers, group.cache, strict=True)
                if layer in stage
            )
            for group in self.groups
        )


def lay_out(layers: Sequence[LayerCache], stages: Sequence[Sequence[int]] = ()) -> Layout:
    """Gather layers into groups.

    Args:
        stages: layers of each pipeline stage; empty: of one.

    Raises:
        LayoutError: ``pages``.
        ValueError: no layer keeps anything.
    """
    if not layers:
        raise ValueError("no layer keeps anything")
    if _needs_alike(layers):
        return Layout((CacheGroup(tuple(range(len(layers))), tuple(layers)),), stages)
    try:
        layers = _unified(layers)
    except LayoutError:
        promoted = _promoted(layers)
        if promoted is None:
            raise
        return Layout((CacheGroup(tuple(range(len(layers))), tuple(promoted)),), stages)
    return Layout(tuple(_dealt(layers)), stages)


def _needs_alike(layers: Sequence[LayerCache]) -> bool:
    """Whether all layers need as many blocks as each other for any request."""
    if len({layer.block_size for layer in layers}) > 1:
        return False
    first = layers[0]
    if first.kind in _WHOLE:
        return all(layer.kind in _WHOLE for layer in layers)
    same = all((layer.kind, layer.span) == (first.kind, first.span) for layer in layers)
    if first.kind == "state":
        return same and len({layer.page_bytes for layer in layers}) == 1
    return same


def _unified(layers: Sequence[LayerCache]) -> list[LayerCache]:
    """Raise block sizes, or pad pages, until all pages are equal."""
    page = max(layer.page_bytes for layer in layers)
    return [_with_page(layer, page) for layer in layers]


def _with_page(layer: LayerCache, page: int) -> LayerCache:
    own = layer.page_bytes
    if own == page:
        return layer
    if layer.kind != "state" and page % own == 0:
        padded = layer.page_padded
        return replace(
            layer,
            block_size=layer.block_size * (page // own),
            page_padded=page if padded is not None else None,
        )
    if layer.kind == "latent":
        raise LayoutError("pages", kind=layer.kind, page=own, largest=page)
    return replace(layer, page_padded=page)


def _promoted(layers: Sequence[LayerCache]) -> list[LayerCache] | None:
    """Treat windows next to latent layers as full attention; None where vLLM does not."""
    kinds = {layer.kind for layer in layers}
    if kinds != {"latent", "window"} and kinds != {"latent", "full", "window"}:
        return None
    sizes = {layer.block_size for layer in layers if layer.kind in _WHOLE}
    size = sizes.pop() if len(sizes) == 1 else None
    made = [
        replace(layer, kind="full", span=0, block_size=size or layer.block_size)
        if layer.kind == "window"
        else layer
        for layer in layers
    ]
    return made if _needs_alike(made) else None


def _dealt(layers: Sequence[LayerCache]) -> list[CacheGroup]:
    """Deal layers of each kind out to groups of equal size, one after another."""
    gathered: dict[LayerCache, list[int]] = {}
    for index, layer in enumerate(layers):
        gathered.setdefault(layer, []).append(index)
    counts = [len(indices) for indices in gathered.values()]
    size = min(counts)
    if max(counts) < size * _ALIKE:
        size = max(counts)
    groups = []
    for layer, indices in gathered.items():
        count = blocks_needed(len(indices), size)
        for first in range(count):
            mine = indices[first::count]
            groups.append(CacheGroup(tuple(mine), (layer,) * len(mine)))
    return groups
