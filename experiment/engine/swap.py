"""Blocks between the pool on the device and its twin in host memory.

    on the CPU          content copied from tensor to tensor

    on CUDA             out                                      back
    compute stream      gather ─┬─► poison, forward ...          wait ─► scatter, forward ...
    copy stream                 └─► staged ─► pinned memory      pinned memory ─► staged ─┘
                                    while the model runs         behind every copy out

A block that goes out is gathered into a tensor of its own first: its place in the pool may be
given away at once, and the copy over the bus runs beside the model. A block that comes back is
needed by the very step that asks for it, so the model waits for that copy, and for no other.
Pinned memory is laid out with blocks outermost, so that each block is one piece for the copy.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

import torch

from experiment.engine.quantized import bits
from experiment.engine.step_inputs import to_device


class Streams(Protocol):
    """The stream that computes and one beside it that copies."""

    def copying(self) -> AbstractContextManager[None]:
        """What is launched within goes to the copying stream."""
        ...

    def copy_after_compute(self) -> None:
        """What is copied from now on waits for what was computed until now."""
        ...

    def compute_after_copy(self) -> None:
        """What is computed from now on waits for what was copied until now."""
        ...

    def keep(self, tensor: torch.Tensor) -> None:
        """Both streams use ``tensor``: its memory is free when both have done with it."""
        ...

    def settle(self) -> None:
        """Wait on the host until all copies are done."""
        ...

    def host(self, size: int) -> torch.Tensor:
        """Host memory of ``size`` bytes, pinned where that can be done."""
        ...


class CudaStreams:
    """Streams and events of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda: Any = torch.cuda  # torch leaves some of these without types
        self._device = device
        self._side = self._cuda.Stream(device)

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Launch on the side stream."""
        with self._cuda.stream(self._side):
            yield

    def copy_after_compute(self) -> None:
        """The side stream waits for an event of the main one."""
        self._side.wait_event(self._cuda.current_stream(self._device).record_event())

    def compute_after_copy(self) -> None:
        """The main stream waits for an event of the side one."""
        self._cuda.current_stream(self._device).wait_event(self._side.record_event())

    def keep(self, tensor: torch.Tensor) -> None:
        """Tell torch's allocator of both."""
        tensor.record_stream(self._side)
        tensor.record_stream(self._cuda.current_stream(self._device))

    def settle(self) -> None:
        """Wait for the side stream."""
        self._side.synchronize()

    def host(self, size: int) -> torch.Tensor:
        """Pin exactly these bytes, in pages of their own: torch takes a power of two."""
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        address = memory.data_ptr()
        if int(self._cuda.cudart().cudaHostRegister(address, size, 0)) == 0:
            weakref.finalize(pages, self._unpin, address).atexit = False
        else:
            # Copies are right without it; CUDA would report the error with the next kernel.
            with suppress(RuntimeError):
                torch.zeros(1, device=self._device)
        return memory

    def _unpin(self, address: int) -> None:
        self.settle()
        self._cuda.cudart().cudaHostUnregister(address)


class Transfers:
    """Copies that are done when the call returns; any device.

    Tensors are [layers, 2, blocks, ...] on both sides; ``blocks`` and ``places`` name them there.
    """

    def host(self, shape: Sequence[int], poison: float, dtype: torch.dtype) -> torch.Tensor:
        """Host memory of a shape, filled with poison."""
        return torch.full(tuple(shape), poison, dtype=dtype)

    def out(
        self, device: torch.Tensor, blocks: Sequence[int], host: torch.Tensor,
        places: Sequence[int],
    ) -> None:  # fmt: skip
        """Blocks of the device to places of the host."""
        bits(host)[:, :, list(places)] = bits(device)[:, :, list(blocks)].to("cpu")

    def back(
        self, device: torch.Tensor, blocks: Sequence[int], host: torch.Tensor,
        places: Sequence[int],
    ) -> None:  # fmt: skip
        """Places of the host to blocks of the device."""
        content = bits(host)[:, :, list(places)]
        bits(device)[:, :, list(blocks)] = content.to(device.device)

    def settle(self) -> None:
        """Wait until host memory holds what was sent there."""


class StreamTransfers(Transfers):
    """Copies over pinned memory on a stream of their own, as drawn above."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def host(self, shape: Sequence[int], poison: float, dtype: torch.dtype) -> torch.Tensor:
        """Pinned memory with blocks outermost, seen as [layers, 2, blocks, ...]."""
        layers, two, blocks, *tail = shape
        outermost = (blocks, layers, two, *tail)
        memory = self._streams.host(math.prod(outermost) * dtype.itemsize)
        return memory.view(dtype).view(outermost).fill_(poison).movedim(0, 2)

    def out(
        self, device: torch.Tensor, blocks: Sequence[int], host: torch.Tensor,
        places: Sequence[int],
    ) -> None:  # fmt: skip
        """Gather now; copy beside what is computed next."""
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
        """Copy behind all copies out, and let the computation wait for it."""
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
        """Wait for the copying stream."""
        self._streams.settle()


def transfers_for(device: torch.device) -> Transfers:
    """The fastest way that the device has."""
    return StreamTransfers(CudaStreams(device)) if device.type == "cuda" else Transfers()
