"""Loop over the inputs of a panel product, in LLVM instructions: CPU, float32.

    with AVX-512: 32 registers of 16 numbers        with AVX2: 16 registers of 8
    a  ████ ████ ████ ████   six rows at most,      a  ██ ██ ██   four rows at most, 24 outputs;
    …                        all 64 outputs         …             the last pass over a panel 16
    f  ████ ████ ████ ████                          d  ██ ██ ██   (alone: one 64, two 32, four 16)

Each number of a panel and of x is loaded once per tile, so a square tile needs the fewest loads.
Six rows of 16 outputs also fill AVX2's registers, but need eight instead of seven loads for twelve
products. They are up to a tenth slower.

Numba does not vectorise this loop: it would keep the sums in memory.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from experiment.engine.cpu.prefetch import LINE, prefetch
from experiment.engine.cpu.vectors import LANES, SHORT, VECTOR

WIDTH = 64  # outputs of a panel
INPUT_BYTES = 4 * WIDTH  # bytes of a panel for each input
WIDE = LANES == 16
MAX_TILE_ROWS = 6 if WIDE else 4  # rows whose sums fit the registers
# Vectors of each row in a tile: by the number of rows if one tile has them all, else for any tile.
WHOLE_VECTORS = (0, *[4] * MAX_TILE_ROWS) if WIDE else (0, 8, 4, 3, 2)
PART_VECTORS = 4 if WIDE else 3
# Compiled tiles: rows and vectors.
_TILES = (
    [(rows, 4) for rows in range(1, MAX_TILE_ROWS + 1)]
    if WIDE
    else [(1, 8), (2, 4), *((rows, vectors) for rows in (2, 3, 4) for vectors in (2, 3))]
)
# Inputs of an iteration, which divides their number. A prefetch costs as much as a load, and AVX2's
# many passes need less than one for each input.
UNROLL = 1 if WIDE else 4
_LINES = 2 * UNROLL  # maximum prefetches of an iteration
_FLOAT, _WORD = ir.FloatType(), ir.IntType(64)

Sums = list[list[Any]]  # [rows][vectors]


class _Loop:
    """Instructions of the loop for one size of tile, in rows and vectors of outputs."""

    def __init__(self, builder: Any, rows: int, vectors: int) -> None:
        self.builder, self.rows = builder, rows
        self.vectors = range(vectors)
        self.fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        )

    def emit(
        self, x: Any, x_stride: Any, inputs: Any, panel: Any, sums: Any, sum_stride: Any,
        ahead: Any, stride: Any,
    ) -> None:  # fmt: skip
        """Add the products of at least one iteration of inputs to the sums.

        ``x_stride`` and ``sum_stride`` are distances between rows, in numbers. With each input,
        ``stride`` bytes from the address ``ahead`` on are prefetched, at most two lines.
        """
        builder, before = self.builder, self.builder.block
        stored = self._places(sums, sum_stride)
        begun = [[self._load(at, VECTOR) for at in row] for row in stored]
        loop, done = (builder.append_basic_block(name) for name in ("inputs", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_WORD)
        old = [[builder.phi(VECTOR) for _ in self.vectors] for _ in range(self.rows)]
        self._prefetch(k, ahead, stride)
        new = self._iteration(old, self._at(x, k, 4), builder.mul(x_stride, _word(4)),
                         self._at(panel, k, INPUT_BYTES))  # fmt: skip
        following, last = builder.add(k, _word(UNROLL)), builder.block
        builder.cbranch(builder.icmp_signed("<", following, inputs), loop, done)
        for phi, first, again in [(k, _word(0), following), *_triples(old, begun, new)]:
            phi.add_incoming(first, before)
            phi.add_incoming(again, last)
        builder.position_at_end(done)
        for at, _, total in _triples(stored, begun, new):
            builder.store(total, builder.inttoptr(at, VECTOR.as_pointer()), align=4)

    def _prefetch(self, k: Any, ahead: Any, stride: Any) -> None:
        """Prefetch the lines of an iteration: one, two, or all."""
        builder = self.builder
        wanted = builder.add(ahead, builder.mul(k, stride))
        if UNROLL == 1:
            _lines(builder, wanted, range(_LINES))
            return
        bytes_ = builder.mul(stride, _word(UNROLL))
        _lines(builder, wanted, range(1))
        with builder.if_then(builder.icmp_signed(">", bytes_, _word(LINE))):
            _lines(builder, wanted, range(1, 2))
            with builder.if_then(builder.icmp_signed(">", bytes_, _word(2 * LINE))):
                _lines(builder, wanted, range(2, _LINES))

    def _iteration(self, sums: Sums, x: Any, row_bytes: Any, panel: Any) -> Sums:
        for one in range(UNROLL):
            number, weights = (
                self._at(at, _word(one), size) for at, size in ((x, 4), (panel, INPUT_BYTES))
            )
            sums = self._step(sums, number, row_bytes, weights)
        return sums

    def _places(self, sums: Any, sum_stride: Any) -> Sums:
        """Addresses of the sums."""
        builder = self.builder
        rows = [self._at(sums, builder.mul(sum_stride, _word(r)), 4) for r in range(self.rows)]
        return [[builder.add(at, _word(4 * LANES * v)) for v in self.vectors] for at in rows]

    def _step(self, sums: Sums, x: Any, row_bytes: Any, weights: Any) -> Sums:
        """Sums after one input: each row's number times weights of the panel."""
        panel = [self._load(self._at(weights, _word(v), 4 * LANES), VECTOR) for v in self.vectors]
        new = []
        for r in range(self.rows):
            at = self.builder.add(x, self.builder.mul(row_bytes, _word(r)))
            factor = self._all_lanes(self._load(at, _FLOAT))
            pairs = zip(panel, sums[r], strict=True)
            new.append([self.builder.call(self.fma, [factor, w, s]) for w, s in pairs])
        return new

    def _at(self, address: Any, index: Any, size: int) -> Any:
        return self.builder.add(address, self.builder.mul(index, _word(size)))

    def _load(self, address: Any, kind: Any) -> Any:
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = 4
        return loaded

    def _all_lanes(self, number: Any) -> Any:
        nothing = ir.Constant(VECTOR, ir.Undefined)
        one = self.builder.insert_element(nothing, number, ir.Constant(SHORT, 0))
        mask = ir.Constant(ir.VectorType(SHORT, LANES), [0] * LANES)
        return self.builder.shuffle_vector(one, nothing, mask)


