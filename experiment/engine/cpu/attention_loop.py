"""The two loops of attention over slots that follow each other, in LLVM's own instructions.

    scores     16 slots, one after another:  sums of 16 lanes each      brought together in pairs:
               q · k0   ████████████████                                k0 ████▒▒▒▒ k1  ──► …
               q · k1   ████████████████     …                          15 times for 16 scores
    values     of each slot in turn:  acc += w · v, the whole head in registers

Memory is read front to back, once, with two instructions for a line beside its products: the fewer
there are, the more lines a processor sees ahead and has on their way at once. It is for processors
with AVX-512; what Numba makes of plain loops reads four slots at a time, in turns, and keeps the
values' sums in memory.

A score's sum has one order, whatever its place among the 16, and values are added in the order of
their slots: numbers do not depend on how slots are divided into blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from experiment.engine.cpu.compiled import jit
from experiment.engine.cpu.vectors import LANES, SHORT, VECTOR, other_processor

# With half as many registers the 16 sums would not stay in them.
_HAS_REGISTERS = LANES == 16 and not other_processor()
# Vectors of a head that are compiled, for heads of 32, 64, 80, 96 and 128 numbers: each takes its
# time. With eight of them and 16 sums, 24 of 32 registers are used.
_VECTORS = (2, 4, 5, 6, 8)
_FLOAT, _WORD = ir.FloatType(), ir.IntType(64)
_LINE = 4 * LANES  # bytes of a vector


class _Code:
    """Writes instructions; addresses are whole numbers."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        )

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._fma, [a, b, c])

    def at(self, address: Any, index: Any, size: int) -> Any:
        """The address of an element; ``index`` is a number of ours or of the program's."""
        if isinstance(index, int):
            return self.builder.add(address, _word(index * size))
        return self.builder.add(address, self.builder.mul(index, _word(size)))

    def load(self, address: Any, kind: Any = VECTOR) -> Any:
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = 4
        return loaded

    def store(self, value: Any, address: Any) -> None:
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=4)

    def all_lanes(self, number: Any) -> Any:
        nothing = ir.Constant(VECTOR, ir.Undefined)
        one = self.builder.insert_element(nothing, number, ir.Constant(SHORT, 0))
        return self._shuffle(one, nothing, [0] * LANES)

    def together(self, sums: list[Any]) -> Any:
        """The sums of the lanes of 16 vectors as one vector, each lane's in the same order."""
        width = LANES
        while len(sums) > 1:
            width //= 2
            pairs = zip(sums[: len(sums) // 2], sums[len(sums) // 2 :], strict=True)
            sums = [self._halves(a, b, width) for a, b in pairs]
        return sums[0]

    def alone(self, total: Any) -> Any:
        """The sum of the lanes of one vector, in the order of :meth:`together`."""
        width = LANES
        while width > 1:
            width //= 2
            total = self._halves(total, total, width)
        return self.builder.extract_element(total, ir.Constant(SHORT, 0))

    def _halves(self, a: Any, b: Any, width: int) -> Any:
        """Of every 2 * width lanes the first half plus the second one, of a and b in turns.

        a  1 2 3 4 . . . .      b  5 6 7 8 . . . .      width 2:  1+3 2+4 5+7 6+8 . . . .
        """
        first: list[int] = []
        second: list[int] = []
        for begin in range(0, LANES, 2 * width):
            for base in (begin, LANES + begin):
                first += range(base, base + width)
                second += range(base + width, base + 2 * width)
        return self.builder.fadd(self._shuffle(a, b, first), self._shuffle(a, b, second))

    def _shuffle(self, a: Any, b: Any, lanes: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(SHORT, LANES), lanes))

    def loop(
        self, begin: Any, end: Any, step: int, carried: list[Any],
        body: Callable[[Any, list[Any]], list[Any]],
    ) -> list[Any]:  # fmt: skip
        """``body`` of a counter and of what is carried, while counter + step <= end."""
        builder = self.builder
        head, turn, done = (builder.append_basic_block(name) for name in ("head", "turn", "done"))
        before = builder.block
        builder.branch(head)
        builder.position_at_end(head)
        counter = builder.phi(_WORD)
        held = [builder.phi(each.type) for each in carried]
        following = builder.add(counter, _word(step))
        builder.cbranch(builder.icmp_signed("<=", following, end), turn, done)
        builder.position_at_end(turn)
        new = body(counter, list(held))
        for phi, first, again in zip([counter, *held], [begin, *carried], [following, *new],
                                     strict=True):  # fmt: skip
            phi.add_incoming(first, before)
            phi.add_incoming(again, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        return [counter, *held]


def _scores(code: _Code, vectors: int, given: list[Any]) -> None:
    query, rows, count, scale, found = given
    builder = code.builder
    q = [code.load(code.at(query, v, _LINE)) for v in range(vectors)]

    def lanes(slot: Any) -> Any:
        row = code.at(rows, slot, vectors * _LINE)
        total = builder.fmul(q[0], code.load(row))
        for v in range(1, vectors):
            total = code.fma(q[v], code.load(code.at(row, v, _LINE)), total)
        return total

    def many(slot: Any, _: list[Any]) -> list[Any]:
        sums = [lanes(builder.add(slot, _word(one))) for one in range(LANES)]
        scores = code.together(sums)
        code.store(builder.fmul(scores, code.all_lanes(scale)), code.at(found, slot, 4))
        return []

    def one(slot: Any, _: list[Any]) -> list[Any]:
        code.store(builder.fmul(code.alone(lanes(slot)), scale), code.at(found, slot, 4))
        return []

    [done] = code.loop(_word(0), count, LANES, [], many)
    code.loop(done, count, 1, [], one)


def _values(code: _Code, vectors: int, given: list[Any]) -> None:
    weights, rows, count, acc = given
    places = [code.at(acc, v, _LINE) for v in range(vectors)]

    def some(slots: int) -> Callable[[Any, list[Any]], list[Any]]:
        def add(slot: Any, sums: list[Any]) -> list[Any]:
            for one in range(slots):
                this = code.builder.add(slot, _word(one))
                weight = code.all_lanes(code.load(code.at(weights, this, 4), _FLOAT))
                row = code.at(rows, this, vectors * _LINE)
                sums = [
                    code.fma(weight, code.load(code.at(row, v, _LINE)), total)
                    for v, total in enumerate(sums)
                ]
            return sums

        return add

    begun = [code.load(place) for place in places]
    done, *sums = code.loop(_word(0), count, 4, begun, some(4))
    _, *sums = code.loop(done, count, 1, sums, some(1))
    for place, total in zip(places, sums, strict=True):
        code.store(total, place)


def _by_vectors(write: Callable[[_Code, int, list[Any]], None], builder: Any, given: Any) -> None:
    """A way for each number of vectors, which is the first of what is given."""
    vectors, *rest = given
    done = builder.append_basic_block("attended")
    ways = builder.switch(vectors, done)
    for number in _VECTORS:
        block = builder.append_basic_block("vectors")
        ways.add_case(_word(number), block)
        builder.position_at_end(block)
        write(_Code(builder), number, rest)
        builder.branch(done)
    builder.position_at_end(done)


@intrinsic  # type: ignore[untyped-decorator]
def score_run(
    _context: Any, vectors: Any, query: Any, rows: Any, count: Any, scale: Any, found: Any
) -> Any:
    """Scores of a query with ``count`` slots from the address ``rows`` on, put at ``found``.

    A head has ``vectors`` of :data:`LANES` numbers, as :func:`vectors_of` says; for any other
    number nothing is done.
    """

    def code(context: Any, builder: Any, _: Any, given: Any) -> Any:
        _by_vectors(_scores, builder, given)
        return context.get_dummy_value()

    return types.void(vectors, query, rows, count, scale, found), code


@intrinsic  # type: ignore[untyped-decorator]
def add_run(_context: Any, vectors: Any, weights: Any, rows: Any, count: Any, acc: Any) -> Any:
    """Add to ``acc`` the values of ``count`` slots from ``rows`` on, times their weights."""

    def code(context: Any, builder: Any, _: Any, given: Any) -> Any:
        _by_vectors(_values, builder, given)
        return context.get_dummy_value()

    return types.void(vectors, weights, rows, count, acc), code


@jit(None, set())
def vectors_of(dim: int) -> Any:
    """Vectors of a head of ``dim`` numbers that these loops take; 0: they do not."""
    takes = _HAS_REGISTERS and dim % LANES == 0 and dim // LANES in _VECTORS
    return dim // LANES if takes else 0


def _word(value: int) -> Any:
    return ir.Constant(_WORD, value)
