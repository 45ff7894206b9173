"""vLLM as it is fastest here: eager or compiled, its threads bound in one of three ways.

    probe     eager: auto, cores, nobind     compiled: auto, cores, nobind     one run of each
    finals    the best eager way against the best compiled one, on each workload that a target
              compares with vLLM: eager, compiled, compiled, eager, so that what drifts meets both
    taken     the one with the larger mean, workload by workload; the others take what the last of
              these took

Compiled steps over prompts take half the time of eager ones, steps that decode the same: which is
faster depends on the workload, and no short probe tells it. Where one kind is asked for, only its
ways are tried, and there is no final. The probe is a short workload; each run is a process of its
own, before the rounds. Every figure is kept.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from experiment.arms.launch import BIND, NOT_BOUND, VLLM, find_vllm, has_compiler
from experiment.bench.plan import with_run, with_vllm
from experiment.bench.rounds import Ground, grounded, run_round
from experiment.bench.workloads import Lengths, Workload
from experiment.config.schema import Config
from experiment.machine.thread_record import usable_cores
from experiment.machine.thread_variables import bound_cores
from experiment.text.errors import user_error
from experiment.text.messages import Message, message

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
    """Useful tokens per second of each run of a mode, None where there is no rate, and why."""

    mode: Mode
    rates: list[float | None] = field(default_factory=list)
    reason: Message | None = None

    @property
    def rate(self) -> float | None:
        """The mean of its runs; None where none has a rate."""
        known = [rate for rate in self.rates if rate]
        return mean(known) if known else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        why = self.reason.model_dump(mode="json") if self.reason else None
        return _plain(self.mode) | {"rates": self.rates, "reason": why}


def _plain(mode: Mode) -> dict[str, Any]:
    return {"eager": mode.eager, "bind": mode.bind}


Try = Callable[[Mode], tuple[float | None, Message | None]]


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
        raise user_error("error.vllm_compiler")
    return [True]


def finalists(probed: Sequence[Probed]) -> list[Mode]:
    """The best eager and the best compiled way, eager first; only those that have a rate."""
    best: dict[bool, Probed] = {}
    for each in sorted((p for p in probed if p.rate), key=lambda p: p.rate or 0.0):
        best[each.mode.eager] = each
    return [best[kind].mode for kind in (True, False) if kind in best]


def faster(modes: Sequence[Mode], attempt: Try) -> tuple[Mode | None, list[Probed]]:
    """Run the modes in their order and take the one with the best mean; None: none has a rate.

    Args:
        modes: one that is named again is run again.
        attempt: runs a mode; its rate, or why there is none.
    """
    found = {mode: Probed(mode) for mode in modes}
    for mode in modes:
        rate, reason = attempt(mode)
        found[mode].rates.append(rate)
        found[mode].reason = found[mode].reason or reason
    probed = list(found.values())
    best = max((p for p in probed if p.rate), key=lambda p: p.rate or 0.0, default=None)
    return best.mode if best else None, probed


def faster_mode(
    runs: Path, ground: Ground, config: Config, say: Any, workloads: Sequence[Workload], asked: str
) -> dict[str, Any]:
    """What each way reached, and what is to be taken.

    ``modes`` has it for the workloads that were tried, ``eager`` and ``bind`` are for the others;
    ``probes`` and ``finals`` hold what was reached. Whether that is vLLM's faster mode says
    :func:`experiment.bench.vllm_trials.why_not_faster`.

    Without a C++ compiler nothing can be compiled on a CPU, so only eager modes are tried, and
    ``reason`` says so; else it says why no mode has a rate.

    Args:
        workloads: on which the finals are run.
        asked: ``eager`` or ``compiled``: only modes of that kind; ``auto``: both.

    Raises:
        UserError: as :func:`kinds_of`.
    """
    device = ground.environment.device
    ways = bindings(device, config.run.threads, len(usable_cores() or []) or None)
    told: dict[str, Any] = {
        "eager": asked != COMPILED, "bind": ways[0], "asked": asked,
        "probes": [], "finals": {}, "modes": {},
    }  # fmt: skip
    found = find_vllm(device)
    if isinstance(found, Message):
        return told | {"reason": found.model_dump(mode="json")}
    kinds = kinds_of(asked, device, has_compiler())
    if asked == AUTO and len(kinds) == 1:
        told["reason"] = message("note.vllm_eager").model_dump(mode="json")
    say(message("bench.vllm_probe", n=len(kinds) * len(ways)))
    every = [Mode(kind, way) for kind in kinds for way in ways]
    chosen, probed = faster(every, _attempts(runs, ground, config, PROBE))
    told["probes"] = [each.to_json() for each in probed]
    if chosen is None:
        why = next((each.reason for each in probed if each.reason), None)
        return {"reason": why.model_dump(mode="json") if why else None} | told
    best = finalists(probed)
    for workload in workloads if len(best) > 1 else ():
        say(message("bench.vllm_final", workload=workload.name))
        there_and_back = [*best, *reversed(best)]
        won, probed = faster(there_and_back, _attempts(runs, ground, config, workload))
        told["finals"][workload.name] = [each.to_json() for each in probed]
        if won is not None:
            chosen = won
            told["modes"][workload.name] = _plain(won)
    return told | _plain(chosen)


def mode_on(told: dict[str, Any], workload: str) -> Mode:
    """What is taken on a workload."""
    mode = told["modes"].get(workload, told)
    return Mode(bool(mode["eager"]), str(mode["bind"]))


def _attempts(runs: Path, ground: Ground, config: Config, workload: Workload) -> Try:
    """Runs of a workload, each in a round of its own."""
    here = grounded(ground, config, workload)
    times: Counter[Mode] = Counter()

    def attempt(mode: Mode) -> tuple[float | None, Message | None]:
        asked = with_vllm(with_run(config, [VLLM], workload), mode.eager, mode.bind)
        kind = EAGER if mode.eager else COMPILED
        name = f"vllm-{workload.name}-{kind}-{mode.bind.replace(',', '+')}-{times[mode]}"
        times[mode] += 1
        where = runs / name
        result = run_round(where, here, asked, workload.name, 0, [VLLM], limits=False)
        if result.interrupted:
            raise KeyboardInterrupt
        row = next((row for row in result.rows if row.arm == VLLM), None)
        if row is None:
            return None, message("bench.not_run")
        problem = next(iter(row.problems), None)
        return row.useful_tokens_per_s, row.reason or problem

    return attempt
