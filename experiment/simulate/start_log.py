"""What a start-up log of vLLM says about memory: ``plan --from-log``.

    log ─► figures ─► where each GiB went
                  └─► a plan with the log's own KV cache, or what to change, cheapest first

:mod:`kvsim.sizing.start_log` finds the figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

from experiment.files.bounded_reading import expand_path, read_bounded
from experiment.simulate.fit import Question, fit
from experiment.simulate.model_file import is_hub_name, model_file
from experiment.simulate.names import gpu_of, model_of
from experiment.simulate.plan import SCHEMA_VERSION, plan
from experiment.simulate.setup import Memory
from experiment.text.errors import UserError, user_error
from kvsim.sizing.gpus import GPUFacts, custom_gpu
from kvsim.sizing.models import ModelFacts, UnknownModelError, find_model
from kvsim.sizing.overhead import TESTED, ServerOptions, rank_overhead, rank_weights
from kvsim.sizing.start_log import NotALogError, StartLog, read_start_log

_MAX_BYTES = 64 << 20
_ROUNDED = 0.003
_FEW_SEQS, _FEW_TOKENS = 64, 2048  # of a step, as a remedy
_REST = 2 << 30  # of a GPU whose size a log does not say, beside weights and cache


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
    stages = memory.server.pipeline_parallel
    ranks = (log.tensor_parallel or memory.gpus // stages) * stages
    server = replace(
        memory.server, version=log.version or TESTED,
        max_num_seqs=memory.server.max_num_seqs or log.max_num_seqs,
        max_num_batched_tokens=memory.server.max_num_batched_tokens or log.max_num_batched_tokens,
    )  # fmt: skip
    asked["block_size"] = asked.get("block_size") or log.block_size
    kv = log.kv if log.kv and log.kv > 0 else None
    if kv is None and log.failure is None:
        raise user_error("error.plan.no_log", path=path, engine="")
    known = replace(memory, gpus=ranks, server=server, utilisation=None, overhead=None)
    size = log.total or max(0, log.kv or 0) + _weights(log, name, known) + _REST
    device = gpu or replace(custom_gpu(size, 1e12, 1e14), name="GPU", source="")
    told = asked.pop("max_length", None)
    length = told or log.max_length
    data: dict[str, Any] = {"kind": "plan", "schema_version": SCHEMA_VERSION}
    wants = asked.get("context") is not None or asked.get("requests") is not None or told
    if kv is not None and (wants or not log.failure):
        data = _planned(name, device, replace(known, budget=kv * ranks), length, asked)
        tokens = data["plan"]["capacity"]["middle"]["tokens"]
        if log.tokens and log.tokens != tokens and abs(log.tokens / tokens - 1) < _ROUNDED:
            exact = -(-kv * log.tokens // tokens)  # the log rounds its GiB
            data = _planned(name, device, replace(known, budget=exact * ranks), length, asked)
    remedies = []
    if log.failure:
        length = length or model_of(name, known.weights).max_positions  # vLLM's default
        weights = _weights(log, name, known)
        remedies = _Failed(log, name, device, known, weights, length).remedies()
    found = {"path": path, "length": length, "remedies": remedies, "ranks": ranks}
    return data | {"log": asdict(log) | found | {"rest": _rest(log, device, server)}}


def _rest(log: StartLog, device: GPUFacts | str, server: ServerOptions) -> int | None:
    """Bytes of a GPU that neither weights nor cache take, of a size that is known."""
    if log.weights is None or log.kv is None or log.activations is not None:
        return None
    facts = gpu_of(device) if isinstance(device, str) else device
    total = log.total or (facts.cuda_bytes if facts.source else None)
    if total is None:
        return None
    share = log.utilisation or server.utilisation()
    return max(0, int(total * share) - log.weights - log.kv)


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
    if is_hub_name(log.model) and model_file(log.model) is not None:  # in the local cache
        return log.model
    name = re.split(r"[/\\]", log.model.rstrip("/\\"))[-1]
    try:
        find_model(name)
    except UnknownModelError as error:
        raise user_error("error.plan.log_model", path=path, model=log.model) from error
    return name


def _weights(log: StartLog, name: str, memory: Memory) -> int:
    """Bytes of a rank's weights, by the log or by the model."""
    return log.weights or _of_rank(model_of(name, memory.weights), memory)


def _of_rank(model: ModelFacts, memory: Memory) -> int:
    tensor = memory.gpus // memory.server.pipeline_parallel
    return rank_weights(model, tensor, None, memory.server)


def _planned(
    name: str, gpu: str | GPUFacts, memory: Memory, length: int | None, asked: dict[str, Any]
) -> dict[str, Any]:
    """A plan at the log's maximum length, or at the longest that fits where that one does not."""
    if length is not None and _starts(name, gpu, memory, length):
        return plan(name, gpu, memory=memory, max_length=length, **asked)
    return plan(name, gpu, memory=memory, **asked)


