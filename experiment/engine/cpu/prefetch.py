"""Prefetch memory in loops compiled by Numba.

The hardware prefetcher follows consecutive addresses within a page, but not a block table.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 64  # bytes of a cache line
# Arguments of ``llvm.prefetch``: read, second-level cache, data.
_ARGUMENTS = (0, 2, 1)
_BYTE, _SHORT = ir.IntType(8), ir.IntType(32)


def prefetch(builder: Any, address: Any) -> None:
    """Emit a prefetch of the line at an address, which need not be valid."""
    place = _BYTE.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [place, *[_SHORT] * len(_ARGUMENTS)])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    constants = [_SHORT(number) for number in _ARGUMENTS]
    builder.call(function, [builder.inttoptr(address, place), *constants])


@intrinsic  # type: ignore[untyped-decorator]
def prefetch_line(_context: Any, address: Any) -> Any:
    """Call :func:`prefetch` in a compiled loop."""

    def code(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(address), code
