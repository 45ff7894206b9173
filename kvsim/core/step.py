"""``StepPlan``: the contract between scheduler, engine, simulator, event log and player.

A plan describes one step as facts, in the order in which they take effect:

    finished   requests that ended after the previous step
    preempted  requests that lose their blocks now and wait again; `causes`, why
    ops        block operations, in order (those of `finished` and `preempted` come first)
    chunks     the tokens that are then computed and written to their slots
    wait       why the first request in the queue is not admitted, if that has changed

Slot states (live, padding, unwritten ...) are derived from these facts by
:mod:`kvsim.accounting.ledger`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class OpKind(StrEnum):
    """Kinds of block operations, named after vLLM's block manager and the PagedAttention paper."""

    ALLOCATE = "allocate"  # free blocks become the next blocks of a request
    SHARE = "share"  # owned or cached blocks become the next blocks of a request
    COPY = "copy"  # copy-on-write: `sources` were shared, `blocks` replace them in the table
    MERGE = "merge"  # `blocks` with equal content replace `sources` in the table
    EVICT = "evict"  # cached blocks without an owner lose their content
    FREE = "free"  # a request releases these blocks
    SWAP_OUT = "swap_out"  # device `blocks` move to host blocks `sources`
    SWAP_IN = "swap_in"  # host blocks `sources` move to device `blocks`, behind shared ones


RELEASING_OPS = (OpKind.FREE, OpKind.SWAP_OUT)  # the request has no device blocks afterwards


class FinishReason(StrEnum):
    """Why a request ended."""

    LENGTH = "length"
    STOP = "stop"
    ABORTED = "aborted"
    PRUNED = "pruned"  # a beam without a continuation among the best
    REFUSED = "refused"


class BlockOp(NamedTuple):
    """One block operation.

    ``blocks`` are physical device block ids in logical order. ``request`` is None for EVICT only.

    Attributes:
        sources: COPY: the shared blocks that were copied. MERGE: the blocks replaced.
            SWAP_OUT and SWAP_IN: host blocks.
        cached: FREE and SWAP_OUT: those of ``blocks`` that are now cached without an owner.
        tokens: SHARE: positions of the request that the shared blocks hold.
    """

    kind: OpKind
    request: int | None
    blocks: tuple[int, ...]
    sources: tuple[int, ...] = ()
    cached: tuple[int, ...] = ()
    tokens: int = 0


class Chunk(NamedTuple):
    """Tokens of one request that a step computes: positions ``start`` to ``start + count - 1``.

    ``samples`` is true when the chunk ends with the last known token, so that the step samples a
    new one. It is false for a partial prompt and for an ended row of a static batch. ``padding``
    counts the padding slots written before position 0 (padded batches only); they stay the
    request's first slots until it is freed.
    """

    request: int
    start: int
    count: int  # type: ignore[assignment]  # tuple.count is not used
    samples: bool
    padding: int = 0


class Finish(NamedTuple):
    """A request that ended, and the reason."""

    request: int
    reason: FinishReason


class PreemptionCause(NamedTuple):
    """Why a request was preempted: request ``by`` needed blocks, and fewer were free.

    ``computed`` are the tokens that the preempted request had computed: it computes them again, but
    for what it finds in the prefix cache, or its blocks were swapped out.
    """

    by: int
    needed: int
    free: int
    computed: int


class WaitReason(StrEnum):
    """What keeps the first request in the queue from being admitted."""

    BLOCKS = "blocks"  # free blocks for its first chunk, or for what was swapped out
    PROMPT = "prompt"  # free blocks for all its tokens (admission: full), though not for the chunk
    WATERMARK = "watermark"  # free blocks beyond the watermark
    TOKENS = "tokens"  # the token budget of the step
    SEQS = "seqs"  # the limit of running sequences
    PREEMPTION = "preemption"  # a step that preempts admits no request
    INTERVAL = "interval"  # prefill_schedule_interval


