"""Copy blocks between the pool on the device and host memory.

    on the CPU          content copied from tensor to tensor

    on CUDA             out                                      back
    compute stream      gather ─┬─► poison, forward ...          wait ─► scatter, forward ...
    copy stream                 └─► staged ─► pinned memory      pinned memory ─► staged ─┘
                                    while the model runs         after every copy out

A swapped-out block is first gathered into a staging tensor. Its block in the pool may be
reallocated at once, and the transfer overlaps with the model. A swapped-in block is needed by the
present step, so the model waits for that copy only. Pinned memory has blocks outermost, so that
each block is one transfer.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from experiment.engine.quantized import bits
from experiment.engine.step_inputs import to_device


class _Pages(mmap.mmap):
    """Memory that is unpinned before it is unmapped."""

    unpin: Callable[[], None] | None = None

    def __del__(self) -> None:
        if self.unpin is not None and not sys.is_finalizing():
            self.unpin()


class CudaStreams:
    """A compute stream and a copy stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda: Any = torch.cuda  # torch has no types for some of these
        self._device = device
        self._side = self._cuda.Stream(device)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Launch on the copy stream in the block."""
        with self._cuda.stream(self._side):
            yield

    def copy_after_compute(self) -> None:
        """Make later copies wait for earlier computation."""
        self._side.wait_event(self._cuda.current_stream(self._device).record_event())

    def compute_after_copy(self) -> None:
        """Make later computation wait for earlier copies."""
        self._cuda.current_stream(self._device).wait_event(self._side.record_event())

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the memory of ``tensor`` until both streams have finished with it."""
        tensor.record_stream(self._side)
        tensor.record_stream(self._cuda.current_stream(self._device))

    def settle(self) -> None:
        """Block the host until all copies are done."""
        self._side.synchronize()

    def host(self, size: int) -> torch.Tensor:
        """Pin exactly these bytes, in separate pages; torch would round up to a power of two."""
        pages = _Pages(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        address = memory.data_ptr()
        if int(self._cuda.cudart().cudaHostRegister(address, size, 0)) == 0:
            pages.unpin = partial(self._unpin, address)
        else:
            # Copies work without pinning; clear the error, which CUDA would report with the next
            # kernel.
            with suppress(RuntimeError):
                torch.zeros(1, device=self._device)
        return memory

    def _unpin(self, address: int) -> None:
        self.settle()
        self._cuda.cudart().cudaHostUnregister(address)


class Transfers:
    """Synchronous copies; any device.

    Tensors are [layers, 2, blocks, ...] on both sides; ``blocks`` indexes the device, ``places``
    the host.
    """

    def host(self, shape: Sequence[int], poison: float, dtype: torch.dtype) -> torch.Tensor:
        """Host memory of a shape, filled with poison."""
        return torch.full(tuple(shape), poison, dtype=dtype)

    def out(
        self, device: torch.Tensor, blocks: Sequence[int], host: torch.Tensor,
        places: Sequence[int],
    ) -> None:  # fmt: skip
        """Copy blocks of the device to the host."""
        bits(host)[:, :, list(places)] = bits(device)[:, :, list(blocks)].to("cpu")

    def back(
        self, device: torch.Tensor, blocks: Sequence[int], host: torch.Tensor,
        places: Sequence[int],
    ) -> None:  # fmt: skip
        """Copy blocks of the host to the device."""
        content = bits(host)[:, :, list(places)]
        bits(device)[:, :, list(blocks)] = content.to(device.device)

    def settle(self) -> None:
        """Wait for pending copies to the host."""


class StreamTransfers(Transfers):
    """Asynchronous copies with pinned memory on a separate stream, as drawn above."""

    def __init__(self, streams: CudaStreams) -> None:
        self._streams = streams

    def host(self, shape: Sequence[int], poison: float, dtype: torch.dtype) -> torch.Tensor:
        """Pinned memory with blocks outermost, viewed as [layers, 2, blocks, ...]."""
        layers, two, blocks, *tail = shape
        outermost = (blocks, layers, two, *tail)
        memory = self._streams.host(math.prod(outermost) * dtype.itemsize)
        return memory.view(dtype).view(outermost).fill_(poison).movedim(0, 2)

    def out(
        self, device: torch.Tensor, blocks: Sequence[int], host: torch.Tensor,
        places: Sequence[int],
    ) -> None:  # fmt: skip
        """Gather now; copy concurrently with later computation."""
        index = to_device(torch.tensor(list(blocks)), device.device)
        staged = bits(device).movedim(2, 0).index_select(0, index)
        self._streams.copy_after_compute()
        held = bits(host).movedim(2, 0)
        with self._streams.copying():
            for row, place in enumerate(places):
                held[place].copy_(staged[row], non_blocking=True)
        self._streams.keep(staged)

    def back(
        self, device: torch.Tensor, blocks: Sequence[int], host: torch.Tensor,
        places: Sequence[int],
    ) -> None:  # fmt: skip
        """Copy after all copies out, and make the computation wait for it."""
        held = bits(host).movedim(2, 0)
        with self._streams.copying():
            shape = (len(places), *held.shape[1:])
            staged = torch.empty(shape, dtype=held.dtype, device=device.device)
            for row, place in enumerate(places):
                staged[row].copy_(held[place], non_blocking=True)
        self._streams.compute_after_copy()
        self._streams.keep(staged)
        index = to_device(torch.tensor(list(blocks)), device.device)
        bits(device).index_copy_(2, index, staged.movedim(0, 2))

    def settle(self) -> None:
        """Wait for the copy stream."""
        self._streams.settle()


def transfers_for(device: torch.device) -> Transfers:
    """The fastest transfers of the device."""
    return StreamTransfers(CudaStreams(device)) if device.type == "cuda" else Transfers()
