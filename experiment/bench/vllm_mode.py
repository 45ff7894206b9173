"""Find the fastest mode of vLLM: eager or compiled, with one of three thread bindings.

    trials    each mode once on A and on B, in separate processes, before the rounds
    chosen    on A and B the mode with the highest rate there, elsewhere that of the last trials

Compiled prefill steps take half the time of eager ones, decode steps the same, so the fastest mode
depends on the workload. ``--vllm-mode`` restricts the trials. All rates are recorded.
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
from experiment.text.messages import Message

AUTO, EAGER, COMPILED = "auto", "eager", "compiled"
_ON = ("A", "B")  # on C it takes minutes, and D is like B


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode of vLLM; ``bind`` is a value of ``VLLM_CPU_OMP_THREADS_BIND``."""

    eager: bool
    bind: str


# Runs vLLM once in a mode; returns its rate, or the reason why there is none.
Attempt = Callable[[Workload, Mode], tuple[float | None, Message | None]]


def bindings(
    device: str,
    threads: int | None,
    cores: int | None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Thread bindings to try; only one if the environment or the device determines it.

    ``auto`` uses every usable core, so it is excluded if these are more than ``threads``.

    Args:
        threads: of the other arms.
        cores: usable cores; None: unknown.
        environment: environment variables; None: of this process.
    """
    decided = (os.environ if environment is None else environment).get(BIND)
    if decided is not None:
        return [decided]
    if device != "cpu":
        return [NOT_BOUND]
    fits = threads is None or (cores is not None and cores <= threads)
    return [*([AUTO] if fits else []), *([bound_cores(threads)] if threads else []), NOT_BOUND]


def kinds_of(asked: str, device: str, compiler: bool) -> list[bool]:
    """Kinds of mode to try: True for eager, False for compiled.

    Raises:
        UserError: ``compiled`` is requested on a CPU without a C++ compiler.
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
    """Run the trials; return them and the fastest mode of each tried workload.

    ``eager`` and ``bind`` are the mode of all other workloads; ``reason`` is why no mode has a
    rate.
    """
    found: dict[str, Any] = {**asdict(modes[0]), "finals": {}, "modes": {}, "reason": None}
    for workload in [each for each in workloads if each.name in _ON] or workloads[:1]:
        trials = found["finals"][workload.name] = []
        best = 0.0
        for mode in modes:
            rate, why = attempt(workload, mode)
            reason = why.model_dump(mode="json") if why else None
            trials.append(asdict(mode) | {"rates": [rate], "reason": reason})
            if rate and rate > best:
                best = rate
                found |= asdict(mode)
                found["modes"][workload.name] = asdict(mode)
            found["reason"] = found["reason"] or reason
    return found | ({"reason": None} if found["modes"] else {})


def mode_on(trials: Mapping[str, Any], workload: str) -> Mode:
    """The mode to use for a workload."""
    mode = trials["modes"].get(workload, trials)
    return Mode(bool(mode["eager"]), str(mode["bind"]))
