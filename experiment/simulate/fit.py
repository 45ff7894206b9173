"""What of a model fits on GPUs, and how fast: the part of a plan that takes no simulated policy.

model, GPU, memory, question ─► Fit ─► requests at once, least to most; what limits them; speed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiment.simulate.names import gpu_of, model_of
from experiment.simulate.setup import Memory, Setup, make_setup
from experiment.text.errors import user_error
from experiment.text.messages import message
from experiment.workload.kvsim_errors import translate_errors
from kvsim.planning.capacity import capacities, longest
from kvsim.planning.plan import PlanQuestion
from kvsim.planning.speed import Speed, Traffic, most_within
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.layout import LayerCache, Layout, LayoutError

_MOST_LENGTH = 1 << 17  # of a model whose config has no positions
_MILLION, _HOUR_S = 1e6, 3600.0


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a model on GPUs.

    Attributes:
        requests: (prompt, new) tokens of each kind; None: all of ``context`` tokens.
        context: tokens of a request; None: the maximum length, or else the model's positions.
        users: concurrent requests that are asked for.
        shared_prefix: tokens that all requests begin with.
        max_length: tokens; None: what the longest request needs.
        block_size: tokens; None: vLLM's default for the model.
        latency: a file that ``calibrate`` wrote; None: the bound of model and GPU.
        ttft_s, tpot_s: most time to the first token and per output token; None: any.
        price: of a GPU, USD an hour.
        async_scheduling, prefix_caching: of vLLM, by its defaults.
    """

    requests: Sequence[tuple[int, int]] | None = None
    context: int | None = None
    users: int | None = None
    shared_prefix: int = 0
    max_length: int | None = None
    block_size: int | None = None
    latency: Path | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    price: float | None = None
    async_scheduling: bool = True
    prefix_caching: bool = True


