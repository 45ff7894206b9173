"""Release pages of a mapped weight file when a weight is no longer needed.

    file      | h.0 | h.1 | h.2 | wte |        one mapping; a tensor is a piece of it
    memory      x     x     .     .            x: touched, so it counts as the process's

Dropping a tensor leaves its pages in the process until the last tensor of the file is dropped.
``madvise(MADV_DONTNEED)`` releases them; a later access reads the file again.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import torch

_MAPS = Path("/proc/self/maps")


def release_pages(tensor: torch.Tensor) -> bool:
    """Release the whole pages of an unused tensor; return whether this was done.

    Only for a tensor mapped from a file: other memory would be lost. Pages shared with adjacent
    tensors stay.
    """
    if sys.platform != "linux" or not tensor.is_contiguous():
        return False
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= begin or not _from_a_file(begin, end):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    done: int = library.madvise(
        ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED
    )
    return done == 0


def _from_a_file(begin: int, end: int) -> bool:
    """Whether one private mapping of a file contains the addresses [begin, end)."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        # 7fb941c00000-7fb9428e8000 rw-p 00000000 fe:00 16039958      /models/model.safetensors
        where, mode, _, _, inode, *_ = line.split(maxsplit=5)
        first, last = (int(part, 16) for part in where.split("-"))
        if first <= begin and end <= last:
            return inode != "0" and mode.endswith("p")
    return False
