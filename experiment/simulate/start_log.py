"""What a start-up log of vLLM says about memory: ``plan --from-log``.

    log ─► figures ─► where each GiB went
                  └─► a plan with the log's own KV cache, or what to change, cheapest first

:mod:`kvsim.sizing.start_log` finds the figures.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

from experiment.files.bounded_reading import expand_path, read_bounded
from experiment.simulate.model_file import is_hub_name
from experiment.simulate.plan import plan
from experiment.simulate.setup import Memory
from experiment.text.errors import UserError, user_error
from kvsim.sizing.gpus import GPUFacts, custom_gpu
from kvsim.sizing.models import UnknownModelError, find_model
from kvsim.sizing.overhead import TESTED
from kvsim.sizing.start_log import NotALogError, StartLog, read_start_log

_MAX_BYTES = 64 << 20
_REST = 2 << 30  # of a GPU whose size a log does not say, beside weights and cache
_TOO_SMALL = ("error.plan.no_block", "error.plan.no_memory")


def plan_from_log(
    path: str,
    model: str | None = None,
    gpu: str | GPUFacts | None = None,
    memory: Memory = Memory(),  # noqa: B008
    **asked: Any,
) -> dict[str, Any]:
    """Plan with the figures of a start-up log of vLLM.

    Args:
        path: of the log.
        model, gpu: None: the log's.
        memory: what is said beside the log; the log's KV cache takes the place of a budget.
        asked: as of :func:`experiment.simulate.plan.plan`.

    Returns:
        The plan, with ``log``: the figures, and ``remedies`` where the start failed.

    Raises:
        UserError: no such log, or it lacks what the plan needs.
    """
    log = read_log(path)
    name = model or _model_of(log, path)
    ranks = log.tensor_parallel or memory.gpus
    server = replace(memory.server, version=log.version or TESTED)
    kv = log.kv if log.kv and log.kv > 0 else None
    if kv is None and log.failure is None:
        raise user_error("error.plan.no_log", path=path, engine="")
    size = log.total or _least(log)
    device = gpu or replace(custom_gpu(size, 1e12, 1e14), name="GPU", source="")
    length = asked.pop("max_length", None) or log.max_length
    known = replace(memory, gpus=ranks, server=server, utilisation=None, overhead=None)
    data: dict[str, Any] = {}
    if kv is not None:
        data = _planned(name, device, replace(known, budget=kv * ranks), length, asked)
    remedies = _remedies(log, name, device, known, length) if log.failure else []
    return data | {"log": asdict(log) | {"path": path, "remedies": remedies, "ranks": ranks}}


def read_log(path: str) -> StartLog:
    """The figures of a start-up log.

    Raises:
        UserError: no such file, or no log of vLLM.
    """
    try:
        return read_start_log(
            read_bounded(expand_path(path), _MAX_BYTES).decode("utf-8", "replace")
        )
    except NotALogError as error:
        key = "error.plan.other_engine" if error.engine else "error.plan.no_log"
        raise user_error(key, path=path, engine=error.engine or "") from error


def _model_of(log: StartLog, path: str) -> str:
    """The model that a log names, which may be of another machine: no directory here is read.

    Raises:
        UserError: it names none, or one that is neither in the catalogue nor a hub's.
    """
    if log.model is None:
        raise user_error("error.sim.needs", flags="--model (--list models)")
    if is_hub_name(log.model):
        return log.model
    name = re.split(r"[/\\]", log.model.rstrip("/\\"))[-1]
    try:
        find_model(name)
    except UnknownModelError as error:
        raise user_error("error.plan.log_model", path=path, model=log.model) from error
    return name


def _least(log: StartLog) -> int:
    return max(0, log.kv or 0) + (log.weights or 0) + _REST


def _planned(
    name: str, gpu: str | GPUFacts, memory: Memory, length: int | None, asked: dict[str, Any]
) -> dict[str, Any]:
    """A plan at the log's maximum length, or at the longest that fits where that one does not."""
    if length is not None:
        try:
            found = plan(name, gpu, memory=memory, max_length=length, **asked)
        except UserError as error:
            if error.text.key not in _TOO_SMALL:
                raise
        else:
            if found["plan"]["capacity"]["middle"]["starts"]:
                return found
    return plan(name, gpu, memory=memory, **asked)


def _remedies(
    log: StartLog, name: str, gpu: str | GPUFacts, memory: Memory, length: int | None
) -> list[dict[str, Any]]:
    """What to change, the cheapest first: an option, and tokens of the cache where they follow."""
    found: list[dict[str, Any]] = []
    kv = max(0, log.kv or 0)
    if log.failure == "too_long" and kv:
        found.append(_remedy("max_length", name, gpu, memory, kv, None))
    if log.failure == "little_free":
        found.append({"name": "others", "value": None, "tokens": None})
    used = log.utilisation
    if log.total and used and used < 0.97 and log.failure in ("too_long", "no_memory"):
        more = min(0.97, round(used + 0.05, 2))
        grown = (log.kv or 0) + round((more - used) * log.total)
        if grown > 0:
            found.append(_remedy("utilisation", name, gpu, memory, grown, length) | {"value": more})
    if log.failure in ("no_memory", "oom_profile", "oom_capture"):
        found.append({"name": "sequences", "value": None, "tokens": None})
    if log.failure == "oom_capture":
        found.append({"name": "eager", "value": None, "tokens": None})
    if log.failure in ("oom_profile", "oom_capture") and used:
        found.append({"name": "less", "value": round(max(0.1, used - 0.05), 2), "tokens": None})
    if kv and log.failure == "too_long":
        fp8 = replace(memory, kv_dtype="fp8")
        found.append(_remedy("fp8", name, gpu, fp8, kv, length))
    found.append({"name": "gpus", "value": 2 * memory.gpus, "tokens": None})
    return found


def _remedy(
    key: str, name: str, gpu: str | GPUFacts, memory: Memory, kv: int, length: int | None
) -> dict[str, Any]:
    """A change with the tokens that the cache then holds."""
    budget = replace(memory, budget=kv * memory.gpus)
    found = _planned(name, gpu, budget, length, {})["plan"]
    middle = found["capacity"]["middle"]
    return {"name": key, "value": found["max_length"], "tokens": middle["tokens"]}
