"""What is asked of a benchmark, and which arms a round of a workload has, in which order.

    every round          what a person compares, and what is as quick
    first round alone    arms that take minutes on a CPU
    never                one request after another on C and D on a CPU: many minutes for a figure
                         that B has

On a GPU all arms are in every round; so they are for whoever names arms, however long they take.
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
# Rounds of an arm in a workload on a CPU, where nobody named arms; all others run in each.
_FEWER = {
    ("B", "contiguous.sequential"): 1,
    ("C", "contiguous.sequential"): 0,
    ("C", "transformers_paged"): 1,
    ("D", "contiguous.sequential"): 0,
    ("C", VLLM): 1,
}
# Blocks that vLLM has on a CPU too, so that all arms have the same.
_BLOCK_SIZE = {"cpu": 32, "cuda": 16}
PROFILED = ("slabs", "paged")


ROUNDS, TINY_ROUNDS, LEAST_ROUNDS, MINUTES = 5, 2, 2, 30.0


def turned(arms: Sequence[str], number: int) -> list[str]:
    """The arms of round ``number``: every second time backwards, and turned by one each time.

    What drifts over the run (heat, another program) meets no arm at the same place every round.
    """
    shift = (number // 2) % len(arms) if arms else 0
    order = [*arms[shift:], *arms[:shift]]
    return order[::-1] if number % 2 else order


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for.

    Attributes:
        named: arms were named, so all of them run in every round.
        limit_s: for the rounds of all workloads; None: all rounds, however long.
        least: rounds that run whatever the time.
        tiny: workloads and model for tests, in seconds.
        profile: all arms of ours in all workloads; else the paged one in A alone.
        usual: nobody named workloads, so that a GPU has those of GPUs beside them.
        vllm_mode: ``eager`` or ``compiled`` alone; ``auto``: the faster one, see
            :mod:`experiment.bench.vllm_mode`.
        threads: of each arm's pools; None: as the device has it, see :meth:`on`.
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
    def asked(
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
        """Options of a benchmark.

        Args:
            out: the directory that it writes into.
            workloads, arms: their names; None: the usual ones.
            rounds, minutes: whichever is given ends it; neither: :data:`ROUNDS` rounds, as many as
                begin within :data:`MINUTES`.
            tiny: see :class:`Options`, as for the fields in ``more``.
        """
        limited = minutes is not None or rounds is None
        return cls(
            workloads=tuple(workloads or NAMES),
            usual=workloads is None,
            arms=tuple(arms if arms is not None else (a for a in ARMS if not (tiny and a == VLLM))),
            named=arms is not None,
            rounds=rounds or (TINY_ROUNDS if tiny else ROUNDS),
            least=1 if minutes is not None else LEAST_ROUNDS,
            limit_s=(minutes or MINUTES) * 60 if limited else None,
            tiny=tiny,
            out=out,
            **more,
        )

    @property
    def chosen(self) -> list[Workload]:
        """The workloads."""
        return [each for each in (TINY if self.tiny else FULL) if each.name in self.workloads]

    def on(self, device: str) -> Options:
        """The same on a device that is known by now."""
        if device != "cuda":
            return replace(self, device=device, threads=self.threads or _CPU_THREADS)
        more = ON_GPU if self.usual else ()
        arms = self.arms if self.named or COMPILED in self.arms else (*self.arms, COMPILED)
        return replace(self, device=device, arms=arms, workloads=(*self.workloads, *more))

    def begins(self, number: int, passed_s: float, expected_s: float) -> bool:
        """Whether round ``number`` of a workload runs, by the time of all rounds before it."""
        late = self.limit_s is not None and passed_s + expected_s > self.limit_s
        return number < self.least or not late

    def arms_of(self, workload: str, number: int) -> list[str]:
        """Arms of a round in their order."""
        fewer = self._fewer()
        some = [arm for arm in self.arms if number < fewer.get((workload, arm), number + 1)]
        return turned(some, number)

    def _fewer(self) -> dict[tuple[str, str], int]:
        """Rounds of those that do not run in each."""
        return {} if self.named or self.tiny or self.device == "cuda" else _FEWER

    def left_out(self) -> list[LeftOut]:
        """Arms that run less often than others, or never."""
        reasons = {0: message("bench.left_out_slow"), 1: message("bench.left_out_once")}
        return [
            LeftOut(workload=workload, arm=arm, rounds=rounds, reason=reasons[rounds])
            for (workload, arm), rounds in self._fewer().items()
            if workload in self.workloads and arm in self.arms
        ]

    def profiled(self, workload: str, number: int) -> list[str]:
        """Arms that are run once more in a round, under the profiler."""
        ours = [arm for arm in PROFILED if arm in self.arms]
        if self.profile:
            return ours if number == 0 or workload == "A" else []
        return [arm for arm in ours if workload == "A" and arm == "paged"]


def base_config(options: Options, device: str) -> Config:
    """The config of every arm; a workload brings its own maximum length."""
    model = options.model or ("tiny-gpt2" if options.tiny else "gpt2")
    bind = bound_cores(options.threads) if device == "cpu" and options.threads else "nobind"
    run: dict[str, Any] = {
        "arms": list(options.arms),
        "device": device,
        "threads": options.threads,
        "seed": options.seed,
        # Looking at memory takes the arm's cores: a peak is on record at the stages anyway.
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
    """The config of a round."""
    cache = config.cache.model_copy(
        update={
            "max_length": workload.max_length,
            "watermark_blocks": workload.watermark_blocks(config.cache.block_size),
        }
    )
    section = config.run.model_copy(update={"arms": tuple(arms), **run})
    return config.model_copy(update={"cache": cache, "run": section})


def with_vllm(config: Config, eager: bool, bind: str) -> Config:
    """The config with vLLM's model compiled, or not, and its threads bound as ``bind`` says."""
    vllm = config.vllm.model_copy(update={"enforce_eager": eager, "threads_bind": bind})
    return config.model_copy(update={"vllm": vllm})