def _starts(name: str, gpu: str | GPUFacts, memory: Memory, length: int) -> bool:
    found = fit(name, gpu, memory, Question(max_length=length)).capacity()
    return bool(found["middle"]["starts"])


class _Change(NamedTuple):
    """An option to change; ``value``: as the user writes it.

    Attributes:
        options: fields of :class:`Memory`.
        freed: bytes on one GPU for the cache; None: unknown.
        weights: share of the weights that is left on one GPU.
    """

    name: str
    value: float | None = None
    options: Mapping[str, Any] = {}
    freed: int | None = 0
    weights: float = 1.0


@dataclass(frozen=True, slots=True)
class _Failed:
    """A start that failed: ``weights``, bytes on one GPU; ``length``: the maximum, if known."""

    log: StartLog
    name: str
    gpu: str | GPUFacts
    memory: Memory
    weights: int
    length: int | None

    def remedies(self) -> list[dict[str, Any]]:
        """What to change, the cheapest first: an option, and tokens of the cache if known.

        Where no option alone is enough for the maximum length, the cheapest two that are come last.
        """
        if self.log.failure == "little_free":
            return [_remedy([_Change("others")])]
        changes, found = self._changes(), list[dict[str, Any]]()
        if self.log.failure == "too_long":
            found += self._with(_Change("max_length"), length=None)
        for change in changes:
            found += self._with(change, length=self.length)
        if not any(each["enough"] for each in found):
            tried = (self._with(*pair, length=self.length) for pair in combinations(changes, 2))
            found += next((each for each in tried if each and each[0]["enough"]), [])
        return found or [_remedy(changes[-1:])]

    def _changes(self) -> list[_Change]:
        """What can be changed at the same maximum length, the cheapest first."""
        log, failure, found = self.log, self.log.failure, list[_Change]()
        model, used = model_of(self.name, self.memory.weights), self.log.utilisation
        no_cache = failure in ("too_long", "no_memory")
        if log.total and used and used < 0.97 and no_cache:
            more = min(0.97, round(used + 0.05, 2))
            found.append(_Change("utilisation", more, freed=round((more - used) * log.total)))
        if failure == "oom_capture":
            found.append(_Change("eager", freed=None))
        if failure in ("oom_profile", "oom_capture") and used:
            found.append(_Change("less", round(max(0.1, used - 0.05), 2), freed=None))
        found.append(_Change("sequences", freed=self._saved(model) or None))
        if no_cache:
            found.append(_Change("fp8", options={"kv_dtype": "fp8"}))
        if model.weights is None:
            left = _of_rank(model.quantised("fp8"), self.memory) / self.weights
            found.append(_Change("weights", options={"weights": "fp8"}, weights=left))
        gpus = 2 * self.memory.gpus
        tensor = gpus // self.memory.server.pipeline_parallel
        return [*found, _Change("gpus", tensor, {"gpus": gpus}, weights=0.5)]

    def _saved(self, model: ModelFacts) -> int:
        """Bytes that smaller steps free on a GPU of known size."""
        if not self.log.total and not isinstance(self.gpu, str):
            return 0
        device = gpu_of(self.gpu) if isinstance(self.gpu, str) else self.gpu
        server = self.memory.server
        fewer = replace(server, max_num_seqs=_FEW_SEQS, max_num_batched_tokens=_FEW_TOKENS)
        length = self.length or _FEW_TOKENS
        now, then = (
            rank_overhead(model, device, each, length, self.memory.gpus).activations.middle
            for each in (server, fewer)
        )
        return max(0, now - then)

    def _with(self, *changes: _Change, length: int | None) -> list[dict[str, Any]]:
        """The start after changes, with the tokens of the cache; nothing: there is still none.

        Args:
            length: the maximum length; None: the longest that fits.
        """
        freed = [each.freed for each in changes]
        if self.log.kv is None or None in freed:
            return [_remedy(changes)]
        left = prod(each.weights for each in changes)
        kv = self.log.kv + sum(filter(None, freed)) + int(self.weights * (1 - left))
        options = {name: value for each in changes for name, value in each.options.items()}
        memory = replace(self.memory, **options)
        budget = replace(memory, budget=kv * memory.gpus)
        try:
            starts = length is not None and _starts(self.name, self.gpu, budget, length)
            asked = Question(max_length=length if starts else None)
            found = fit(self.name, self.gpu, budget, asked)
        except UserError:  # not even a block, or heads that cannot be divided
            return []
        if changes[0].name == "max_length":
            changes = (changes[0]._replace(value=found.max_length),)
        tokens = found.capacity()["middle"]["tokens"]
        return [_remedy(changes, tokens, length if starts else None)]


def _remedy(
    changes: Sequence[_Change], tokens: int | None = None, enough: int | None = None
) -> dict[str, Any]:
    """Changes; ``enough``: the maximum length, where vLLM then starts with it."""
    first, *others = ({"name": each.name, "value": each.value} for each in changes)
    return {**first, "tokens": tokens, "enough": enough, "others": others}
