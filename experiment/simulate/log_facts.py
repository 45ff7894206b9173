"""A start-up log of vLLM beside a model and a GPU: where each GiB went, and what differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from experiment.simulate.fit import Question, fit
from experiment.simulate.names import gpu_of, model_of
from experiment.simulate.setup import Memory
from kvsim.sizing.gpus import GPUFacts, custom_gpu
from kvsim.sizing.layout import token_bytes
from kvsim.sizing.models import ModelFacts
from kvsim.sizing.overhead import rank_overhead, rank_weights
from kvsim.sizing.start_log import StartLog

_GIB = 1 << 30
_ROUNDED = 0.003  # of tokens: a log rounds GiB
# Above these shares the model or the GPU is another one, rather than our estimate off.
OTHER_WEIGHTS, _OTHER_MEMORY = 0.2, 0.1
_REST = 2 << 30  # of a GPU whose size a log does not say, beside weights and cache
_SHORT = 2048  # maximum length of a model whose config has no positions


@dataclass(frozen=True)
class LogFacts:
    """A log beside a model and a GPU; bytes are of one GPU.

    Attributes:
        name: of the model. ``gpu``: None: not said.
        memory: options of the engine. ``length``: the maximum length; None: not said.
        block_size: None: vLLM's default for the model.
    """

    log: StartLog
    name: str
    gpu: str | GPUFacts | None
    memory: Memory
    length: int | None
    block_size: int | None = None

    @cached_property
    def model(self) -> ModelFacts:
        """The model that the plan is for."""
        return model_of(self.name, self.memory.weights)

    @property
    def longest(self) -> int | None:
        """The maximum length, by default the model's."""
        return self.length or self.model.max_positions

    @property
    def tensor(self) -> int:
        """Tensor-parallel ranks of a pipeline stage."""
        return self.memory.gpus // self.memory.server.pipeline_parallel

    @property
    def facts(self) -> GPUFacts | None:
        """The GPU that is given."""
        return gpu_of(self.gpu) if isinstance(self.gpu, str) else self.gpu

    @property
    def device(self) -> GPUFacts:
        """The GPU that is given, or one of a size that the log fits in."""
        size = self.log.total or max(0, self.kv or 0) + self.weights + _REST
        return self.facts or replace(custom_gpu(size, 1e12, 1e14), name="GPU", source="")

    @property
    def total(self) -> int | None:
        """Memory that CUDA reports; None: unknown."""
        return self.log.total or (self.facts.cuda_bytes if self.facts else None)

    @property
    def share(self) -> float:
        """``--gpu-memory-utilization``: the log's, or the default of its version."""
        return self.log.utilisation or self.memory.server.utilisation()

    @property
    def weights(self) -> int:
        """By the log or by the model."""
        return self.log.weights or self.weights_of(self.model)

    def weights_of(self, model: ModelFacts) -> int:
        """Bytes of a rank of another form of the model."""
        return rank_weights(model, self.tensor, None, self.memory.server)

    def rest(self) -> int | None:
        """Bytes that neither weights nor cache take, of a GPU whose size is known."""
        log, total = self.log, self.total
        if log.weights is None or log.kv is None or log.activations is not None or total is None:
            return None
        return max(0, int(total * self.share) - log.weights - log.kv)

    @cached_property
    def tokens(self) -> int | None:
        """Of the cache, as the log has them or by its blocks."""
        block = self.block_size or self.model.block_size
        return self.log.tokens or (self.log.blocks or 0) * block or None

    @cached_property
    def kv(self) -> int | None:
        """Bytes of the cache, as the log has them or by its tokens; may be below 0."""
        if self.log.kv is not None or self.tokens is None:
            return self.log.kv
        return self.tokens * token_bytes(self.memory.caches(self.model))

    def cache(self) -> tuple[int | None, int | None]:
        """Bytes of the cache, None: not said; and the tokens they hold by the plan, if others.

        The bytes are those of the log's tokens, where its bytes differ by rounding alone.
        """
        kv, printed = self.kv, self.tokens or self.log.longest
        if kv is None or kv <= 0 or not printed:
            return kv, None
        held = self._held(kv)
        if held and abs(printed / held - 1) < max(_ROUNDED, 0.01 * _GIB / kv):
            return -(-kv * printed // held), None
        return kv, held if self.tokens else None

    def _held(self, kv: int) -> int:
        memory = replace(self.memory, budget=kv * self.memory.gpus)
        asked = Question(max_length=self.longest, block_size=self.block_size)
        return int(fit(self.name, self.device, memory, asked).capacity()["middle"]["tokens"])

    def unlike(self, tensor: int, stages: int, engines: int) -> list[dict[str, Any]]:
        """Figures of the log that the model, the GPU or their number contradict.

        Args:
            tensor: ranks of a stage that were asked for, pipeline ``stages``, and data-parallel
                ``engines``; 1 may be the default.
        """
        log, facts, found = self.log, self.facts, list[tuple[str, Any, Any]]()
        if tensor not in (1, self.tensor) and tensor * stages != self.memory.gpus:
            found.append(("gpus", self.tensor, tensor))
        if stages not in (1, self.memory.server.pipeline_parallel):
            found.append(("stages", self.memory.server.pipeline_parallel, stages))
        if engines not in (1, self.memory.server.data_parallel):
            found.append(("engines", self.memory.server.data_parallel, engines))
        expected = self.weights_of(self.model)
        if log.weights and abs(log.weights / expected - 1) > OTHER_WEIGHTS:
            found.append(("weights", log.weights, expected))
        total = log.total
        if facts and total is None and log.weights and log.kv:
            length = self.longest or _SHORT
            parts = rank_overhead(self.model, facts, self.memory.server, length, self.tensor)
            beside = sum(part.middle for part in parts[1:])
            total = round((log.weights + log.kv + beside) / self.share)
        if facts and total and abs(total / facts.cuda_bytes - 1) > _OTHER_MEMORY:
            found.append(("memory", total, facts.cuda_bytes))
        return [{"name": name, "log": one, "plan": two} for name, one, two in found]


def starts(name: str, gpu: str | GPUFacts, memory: Memory, length: int) -> bool:
    """Whether vLLM starts with a maximum length.

    Raises:
        UserError: see :func:`experiment.simulate.fit.fit`.
    """
    found = fit(name, gpu, memory, Question(max_length=length)).capacity()
    return bool(found["middle"]["starts"])
