"""Sending for memory ahead of its use, in loops that Numba compiles.

A processor reads ahead by itself where addresses follow each other, page by page. Where the next
block stands in a table, only the program knows what comes next.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 64  # bytes that come together
# What ``llvm.prefetch`` is told: to read, into the second-level cache, and no instructions.
_TOLD = (0, 2, 1)
_BYTE, _SHORT = ir.IntType(8), ir.IntType(32)


def prefetch(builder: Any, address: Any) -> None:
    """Write an instruction that sends for the line at an address; any number will do for one."""
    place = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [place, *[_SHORT] * len(_TOLD)])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    told = [_SHORT(number) for number in _TOLD]
    builder.call(function, [builder.inttoptr(address, place), *told])


@intrinsic  # type: ignore[untyped-decorator]
def send_for(_context: Any, address: Any) -> Any:
    """The same for a compiled loop."""

    def code(context: Any, builder: Any, _: Any, given: Any) -> Any:
        prefetch(builder, given[0])
        return context.get_dummy_value()

    return types.void(address), code