class Wait(NamedTuple):
    """Why ``request``, the first in the queue, waits.

    ``needed`` and ``free`` are in blocks, or in sequences where these are the reason; else 0.
    """

    request: int
    reason: WaitReason
    needed: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Everything that one step does.

    ``waiting`` counts the groups left in the queue after admission. ``causes`` are those of
    ``preempted``, in the same order; none where an engine does not tell. ``wait`` is None in steps
    in which the first in the queue and its reason are those of the step before.
    """

    step: int
    ops: tuple[BlockOp, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    preempted: tuple[int, ...] = ()
    finished: tuple[Finish, ...] = ()
    waiting: int = 0
    causes: tuple[PreemptionCause, ...] = ()
    wait: Wait | None = None

    @property
    def tokens(self) -> int:
        """Tokens that this step computes, padding not counted."""
        return sum(chunk.count for chunk in self.chunks)


_LIMIT = 2**63


def plan_to_json(plan: StepPlan) -> dict[str, Any]:
    """Encode a plan as lists and numbers; empty parts are omitted.

    Lists instead of objects keep long logs small.
    """
    parts = {
        "finished": [[f.request, f.reason.value] for f in plan.finished],
        "preempted": list(plan.preempted),
        "ops": [_op_to_list(op) for op in plan.ops],
        "chunks": [_chunk_to_list(chunk) for chunk in plan.chunks],
        "waiting": plan.waiting,
        "causes": [list(cause) for cause in plan.causes],
        "wait": list(plan.wait or ()),
    }
    return {"step": plan.step} | {name: part for name, part in parts.items() if part}


def plan_from_json(data: Mapping[str, Any]) -> StepPlan:
    """Decode the output of :func:`plan_to_json`.

    Raises:
        ValueError: a part is missing or malformed; the message names it.
    """
    try:
        return StepPlan(
            step=_count(data["step"]),
            ops=tuple(_op_from_list(row) for row in data.get("ops", ())),
            chunks=tuple(_chunk_from_list(row) for row in data.get("chunks", ())),
            preempted=tuple(_count(r) for r in data.get("preempted", ())),
            finished=tuple(
                Finish(_count(request), FinishReason(reason))
                for request, reason in data.get("finished", ())
            ),
            waiting=_count(data.get("waiting", 0)),
            causes=tuple(PreemptionCause(*map(_count, row)) for row in data.get("causes", ())),
            wait=_wait_from_list(data["wait"]) if "wait" in data else None,
        )
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ValueError(f"not a step plan: {error!r}") from error


def _op_to_list(op: BlockOp) -> list[Any]:
    row = [op.kind.value, op.request, list(op.blocks), list(op.sources), list(op.cached), op.tokens]
    while not row[-1] and len(row) > 3:
        row.pop()
    return row


def _op_from_list(row: Sequence[Any]) -> BlockOp:
    kind, request, blocks = row[0], row[1], row[2]
    return BlockOp(
        kind=OpKind(kind),
        request=None if request is None else _count(request),
        blocks=tuple(_count(b) for b in blocks),
        sources=tuple(_count(b) for b in row[3]) if len(row) > 3 else (),
        cached=tuple(_count(b) for b in row[4]) if len(row) > 4 else (),
        tokens=_count(row[5]) if len(row) > 5 else 0,
    )


def _chunk_to_list(chunk: Chunk) -> list[int]:
    row = [chunk.request, chunk.start, chunk.count, int(chunk.samples)]
    return [*row, chunk.padding] if chunk.padding else row


def _chunk_from_list(row: Sequence[Any]) -> Chunk:
    request, start, count, samples, *rest = row
    padding = rest[0] if rest else 0
    # Chunks dominate a log: check all four numbers at once.
    numbers = (request, start, count, padding)
    if not type(request) is type(start) is type(count) is type(padding) is int or (
        min(numbers) < 0 or max(numbers) >= _LIMIT
    ):
        raise ValueError(f"{row!r} is no chunk of whole numbers from 0")
    return Chunk(request, start, count, bool(samples), padding)


def _wait_from_list(row: Sequence[Any]) -> Wait:
    request, reason, needed, free = row
    return Wait(_count(request), WaitReason(reason), _count(needed), _count(free))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LIMIT:
        raise ValueError("not a whole number from 0 below 2 to the 63rd")
    return value