@dataclass(frozen=True)
class Fit:
    """A model on GPUs, and the question."""

    plan: PlanQuestion
    setup: Setup
    asked: Question
    shortened: bool

    @cached_property
    def layers(self) -> tuple[list[LayerCache], Layout]:
        """What the layers of a GPU keep, and vLLM's layout."""
        return _layers(self.plan)

    @property
    def max_length(self) -> int:
        """Tokens of the longest request."""
        return self.plan.longest()

    @property
    def length(self) -> int:
        """Tokens of the requests that are counted."""
        sizes = set(map(sum, self.plan.lengths))
        return sizes.pop() if len(sizes) == 1 else self.max_length

    def capacity(self) -> dict[str, Any]:
        """Requests of one length that fit, on all engines; of one what vLLM prints."""
        plan, server, asked = self.plan, self.plan.options, self.asked
        sizes, alone = self._sizes(asked.shared_prefix), self._sizes(0)
        seqs = server.sequences(plan.gpu, self.max_length)
        most = min(sizes["middle"]["requests"], seqs * server.data_parallel)
        limit = "sequences" if most < sizes["middle"]["requests"] else "memory"
        within = self._within(most)
        if within is not None and within < most:
            each = {
                name: most_within(self._speed, most // server.data_parallel, **{name: value})
                for name, value in self._targets.items()
            }
            limit, most = min(each, key=lambda name: each[name]).removesuffix("_s"), within
        return {
            "length": self.length,
            "shared_prefix": asked.shared_prefix,
            "unshared": alone["middle"]["requests"],
            "max_num_seqs": seqs,
            "limit": limit,
            "most": most,
            "users": asked.users,
            "version": ".".join(map(str, server.version)),
            "positions": plan.model.max_positions,
            "shortened": self.shortened,
            **sizes,
        }

    def _sizes(self, shared_prefix: int) -> dict[str, dict[str, Any]]:
        """Least, expected and most."""
        engines = self.plan.options.data_parallel
        found = capacities(
            self.layers[1], self.setup.budget, self.plan.gpus, self.plan.service(self.max_length),
            self.length, shared_prefix,
        )  # fmt: skip
        return {
            name: asdict(each) | {"requests": each.requests * engines}
            for name, each in found.items()
        }

    def speed(self, running: int) -> dict[str, Any] | None:
        """With so many requests at once on all engines; None: no latency model, or no request."""
        engines, asked = self.plan.options.data_parallel, self.asked
        found = self._speed(-(-running // engines))
        if found is None:
            return None
        gpus = self.plan.gpus * engines
        tokens = running / found.tpot_s if found.tpot_s else None
        each = tokens / found.tokens_per_s if tokens and found.tokens_per_s else 1.0
        price = None
        if asked.price is not None and tokens:
            price = asked.price * gpus / (tokens * _HOUR_S) * _MILLION
        return {
            "source": self.setup.latency_source,
            "running": running,
            "tpot_s": found.tpot_s,
            "ttft_s": found.ttft_s,
            "rate": found.rate * each if found.rate is not None else None,
            "tokens_per_s": tokens,
            "usd_per_million_tokens": price,
            "slo": self._targets or None,
        }

    @property
    def _targets(self) -> dict[str, float]:
        targets = {"ttft_s": self.asked.ttft_s, "tpot_s": self.asked.tpot_s}
        return {name: value for name, value in targets.items() if value is not None}

    def _within(self, most: int) -> int | None:
        """Requests at once that meet the targets; None: there are none, or no latency model."""
        if not self._targets or self.plan.latency is None:
            return None
        engines = self.plan.options.data_parallel
        return most_within(self._speed, most // engines, **self._targets) * engines

    @cached_property
    def _traffic(self) -> Traffic:
        traffic = Traffic.of(self.plan.lengths, self.layers[0])
        return traffic.decoding() if self.asked.requests is None else traffic

    def _speed(self, running: float) -> Speed | None:
        return self.plan.speed(self._traffic, running, self.max_length)


def fit(model: str, gpu: str | GPUFacts, memory: Memory, asked: Question) -> Fit:
    """Set up the question.

    Args:
        model: a name of the catalogue, a config.json or its directory; ``gpu``: a name, or facts.

    Raises:
        UserError: a name, the memory or a length does not fit.
    """
    named = model_of(model, memory.weights)
    device = gpu if isinstance(gpu, GPUFacts) else gpu_of(gpu)
    max_length, requests, shortened = asked.max_length, asked.requests, False

    def set_up(length: int | None) -> Setup:
        return make_setup(
            named, device, memory, max_length=length, block_size=asked.block_size,
            latency=asked.latency,
        )  # fmt: skip

    def question(setup: Setup) -> PlanQuestion:
        return PlanQuestion(
            named, setup.gpu, requests or (), gpus=setup.gpus, block_size=asked.block_size,
            max_length=max_length, budget=setup.budget, kv_dtype=setup.kv_dtype,
            dtype=memory.dtype, latency=setup.latency if setup.gpu.source else None,
            options=memory.server, async_scheduling=asked.async_scheduling,
            prefix_caching=asked.prefix_caching,
        )  # fmt: skip

    if requests is None:
        length = max_length or asked.context
        if length is None:
            setup = set_up(None)
            length = _longest(setup, question(setup))
            shortened = length < (named.max_positions or length)
        max_length = length
        requests = [(max(1, (asked.context or length) - 1), 1)]
    setup = set_up(max_length)
    with translate_errors():
        found = Fit(question(setup), setup, asked, shortened)
        found.plan.longest()
    return found


def _layers(question: PlanQuestion) -> tuple[list[LayerCache], Layout]:
    try:
        with translate_errors():
            return question.layers()
    except LayoutError as error:
        why = message(f"geometry.{error.code}").model_dump()
        raise user_error("error.sim.model_refused", model=question.model.name, why=why) from error


def _longest(setup: Setup, question: PlanQuestion) -> int:
    """The model's positions, or the longest maximum length with which vLLM starts.

    Raises:
        UserError: not even a block fits.
    """
    most = setup.model.max_positions or _MOST_LENGTH
    _, layout = _layers(question)
    kv = setup.budget.kv if setup.budget.low is None else setup.budget.low  # to start surely
    found = longest(layout, kv, setup.gpus, question.service, most)
    if not found:
        size = setup.block_size
        raise user_error("error.plan.no_block", slots=0, max_length=size)
    return found if found == most else max(1, found // setup.block_size) * setup.block_size
