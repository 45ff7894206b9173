"""Plans next to each other: an option varied, or the GPUs that some users need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from experiment import __version__
from experiment.events.wall_clock import wall_clock
from experiment.simulate.fit import Question, fit
from experiment.simulate.plan import SCHEMA_VERSION, plan, with_requests
from experiment.simulate.setup import Memory
from experiment.simulate.trace import TraceOptions
from experiment.text.errors import UserError, user_error
from kvsim.sizing.gpus import GPUS, GPUFacts

Changed = Callable[[Any, Memory, Question], tuple[Memory, Question]]
# Values of the options that can be compared, and how one is set; None: as given.
AXES: Mapping[str, tuple[Sequence[Any], Changed]] = {
    "kv-dtype": (("auto", "fp8"), lambda v, m, q: (replace(m, kv_dtype=v), q)),
    "weights": ((None, "fp8", "w4"), lambda v, m, q: (replace(m, weights=v or m.weights), q)),
    "block-size": ((16, 32, 64, 128), lambda v, m, q: (m, replace(q, block_size=v))),
    "gpus": ((1, 2, 4, 8), lambda v, m, q: (_on_ranks(m, v), q)),
}

# Axes whose values may be enough, and errors for which they are.
_BY_COST = ("kv-dtype", "weights", "gpus")
_NO_MEMORY = [f"error.plan.{code}" for code in ("no_room", "no_block", "no_memory")]


def compare(
    model: str, gpu: str | GPUFacts, memory: Memory, asked: Question, axes: Sequence[str]
) -> dict[str, Any]:
    """Plan for each value of each option, the others as asked.

    Returns:
        Plain values; ``compared`` has a list of rows for each option.

    Raises:
        UserError: no value fits.
    """
    found, failed = {}, list[UserError]()
    for axis in axes:
        values, changed = AXES[axis]
        rows = [(value, _row(model, gpu, *changed(value, memory, asked))) for value in values]
        failed += [row for _, row in rows if isinstance(row, UserError)]
        found[axis] = [
            {"value": value, "reason": row.text.model_dump()}
            if isinstance(row, UserError)
            else {"value": value, **row}
            for value, row in rows
        ]
    if all(row["reason"] for rows in found.values() for row in rows):
        raise failed[0]
    return _head(model, asked) | {"compared": found}


def plan_or_remedy(
    model: str,
    gpu: str | GPUFacts,
    requests: Sequence[tuple[int, int]] | TraceOptions | None,
    memory: Memory,
    **asked: Any,
) -> dict[str, Any]:
    """Plan; arguments as of :func:`experiment.simulate.plan.plan`.

    Returns:
        The plan; ``remedy`` of its capacity: the cheapest option with which more users surely fit.

    Raises:
        UserError: as of a plan; where memory is not enough, with the cheapest option that helps.
    """

    def remedy() -> dict[str, Any] | None:
        question, _ = with_requests(Question(None, **asked), requests, model, memory)
        return _remedy(model, gpu, memory, question)

    try:
        data = plan(model, gpu, requests, memory, **asked)
    except UserError as error:
        enough = remedy() if error.text.key in _NO_MEMORY else None
        if enough is None:
            raise
        raise user_error("error.plan.enough", why=error.text.model_dump(), **enough) from error
    capacity = data["plan"]["capacity"]
    if (capacity["users"] or 0) > capacity["high"]["requests"]:
        capacity["remedy"] = remedy()
    return data


def _remedy(
    model: str, gpu: str | GPUFacts, memory: Memory, asked: Question
) -> dict[str, Any] | None:
    """The cheapest option with which the users surely fit, or else the cheapest two; and how many.

    Returns:
        ``options``; ``requests`` of ``length`` tokens; None: no two options are enough.
    """
    options = [(axis, value) for axis in _BY_COST for value in AXES[axis][0][1:]]
    pairs = sorted(combinations(range(len(options)), 2), key=lambda pair: pair[::-1])
    for places in [*((place,) for place in range(len(options))), *pairs]:
        changed, changes = (memory, asked), dict(options[place] for place in places)
        for axis, value in changes.items():
            changed = AXES[axis][1](value, *changed)
        row = _row(model, gpu, *changed)
        if not isinstance(row, UserError) and _holds(row, replace(asked, rate=None)):
            changes |= {"gpus": row["gpus"]} if "gpus" in changes else {}  # of all stages
            return {
                "options": " ".join(f"--{axis} {value}" for axis, value in changes.items()),
                "requests": row["requests"]["middle"],
                "length": row["length"],
            }
    return None


def choose(
    model: str,
    memory: Memory,
    asked: Question,
    prices: Mapping[str, float] | None = None,
    gpus: int | None = None,
) -> dict[str, Any]:
    """Find the fewest GPUs of each kind that surely hold the users, or serve the rate.

    Args:
        prices: USD an hour of the GPUs to choose from; None: all GPUs, without prices.
        gpus: of one engine; None: the fewest that do, of 1, 2, 4 and 8 in each pipeline stage.

    Returns:
        Plain values; ``choices`` are rows, the cheapest first, or the one with the least memory.

    Raises:
        UserError: none holds them.
    """
    choices, tried, failed, late = list[dict[str, Any]](), 0, list[UserError](), False
    for name in prices or GPUS:
        question = replace(asked, price=prices[name] if prices else None)
        for some in (replace(memory, gpus=gpus),) if gpus else _by_count(memory):
            row = _row(model, name, some, question)
            if isinstance(row, UserError):
                failed.append(row)
                continue
            tried += 1
            late |= row["limit"] in ("ttft", "tpot") and row["requests"]["low"] >= (
                asked.users or 1
            )
            if _holds(row, asked):
                choices.append(row)
                break
    if not choices:
        if failed and not tried:
            raise failed[-1]
        in_time = "_in_time" if late else ""
        raise user_error(f"error.plan.no_gpu{in_time}", gpus=gpus or _by_count(memory)[-1].gpus)
    choices.sort(key=_cost)
    left_out = len(prices or GPUS) - len(choices)
    return _head(model, asked) | {"choices": choices, "left_out": left_out}


def _by_count(memory: Memory) -> list[Memory]:
    return [_on_ranks(memory, count) for count in AXES["gpus"][0]]


def _on_ranks(memory: Memory, ranks: int) -> Memory:
    """With so many tensor-parallel ranks in each pipeline stage."""
    return replace(memory, gpus=ranks * memory.server.pipeline_parallel)


def _row(
    model: str, gpu: str | GPUFacts, memory: Memory, asked: Question
) -> dict[str, Any] | UserError:
    """The answer in a row, or why there is none."""
    try:
        fitted = fit(model, gpu, memory, asked)
        answer = fitted.answer()
    except UserError as error:
        return error
    capacity, plan = answer["capacity"], fitted.plan
    if not capacity["middle"]["requests"]:
        return user_error("error.plan.no_block", slots=0, max_length=capacity["length"])
    each = {name: capacity[name] for name in ("low", "middle", "high")}
    return {
        "reason": None,
        "gpu": plan.gpu.name,
        "gpus": plan.gpus * answer["engines"],
        "memory": plan.gpu.memory_bytes * plan.gpus * answer["engines"],
        "length": capacity["length"],
        "kv": {name: size["kv"] for name, size in each.items()},
        "tokens": {name: size["tokens"] for name, size in each.items()},
        "requests": {name: size["requests"] for name, size in each.items()},
        "limit": capacity["limit"],
        "most": capacity["most"],
        "load": answer["load"],
        "assumed": answer["assumed"],
        "speed": answer["speed"],
    }


def _holds(row: Mapping[str, Any], asked: Question) -> bool:
    """Whether the users surely fit, or those that the rate keeps running."""
    low = min(row["requests"]["low"], row["most"])
    if asked.rate is None:
        return bool(low >= (asked.users or 1))
    running = row["load"]["running"] if row["load"] else None
    return running is not None and max(running, asked.users or 1) <= low


def _cost(row: Mapping[str, Any]) -> tuple[float, int]:
    speed = row["speed"]
    usd = speed["usd_per_hour"] if speed else None
    return (usd or 0.0, row["memory"])


def _head(model: str, asked: Question) -> dict[str, Any]:
    return {
        "kind": "plan",
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        **wall_clock(),
        "model": model,
        "users": asked.users,
        "rate": asked.rate,
        "context": asked.context,
    }
