"""Options of a benchmark, and the arms of each round.

    every round          arms of the comparison, and fast ones
    first round only     arms that take minutes on a CPU
    never                sequential requests on C and D on a CPU, because B has the same figure

On a GPU, and if arms are named, all arms run in every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiment.arms.launch import VLLM
from experiment.bench.data import LeftOut
from experiment.bench.workloads import FULL, NAMES, ON_GPU, TINY, Workload
from experiment.config.schema import Config
from experiment.machine.thread_variables import bound_cores
from experiment.text.messages import message
from experiment.workload.requests import COMPILED

ARMS = (
    "contiguous.sequential", "contiguous.batch", "slabs", "paged", "transformers_paged", VLLM,
)  # fmt: skip
_CPU_THREADS = 2
# Rounds of an arm in a workload on a CPU, unless arms are named; all others run in each round.
_FEWER = {
    ("B", "contiguous.sequential"): 1,
    ("C", "contiguous.sequential"): 0,
    ("C", "transformers_paged"): 1,
    ("D", "contiguous.sequential"): 0,
    ("C", VLLM): 1,
}
# Block sizes that vLLM supports, so that all arms have the same.
_BLOCK_SIZE = {"cpu": 32, "cuda": 16}
PROFILED = ("slabs", "paged")
ROUNDS, TINY_ROUNDS, MIN_ROUNDS, MINUTES = 5, 2, 2, 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a benchmark.

    Attributes:
        named: arms were named, so all of them run in every round.
        limit_s: for the rounds of all workloads; None: no limit.
        least: minimum number of rounds, regardless of the limit.
        tiny: workloads and model for tests, which take seconds.
        profile: profile all arms of our engine in all workloads; else the paged one in A.
        usual: no workloads were named, so a GPU adds its own.
        vllm_mode: ``eager``, ``compiled``, or ``auto`` for the faster one, see
            :mod:`experiment.bench.vllm_mode`.
        threads: of each arm; None: by device, see :meth:`for_device`.
    """

    workloads: tuple[str, ...]
    arms: tuple[str, ...]
    named: bool
    rounds: int
    least: int
    limit_s: float | None
    tiny: bool
    out: Path
    threads: int | None = None
    profile: bool = False
    device: str = "auto"
    dtype: str = "auto"
    model: str | None = None
    vllm_mode: str = "auto"
    seed: int = 0
    command: tuple[str, ...] = ()
    lang: str = "en"
    usual: bool = False

    @classmethod
    def create(
        cls,
        out: Path,
        workloads: Sequence[str] | None = None,
        arms: Sequence[str] | None = None,
        rounds: int | None = None,
        minutes: float | None = None,
        *,
        tiny: bool = False,
        **more: Any,
    ) -> Options:
        """Create options with defaults.

        Args:
            out: directory of the results.
            workloads, arms: names; None: the default ones.
            rounds, minutes: limits; None for both: :data:`ROUNDS` rounds that begin within
                :data:`MINUTES`.
            tiny: see :class:`Options`, as for the fields in ``more``.
        """
        limited = minutes is not None or rounds is None
        return cls(
            workloads=tuple(workloads or NAMES),
            usual=workloads is None,
            arms=tuple(arms if arms is not None else (a for a in ARMS if not (tiny and a == VLLM))),
            named=arms is not None,
            rounds=rounds or (TINY_ROUNDS if tiny else ROUNDS),
            least=1 if minutes is not None else MIN_ROUNDS,
            limit_s=(minutes or MINUTES) * 60 if limited else None,
            tiny=tiny,
            out=out,
            **more,
        )

    @property
    def chosen(self) -> list[Workload]:
        """The workloads."""
        return [each for each in (TINY if self.tiny else FULL) if each.name in self.workloads]

    def for_device(self, device: str) -> Options:
        """Options with the defaults of a device."""
        if device != "cuda":
            return replace(self, device=device, threads=self.threads or _CPU_THREADS)
        more = ON_GPU if self.usual else ()
        arms = self.arms if self.named or COMPILED in self.arms else (*self.arms, COMPILED)
        return replace(self, device=device, arms=arms, workloads=(*self.workloads, *more))

    def begins(self, number: int, passed_s: float, expected_s: float) -> bool:
        """Whether round ``number`` of a workload runs; seconds passed, and expected for it."""
        late = self.limit_s is not None and passed_s + expected_s > self.limit_s
        return number < self.least or not late

    def arms_of(self, workload: str, number: int) -> list[str]:
        """Arms of a round; :func:`experiment.bench.rounds.round_order` sorts them."""
        fewer = self._fewer()
        return [arm for arm in self.arms if number < fewer.get((workload, arm), number + 1)]

    def _fewer(self) -> dict[tuple[str, str], int]:
        """Number of rounds of arms that do not run in all."""
        return {} if self.named or self.tiny or self.device == "cuda" else _FEWER

    def left_out(self) -> list[LeftOut]:
        """Arms that do not run in all rounds, with reasons."""
        reasons = {0: message("bench.left_out_slow"), 1: message("bench.left_out_once")}
        return [
            LeftOut(workload=workload, arm=arm, rounds=rounds, reason=reasons[rounds])
            for (workload, arm), rounds in self._fewer().items()
            if workload in self.workloads and arm in self.arms
        ]

    def profiled(self, workload: str, number: int) -> list[str]:
        """Arms that run once more in a round, with the profiler."""
        ours = [arm for arm in PROFILED if arm in self.arms]
        if self.profile:
            return ours if number == 0 or workload == "A" else []
        return [arm for arm in ours if workload == "A" and arm == "paged"]


def base_config(options: Options, device: str) -> Config:
    """Config of every arm; a workload has its own maximum length."""
    model = options.model or ("tiny-gpt2" if options.tiny else "gpt2")
    bind = bound_cores(options.threads) if device == "cpu" and options.threads else "nobind"
    run: dict[str, Any] = {
        "arms": list(options.arms),
        "device": device,
        "threads": options.threads,
        "seed": options.seed,
        # Sampling memory takes CPU time of the arm, and stages record peaks anyway.
        "sample_interval_ms": 200,
        "witness": False,
        "arm_timeout_s": 3600,
    }
    longest = max(workload.max_length for workload in options.chosen)
    return Config.model_validate(
        {
            "model": {"name": model, "dtype": options.dtype, "offline": True},
            "cache": {"max_length": longest, "block_size": _BLOCK_SIZE[device]},
            "vllm": {"threads_bind": bind},
            "run": run,
        }
    )


def with_run(config: Config, arms: Sequence[str], workload: Workload, **run: Any) -> Config:
    """Config of a round."""
    cache = config.cache.model_copy(
        update={
            "max_length": workload.max_length,
            "watermark_blocks": workload.watermark_blocks(config.cache.block_size),
        }
    )
    section = config.run.model_copy(update={"arms": tuple(arms), **run})
    return config.model_copy(update={"cache": cache, "run": section})


def with_vllm(config: Config, eager: bool, bind: str) -> Config:
    """Config with vLLM eager or compiled, and its threads bound by ``bind``."""
    vllm = config.vllm.model_copy(update={"enforce_eager": eager, "threads_bind": bind})
    return config.model_copy(update={"vllm": vllm})
