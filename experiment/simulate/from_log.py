"""What a start-up log of vLLM says about memory: ``plan --from-log``.

    log ─► figures ─► where each GiB went
                  └─► a plan with the log's own KV cache, or what to change, cheapest first

:mod:`kvsim.sizing.start_log` finds the figures.
"""

from __future__ import annotations

import codecs
import re
import zlib
from dataclasses import asdict, replace
from gzip import GzipFile
from io import BytesIO
from typing import Any

from experiment.files.bounded_reading import expand_path, read_bounded
from experiment.simulate.log_differences import differences
from experiment.simulate.log_facts import LogFacts, starts
from experiment.simulate.log_remedies import FailedStart
from experiment.simulate.model_file import is_hub_name, model_file
from experiment.simulate.plan import SCHEMA_VERSION, plan
from experiment.simulate.setup import Memory
from experiment.text.errors import UserError, cut, user_error
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.models import UnknownModelError, find_model
from kvsim.sizing.overhead import TESTED
from kvsim.sizing.start_log import NotALogError, StartLog, read_start_log

_MAX_BYTES = 64 << 20


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
    asked_stages = memory.server.pipeline_parallel
    stages = log.pipeline_parallel or asked_stages
    tensor = memory.gpus // asked_stages
    ranks = (log.tensor_parallel or tensor) * stages
    server = replace(
        memory.server, version=log.version or TESTED, pipeline_parallel=stages,
        data_parallel=log.data_parallel or memory.server.data_parallel,
        max_num_seqs=memory.server.max_num_seqs or log.max_num_seqs,
        max_num_batched_tokens=memory.server.max_num_batched_tokens or log.max_num_batched_tokens,
    )  # fmt: skip
    known = replace(
        memory, gpus=ranks, server=server, utilisation=None, overhead=None,
        kv_dtype=memory.kv_dtype or log.kv_dtype,
    )  # fmt: skip
    asked["block_size"] = asked.get("block_size") or log.block_size
    told = asked.pop("max_length", None)
    read = LogFacts(log, name, gpu, known, told or log.max_length, asked["block_size"])
    unlike = read.unlike(tensor, asked_stages, memory.server.data_parallel)
    if unlike and model and log.model:
        unlike.append({"name": "model", "log": log.model, "plan": model})
    data: dict[str, Any] = {}
    wants = asked.get("context") is not None or asked.get("requests") is not None or told
    try:
        kv, tokens = read.cache()
        if kv is not None and kv > 0 and (wants or not log.failure):
            held = replace(known, budget=kv * ranks)
            data = _planned(name, read.device, held, read.length, asked)
    except UserError as error:
        if unlike:
            why = differences(unlike).model_dump()
            raise user_error("error.plan.log_differs", path=path, why=why) from error
        if wants or not log.failure:
            raise
        kv, tokens = read.kv, None
    if tokens is not None:
        unlike.append({"name": "tokens", "log": read.tokens, "plan": tokens})
    if data and data["plan"]["vllm_args"] and not model:
        data["plan"]["vllm_args"][1] = log.model
    remedies = FailedStart(read, kv).remedies() if log.failure else []
    found = {"path": path, "length": read.longest, "remedies": remedies, "ranks": ranks}
    head = {"kind": "plan", "schema_version": SCHEMA_VERSION} | data
    return head | {"log": asdict(log) | found | {"rest": read.rest(), "differences": unlike}}


def read_log(path: str) -> StartLog:
    """The figures of a start-up log.

    Raises:
        UserError: no such file, or no log of vLLM.
    """
    try:
        return read_start_log(_text(path))
    except NotALogError as error:
        if error.engine == "vLLM":
            raise user_error("error.plan.log_ends", path=path, last=cut(error.last, 120)) from error
        key = "error.plan.other_engine" if error.engine else "error.plan.no_log"
        raise user_error(key, path=path, engine=error.engine or "") from error


def _text(path: str) -> str:
    """A log as text: UTF-8, UTF-16 as PowerShell redirects, or one of them in gzip.

    Raises:
        UserError: no such file, too large, or damaged.
    """
    data = read_bounded(expand_path(path), _MAX_BYTES)
    if data[:2] == b"\x1f\x8b":
        try:
            data = GzipFile(fileobj=BytesIO(data)).read(_MAX_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise user_error("error.file_unreadable", path=path) from error
    is_utf16 = data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return data.decode("utf-16" if is_utf16 else "utf-8", "replace")


def _model_of(log: StartLog, path: str) -> str:
    """The model that a log names, which may be of another machine: no directory here is read.

    Raises:
        UserError: it names none, or one that is neither in the catalogue nor a hub's.
    """
    if log.model is None:
        raise user_error("error.sim.needs", flags="--model (--list models)")
    if is_hub_name(log.model) and model_file(log.model) is not None:  # in the local cache
        return log.model
    name = re.split(r"[/\\]", log.model.rstrip("/\\"))[-1]
    try:
        find_model(name)
    except UnknownModelError as error:
        raise user_error("error.plan.log_model", path=path, model=log.model) from error
    return name


def _planned(
    name: str, gpu: str | GPUFacts, memory: Memory, length: int | None, asked: dict[str, Any]
) -> dict[str, Any]:
    """A plan at the log's maximum length, or at the longest that fits where that one does not."""
    if length is not None and starts(name, gpu, memory, length):
        return plan(name, gpu, memory=memory, max_length=length, **asked)
    return plan(name, gpu, memory=memory, **asked)
