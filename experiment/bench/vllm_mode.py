"""vLLM as it is fastest here: eager or compiled, its threads bound in one of three ways.

    first pass     eager: auto, cores, nobind     compiled: auto, cores, nobind     one run each
    second pass    the best two once more, the second best first
    taken          the better of the two by the mean of its runs

Where one kind is asked for, only its modes are tried. A run is a short workload in a process of its
own, before the rounds. Every figure is kept.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from experiment.bench.plan import with_run, with_vllm
from experiment.bench.rounds import Ground, run_round
from experiment.bench.workloads import Lengths, Workload, ready
from experiment.config import Config
from experiment.launch import BIND, NOT_BOUND, VLLM, Prepared, find_vllm, has_compiler
from experiment.messages import Message, UserError, message
from experiment.thread_env import bound_cores
from experiment.thread_record import usable_cores

# Some of B's prompts, and long enough that the steps of decoding decide.
_REQUESTS, _NEW = 8, 24
AUTO, EAGER, COMPILED = "auto", "eager", "compiled"


def _short(_: random.Random) -> Lengths:
    return [(prompt, _NEW) for prompt in (5, 20, 60, 100)] * (_REQUESTS // 4)


PROBE = Workload("probe", _short, 128)


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to run vLLM; ``bind`` as ``VLLM_CPU_OMP_THREADS_BIND`` takes it."""

    eager: bool
    bind: str


@dataclass(slots=True)
class Probed:
    """Rates of a mode in tokens per second, None where a run had none, and why."""

    mode: Mode
    rates: list[float | None] = field(default_factory=list)
    reason: Message | None = None

    @property
    def rate(self) -> float | None:
        """The mean of its runs; None where one of them has no rate."""
        known = [rate for rate in self.rates if rate is not None]
        return mean(known) if known and len(known) == len(self.rates) else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        why = self.reason.model_dump(mode="json") if self.reason else None
        return {
            "eager": self.mode.eager, "bind": self.mode.bind, "rates": self.rates, "reason": why,
        }  # fmt: skip


Try = Callable[[Mode, int], tuple[float | None, Message | None]]


def bindings(
    device: str, threads: int | None, cores: int | None, given: Mapping[str, str] | None = None
) -> list[str]:
    """Ways to bind that are tried: one where the person, or the device, has decided.

    ``auto`` takes every core that it may run on, so it is left out where that is more than the
    threads of the other arms.

    Args:
        cores: usable ones; None: unknown.
        given: an environment; None: this process's.
    """
    decided = (os.environ if given is None else given).get(BIND)
    if decided is not None:
        return [decided]
    if device != "cpu":
        return [NOT_BOUND]
    fits = threads is None or (cores is not None and cores <= threads)
    explicit = [bound_cores(threads)] if threads else []
    return [*([AUTO] if fits else []), *explicit, NOT_BOUND]


def kinds_of(asked: str, device: str, compiler: bool) -> list[bool]:
    """Whether the model is run eagerly, in each of the ways that are tried.

    Raises:
        UserError: ``compiled`` is asked for on a CPU, and there is no C++ compiler.
    """
    kinds = [kind for kind, name in ((True, EAGER), (False, COMPILED)) if asked in (AUTO, name)]
    if device != "cpu" or compiler or False not in kinds:
        return kinds
    if asked == COMPILED:
        raise UserError(message("error.vllm_compiler"))
    return [True]


def find_fastest(modes: Sequence[Mode], attempt: Try) -> tuple[Mode | None, list[Probed]]:
    """Run each mode once and the best two once more; None where none has a rate.

    Args:
        attempt: runs a mode, the number says for which time; its rate, or why there is none.
    """
    probed = [Probed(mode) for mode in modes]
    for each in probed:
        _run_once(each, attempt)
    ranked = sorted((p for p in probed if p.rate), key=lambda p: p.rate or 0.0, reverse=True)
    best = ranked[:2]
    if len(best) > 1:
        for each in reversed(best):
            _run_once(each, attempt)
    chosen = max((p for p in best if p.rate), key=lambda p: p.rate or 0.0, default=None)
    return chosen.mode if chosen else None, probed


def _run_once(probed: Probed, attempt: Try) -> None:
    rate, reason = attempt(probed.mode, len(probed.rates))
    probed.rates.append(rate)
    probed.reason = probed.reason or reason


def faster_mode(
    runs: Path, ground: Ground, config: Config, say: Any, asked: str = AUTO
) -> dict[str, Any]:
    """``eager`` and ``bind`` are to be taken; ``probes`` holds what each mode reached.

    Without a C++ compiler nothing can be compiled on a CPU, so only eager modes are tried.

    Args:
        asked: ``eager`` or ``compiled``: only modes of that kind; ``auto``: both.

    Raises:
        UserError: as :func:`kinds_of`.
    """
    device = ground.environment.device
    ways = bindings(device, config.run.threads, len(usable_cores() or []) or None)
    told: dict[str, Any] = {
        "eager": asked != COMPILED, "bind": ways[0], "probes": [], "asked": asked,
    }  # fmt: skip
    found = find_vllm(config)
    if isinstance(found, Message):
        return told | {"reason": found.model_dump(mode="json")}
    kinds = kinds_of(asked, device, has_compiler())
    if asked == AUTO and len(kinds) == 1:
        told["reason"] = message("note.vllm_eager").model_dump(mode="json")
    say(message("bench.vllm_probe", n=len(kinds) * len(ways)))
    attempt = _attempts(runs, ground, config)
    chosen, probed = find_fastest([Mode(k, way) for k in kinds for way in ways], attempt)
    told["probes"] = [each.to_json() for each in probed]
    if chosen is None:
        why = next((each.reason for each in probed if each.reason), None)
        return told | {"reason": why.model_dump(mode="json") if why else None}
    return told | {"eager": chosen.eager, "bind": chosen.bind}


def _attempts(runs: Path, ground: Ground, config: Config) -> Try:
    """Runs of the short workload, each in a round of its own."""
    made = ready(PROBE, ground.prepared.model, config.cache.block_size, config.run.seed)
    prepared = Prepared(ground.prepared.directory, ground.prepared.model, made)
    here = Ground(ground.environment, prepared, ground.listener, ground.starting)

    def attempt(mode: Mode, number: int) -> tuple[float | None, Message | None]:
        asked = with_vllm(with_run(config, [VLLM], PROBE), mode.eager, mode.bind)
        kind = EAGER if mode.eager else COMPILED
        where = runs / f"vllm-{kind}-{mode.bind.replace(',', '+')}-{number}"
        result = run_round(where, here, asked, "probe", number, [VLLM], limits=False)
        if result.interrupted:
            raise KeyboardInterrupt
        row = next((row for row in result.rows if row.arm == VLLM), None)
        if row is None:
            return None, message("bench.not_run")
        problem = next(iter(row.problems), None)
        return row.useful_tokens_per_s, row.reason or problem

    return attempt
