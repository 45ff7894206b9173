"""What of a model fits on GPUs, and how fast: the part of a plan that takes no simulated policy.

model, GPU, memory, question ─► Fit ─► requests at once, least to most; what limits them; speed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from experiment.simulate.names import gpu_of, model_of
from experiment.simulate.parameter_count import EXPERTS
from experiment.simulate.setup import Memory, Setup, make_setup
from experiment.text.errors import UserError, user_error
from experiment.workload.kvsim_errors import model_refused, translate_errors
from kvsim.planning.capacity import (
    assumed_prompt,
    capacities,
    longest,
    mean_blocks,
    prompt_room,
)
from kvsim.planning.plan import PlanError, PlanQuestion
from kvsim.planning.speed import Speed, Traffic, most_within, running_at
from kvsim.sizing.fields import first_named
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.layout import LayerCache, Layout, LayoutError
from kvsim.sizing.overhead import TESTED

_MOST_LENGTH = 1 << 17  # of a model whose config has no positions
_MOST_TOKENS = 1 << 24  # of a request
_MILLION, _HOUR_S = 1e6, 3600.0


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a model on GPUs.

    Attributes:
        requests: (prompt, new) tokens of each kind; None: all of ``context`` tokens.
        context: tokens of a request; None: the maximum length, or else the model's positions. Times
            assume that an eighth of them is the answer.
        users: concurrent requests that are asked for.
        shared_prefix: tokens that all requests begin with.
        max_length: tokens; None: what the longest request needs.
        block_size: tokens; None: vLLM's default for the model.
        latency: a file that ``calibrate`` wrote; None: the bound of model and GPU.
        ttft_s, tpot_s: most time to the first token and per output token; None: any.
        rate: requests a second.
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
    rate: float | None = None
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

    @property
    def prompt(self) -> int | None:
        """Tokens of the longest prompt of the requests that are counted; None: not given."""
        if self._assumed:
            return None
        return max((p for p, n in self.plan.lengths if p + n == self.length), default=None)

    def answer(self) -> dict[str, Any]:
        """Capacity, what a rate comes to, and the speed with that, the users, or as many as fit."""
        capacity = self.capacity()
        load = self._load(capacity["most"])
        at_rate = (load["running"] or capacity["most"]) if load else 0
        running = max(capacity["users"] or 0, at_rate) or capacity["most"]
        return {
            "engines": self.plan.engines,
            "stages": self.plan.options.pipeline_parallel,
            "peer_bandwidth": self.plan.gpu.ring_bandwidth(
                self.plan.gpus // self.plan.options.pipeline_parallel
            ),
            "capacity": capacity,
            "load": load,
            "assumed": self._assumed,
            "speed": self.speed(max(1, min(running, capacity["most"]))),
        }

    def capacity(self) -> dict[str, Any]:
        """Requests of one length that fit, on all engines; of one what vLLM prints.

        ``most``: requests at once, on average, within memory, sequences and time.
        """
        plan, server, asked = self.plan, self.plan.options, self.asked
        sizes, alone = self._sizes(asked.shared_prefix), self._sizes(0)
        seqs = server.sequences(plan.gpu, self.max_length)
        most, limit = self._running(sizes["middle"]["requests"]), "memory"
        if plan.latency is not None:
            for name, value in self._targets.items():
                within = most_within(self.speed_at, most, **{name: value})
                if within < most:
                    most, limit = within, name.removesuffix("_s")
        if seqs * plan.engines < most:
            most, limit = seqs * plan.engines, "sequences"
        return {
            "length": self.length,
            "prompt": self.prompt,
            "shared_prefix": asked.shared_prefix,
            "unshared": alone["middle"]["requests"],
            "max_num_seqs": seqs,
            "limit": limit,
            "most": most,
            "users": asked.users,
            "remedy": None,
            "version": ".".join(map(str, min(server.version, TESTED))),
            "positions": plan.model.max_positions,
            "shortened": self.shortened,
            **sizes,
        }

    def _running(self, requests: int) -> int:
        """Requests at once: of those that grow from their prompts more than of whole ones."""
        if self.asked.requests is None or self.asked.shared_prefix:
            return requests
        layout, plan = self.layers[1], self.plan
        lengths = [pair for pair in plan.lengths if sum(pair) <= self.max_length]
        if not lengths:
            return requests
        blocks = self.setup.budget.kv // plan.gpus // layout.block_bytes
        mean = mean_blocks(layout, lengths)
        room = fmean(prompt_room(layout, plan.service(self.max_length), lengths))
        return int(max(0.0, blocks - room) / mean) * plan.engines

    def _sizes(self, shared_prefix: int) -> dict[str, dict[str, Any]]:
        """Least, expected and most."""
        found = capacities(
            self.layers[1], self.setup.budget, self.plan.gpus, self.plan.service(self.max_length),
            self.length, shared_prefix, self.prompt,
        )  # fmt: skip
        return {
            name: asdict(each) | {"requests": each.requests * self.plan.engines}
            for name, each in found.items()
        }

    def _load(self, most: int) -> dict[str, Any] | None:
        """Requests at once that the rate keeps running; None of them: more than it can serve."""
        rate, full = self.asked.rate, self.speed_at(most)
        if not most or rate is None or full is None:
            return None
        running = running_at(self.speed_at, rate, most) if rate <= full.rate else None
        share = running / most if running is not None else None
        return {"rate": rate, "running": running, "share": share, "most": full.rate}

    def speed(self, running: float) -> dict[str, Any] | None:
        """With so many requests at once on all engines; None without a latency model."""
        found, asked = self.speed_at(running), self.asked
        if found is None:
            return None
        per_hour = asked.price * self.plan.gpus * self.plan.engines if asked.price else None
        a_million = _MILLION / _HOUR_S / found.tokens_per_s
        return {
            "source": self.setup.latency_source,
            **asdict(found),
            "usd_per_hour": per_hour,
            "usd_per_million_tokens": per_hour * a_million if per_hour is not None else None,
            "slo": self._targets or None,
        }

    @property
    def _targets(self) -> dict[str, float]:
        targets = {"ttft_s": self.asked.ttft_s, "tpot_s": self.asked.tpot_s}
        return {name: value for name, value in targets.items() if value is not None}

    @cached_property
    def _assumed(self) -> tuple[int, int] | None:
        """(prompt, new) tokens of a request of which the sum alone is known."""
        if self.asked.requests is not None:
            return None
        prompt = assumed_prompt(self.length, self.asked.shared_prefix)
        return prompt, max(1, self.length - prompt)

    @cached_property
    def _traffic(self) -> Traffic:
        lengths = self.plan.lengths if self._assumed is None else [self._assumed]
        return Traffic.of(lengths, self.layers[0], self.asked.shared_prefix)

    def speed_at(self, running: float) -> Speed | None:
        """How fast all engines serve so many requests at once."""
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
    if not asked.prefix_caching:
        asked = replace(asked, shared_prefix=0)
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
            shared_latency=setup.latency_source == "roofline", options=memory.server,
            async_scheduling=asked.async_scheduling, prefix_caching=asked.prefix_caching,
        )  # fmt: skip

    if asked.shared_prefix and asked.shared_prefix >= _shortest(asked):
        raise user_error("error.plan.prefix", prefix=asked.shared_prefix, prompt=_shortest(asked))
    if memory.server.expert_parallel and not first_named(named.text, *EXPERTS):
        raise user_error("error.omit", what=named.name, flags="--enable-expert-parallel")
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
        if found.max_length > _MOST_TOKENS:
            raise PlanError("positions", max_length=found.max_length, positions=_MOST_TOKENS)
        if min(map(sum, requests)) > found.max_length:
            raise PlanError("too_long", max_length=found.max_length)
    return found


def _shortest(asked: Question) -> float:
    """Tokens of the shortest prompt; of a context all but one."""
    if asked.requests is not None:
        return min((prompt for prompt, _ in asked.requests), default=inf)
    return asked.context or asked.max_length or inf


def _layers(question: PlanQuestion) -> tuple[list[LayerCache], Layout]:
    try:
        with translate_errors():
            return question.layers()
    except LayoutError as error:
        raise UserError(model_refused(question.model.name, error.code)) from error


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