def _word(value: int) -> Any:
    return ir.Constant(_WORD, value)


def _lines(builder: Any, wanted: Any, which: range) -> None:
    for line in which:
        prefetch(builder, builder.add(wanted, _word(line * LINE)))


def _triples(*of_rows: Sums) -> list[tuple[Any, ...]]:
    return [some for rows in zip(*of_rows, strict=True) for some in zip(*rows, strict=True)]


@intrinsic  # type: ignore[untyped-decorator]
def add_products(
    _context: Any, rows: Any, vectors: Any, x: Any, x_stride: Any, inputs: Any, panel: Any,
    sums: Any, sum_stride: Any, ahead: Any, stride: Any
) -> Any:  # fmt: skip
    """Call :meth:`_Loop.emit` for a compiled tile; other sizes add nothing."""
    operands = (x, x_stride, inputs, panel, sums, sum_stride, ahead, stride)

    def code(context: Any, builder: Any, _: Any, values: Any) -> Any:
        rows, vectors, *numbers = values
        done = builder.append_basic_block("added")
        tile = builder.switch(builder.add(builder.mul(rows, _word(LANES)), vectors), done)
        for size in _TILES:
            block = builder.append_basic_block("tile")
            tile.add_case(_word(size[0] * LANES + size[1]), block)
            builder.position_at_end(block)
            _Loop(builder, *size).emit(*numbers)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(rows, vectors, *operands), code
