"""vLLM in the mode that is fastest here: eager or compiled, its threads bound in one of three ways.

    trials    each mode once on A and on B, in a process of its own, before the rounds
    taken     on A and B the mode with the highest rate there, elsewhere that of the last trials

Compiled steps with prompts take half the time of eager ones, decode steps the same: which mode is
faster depends on the workload. ``--vllm-mode`` leaves one of the two out. Every rate is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from experiment.arms.launch import BIND, NOT_BOUND
from experiment.bench.workloads import Workload
from experiment.machine.thread_variables import bound_cores
from experiment.text.errors import user_error
from experiment.text.messages import Message, message

AUTO, EAGER, COMPILED = "auto", "eager", "compiled"
_ON = ("A", "B")  # on C it takes minutes, and D is like B


@dataclass(frozen=True, slots=True)
class Mode:
    """How vLLM runs; ``bind`` as ``VLLM_CPU_OMP_THREADS_BIND`` takes it."""

    eager: bool
    bind: str


# Runs vLLM once in a mode; its rate, or why there is none.
Attempt = Callable[[Workload, Mode], tuple[float | None, Message | None]]


def bindings(
    device: str, threads: int | None, cores: int | None, given: Mapping[str, str] | None = None
) -> list[str]:
    """Ways to bind threads: one where the environment, or the device, decides.

    ``auto`` takes every usable core, so it is left out where that is more than the threads of the
    other arms.

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
    return [*([AUTO] if fits else []), *([bound_cores(threads)] if threads else []), NOT_BOUND]


def kinds_of(asked: str, device: str, compiler: bool) -> list[bool]:
    """Whether the model runs eagerly, in each kind of mode that is tried.

    Raises:
        UserError: ``compiled`` is asked for on a CPU, and there is no C++ compiler.
    """
    kinds = [kind for kind, name in ((True, EAGER), (False, COMPILED)) if asked in (AUTO, name)]
    if device != "cpu" or compiler or False not in kinds:
        return kinds
    if asked == COMPILED:
        raise user_error("error.vllm_compiler")
    return [True]


def fastest_modes(
    modes: Sequence[Mode], workloads: Sequence[Workload], attempt: Attempt
) -> dict[str, Any]:
    """The trials, and the mode that is taken on each workload that had them.

    ``eager`` and ``bind`` are the mode of all other workloads. ``reason`` says why no mode has a
    rate.
    """
    told: dict[str, Any] = {**asdict(modes[0]), "finals": {}, "modes": {}, "reason": None}
    for workload in [each for each in workloads if each.name in _ON] or workloads[:1]:
        trials = told["finals"][workload.name] = []
        best = 0.0
        for mode in modes:
            rate, why = attempt(workload, mode)
            reason = why.model_dump(mode="json") if why else None
            trials.append(asdict(mode) | {"rates": [rate], "reason": reason})
            if rate and rate > best:
                best = rate
                told |= asdict(mode)
                told["modes"][workload.name] = asdict(mode)
            told["reason"] = told["reason"] or reason
    return told | ({"reason": None} if told["modes"] else {})


def mode_on(told: Mapping[str, Any], workload: str) -> Mode:
    """What is taken on a workload."""
    mode = told["modes"].get(workload, told)
    return Mode(bool(mode["eager"]), str(mode["bind"]))


def only_eager(asked: str, kinds: Sequence[bool]) -> Message | None:
    """Why compiled modes were not tried though nobody left them out."""
    return message("note.vllm_eager") if asked == AUTO and len(kinds) == 1 else None
