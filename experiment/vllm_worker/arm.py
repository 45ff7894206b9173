"""Run vLLM's engine on the workload.

START ─ worker processes, weights, compilation ─ LOADED ─ cache ─ CACHE_READY ─ graphs
    ─ first requests ─ the workload ─ LAST_STEP ─ shutdown ─ RELEASED
"""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import version
from operator import attrgetter
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from experiment.events import (
    ArmFinished,
    EngineReported,
    EngineStep,
    Keyframe,
    Notice,
    Stage,
)
from experiment.events.pace import KEYFRAME_EVERY
from experiment.events.sampling import SamplingConfig
from experiment.process.wire import Wire
from experiment.text.errors import user_error
from experiment.text.messages import message
from experiment.text.redaction import without_private
from experiment.vllm_worker.inside import LastStats, MeasuredExecutor, RankReport
from experiment.vllm_worker.reporter import Reporter
from experiment.vllm_worker.task import VllmTask
from experiment.vllm_worker.variables import recorded_variables
from experiment.vllm_worker.watcher import SchedulerWatcher
from experiment.workload.arrival_clock import ArrivalClock
from experiment.workload.first_prompts import NEW_TOKENS
from experiment.workload.request_times import RequestProgress
from kvsim.core.observed import ScheduleTrace
from kvsim.core.step import FinishReason


def decoder(wire: Wire, task: VllmTask) -> Callable[[list[int]], str]:
    """Token ids → text; where vLLM's Transformers cannot read the tokenizer, no text."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            task.directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the text is for the reader's eyes alone: tokens are compared
        detail = without_private(str(error))[:200]
        wire.emit(Notice(text=message("note.vllm_no_text", detail=detail)))
        return lambda _: ""
    return lambda tokens: str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))


def versions() -> dict[str, str]:
    """Of everything whose version may matter."""
    from vllm import __version__ as vllm_version

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "vllm": vllm_version,
    }


def plain(value: Any) -> Any:
    """What a record can hold; a path of the person's home is no part of it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return without_private(str(value))[:300]


_PROGRESS = {"load": "progress.vllm_compile", "compile": "progress.vllm_cache"}
_REASONS = {"length": FinishReason.LENGTH, "stop": FinishReason.STOP}


def run(wire: Wire, task: VllmTask, import_s: float) -> None:
    """Run the arm, in a new process."""
    reporter = Reporter(wire, task, decoder(wire, task))
    reporter.mark(Stage.START)
    start = _Start(reporter)
    engine = start.engine()
    try:
        start.report(engine)
        for repeat in reporter.repeats(task.repeats):
            if repeat:  # without state of earlier repeats
                engine.reset_prefix_cache()
            _Generation(engine, start.stats, reporter).run_all()
        assert reporter.ranks is not None
        rank = reporter.ranks()[0]
    finally:
        reporter.ranks = None
        engine.engine_core.shutdown()
    reporter.mark(Stage.RELEASED)
    reporter.emit(
        ArmFinished(
            arm=task.arm,
            import_s=import_s,
            load_s=start.seconds["load"],
            generate_s=reporter.generate_s,
            threads=rank["threads"],
            device_name=rank["device_name"],
        )
    )


class _Start:
    """Start the engine, with a stage after each phase."""

    def __init__(self, reporter: Reporter) -> None:
        self.stats = LastStats()
        self.seconds: dict[str, float] = {}
        self._reporter = reporter
        self._task = reporter.task
        self._arguments: dict[str, Any] = {}

    def engine(self) -> Any:
        """Create the engine, with loaded weights and a reserved cache."""
        self._reporter.progress("progress.vllm_load")
        MeasuredExecutor.on_phase = staticmethod(self._phase)
        extension = f"{RankReport.__module__}.{RankReport.__qualname__}"
        arguments = EngineArgs(
            **self._task.arguments,
            distributed_executor_backend=MeasuredExecutor,
            worker_extension_cls=extension,
        )
        self._arguments = {name: plain(value) for name, value in vars(arguments).items()}
        return LLMEngine.from_engine_args(arguments, stat_loggers=[lambda *_: self.stats])

    def report(self, engine: Any) -> None:
        """Run first requests, then report the engine and its capacity."""
        first_s = self._first_requests(engine)
        cache = engine.vllm_config.cache_config
        assert self._reporter.ranks is not None
        self._reporter.emit(
            EngineReported(
                arm=self._task.arm,
                versions=versions(),
                arguments=self._arguments,
                variables=recorded_variables(),
                blocks=cache.num_gpu_blocks,
                block_size=cache.block_size,
                tokens=cache.kv_cache_size_tokens,
                max_concurrency=cache.kv_cache_max_concurrency,
                max_length=engine.vllm_config.model_config.max_model_len,
                rank_bytes=[report["kv_bytes"] for report in self._reporter.ranks()],
                first_request_s=first_s,
                **{f"{phase}_s": seconds for phase, seconds in self.seconds.items()},
            )
        )

    def _phase(self, executor: Any, phase: str, seconds: float) -> None:
        self.seconds[phase] = seconds
        if phase in _PROGRESS:
            self._reporter.progress(_PROGRESS[phase])
        if phase == "compile":
            executor.collective_rpc("pagedkv_trim")
            self._reporter.ranks = lambda: list(executor.collective_rpc("pagedkv_report"))
            self._reporter.mark(Stage.LOADED)
        if phase == "cache":
            if executor.groups != 1:
                raise user_error("error.vllm_groups", n=executor.groups)
            cache = executor.vllm_config.cache_config
            watermark = self._arguments.get("watermark", 0.0)
            self._reporter.pool(cache.num_gpu_blocks, cache.block_size, watermark)

    def _first_requests(self, engine: Any) -> float:
        """Warm up, so that no code path runs for the first time later."""
        begin = time.monotonic()
        params = _sampling(SamplingConfig(), 0, NEW_TOKENS, ignore_eos=True)
        for number, length in enumerate(self._task.first_prompts()):
            engine.add_request(f"first {number}", {"prompt_token_ids": [0] * length}, params)
        while engine.has_unfinished_requests():
            engine.step()
        return time.monotonic() - begin


class _Generation:
    """Step the engine through the workload; memory is read in the first repeat only."""

    def __init__(self, engine: Any, stats: LastStats, reporter: Reporter) -> None:
        self.engine = engine
        self.stats = stats
        self.reporter = reporter
        self.task = reporter.task
        self.requests = {r.id: RequestProgress(r) for r in self.task.workload.requests}
        self.tokens: dict[int, list[int]] = {request: [] for request in self.requests}
        self.ids: dict[str, int] = {}
        self.coming = deque(self.requests.values())
        self.watcher = self._watcher()

    def run_all(self) -> None:
        """Generate everything."""
        if not any(one.request.arrival for one in self.coming):
            while self.coming:
                self._add(self.coming.popleft())
        self.watcher.attach()
        self.stats.preempted = 0
        self.reporter.begin_generation()
        arrivals = ArrivalClock(self.reporter.now, self.task.timed)
        self._admit_arrived(arrivals)
        while self.engine.has_unfinished_requests():
            self._step(arrivals)
            self._admit_arrived(arrivals)
        self.watcher.detach()
        self.reporter.log_step(self.watcher.trace.release(), time.monotonic_ns(), 0)

    def _admit_arrived(self, arrivals: ArrivalClock) -> None:
        """Submit arrived requests; if idle, block until the next arrival."""
        idle = not self.engine.has_unfinished_requests()
        for one, moment in arrivals.admit(self.coming, attrgetter("request"), idle):
            one.arrived, one.arrival_step = moment, self.watcher.trace.step
            self._add(one)

    def _add(self, one: RequestProgress) -> None:
        request = one.request
        params = _sampling(
            self.task.workload.sampling, request.id, request.max_new_tokens,
            self.task.ignore_eos, self._eos(),
        )  # fmt: skip
        prompt = {"prompt_token_ids": request.token_ids}
        name = self.engine.add_request(str(request.id), prompt, params, priority=request.priority)
        self.ids[name] = request.id

    def _step(self, arrivals: ArrivalClock) -> None:
        reporter = self.reporter
        began = reporter.now()
        outputs = self.engine.step()
        took, ended_ns = reporter.now() - began, time.monotonic_ns()
        reporter.stop_generation()
        with reporter.paused():
            self._log_step(ended_ns, took)
            if any(observed.plan.chunks for observed in self.watcher.decisions):
                arrivals.tick()
            self._note_chunks(began)
            self.watcher.decisions.clear()
            ended = [output for output in outputs if self._take(output)]
            done = not self.coming and not self.engine.has_unfinished_requests()
            if done and not reporter.repeat:
                reporter.mark(Stage.LAST_STEP)
            for output in ended:
                self._finish(output)

    def _note_chunks(self, began: int) -> None:
        """Record starts and first-token steps of the requests in this step."""
        for observed in self.watcher.decisions:
            for chunk in observed.plan.chunks:
                one = self.requests[chunk.request]
                one.begin(began)
                if chunk.samples and one.first_token_step is None:
                    one.first_token_step = observed.plan.step

    def _take(self, output: Any) -> bool:
        """Record a request's new tokens; return whether it has finished."""
        request = int(output.request_id)
        one = self.requests[request]
        self.tokens[request] += list(output.outputs[0].token_ids)
        if one.first_token is None and self.tokens[request]:
            one.first_token = self.reporter.now()
        return bool(output.finished)

    def _finish(self, output: Any) -> None:
        request = int(output.request_id)
        reason = _REASONS.get(output.outputs[0].finish_reason, FinishReason.ABORTED)
        self.watcher.trace.finished(request, reason)
        tokens, now = self.tokens[request], self.reporter.now()
        self.reporter.request_finished(self.requests[request], reason, tokens, now)

    def _log_step(self, ended_ns: int, took: int) -> None:
        for observed in self.watcher.decisions:
            plan = observed.plan
            self.reporter.log_step(plan, ended_ns, took)
            if plan.step % KEYFRAME_EVERY == 0:  # to check the replay of the plans
                self.reporter.emit(
                    Keyframe(
                        arm=self.task.arm,
                        step=plan.step,
                        tables=observed.tables,
                        written=observed.written,
                    )
                )
        if self.watcher.decisions and self.stats.scheduler is not None:
            self.reporter.emit(self._engine_step(self.watcher.decisions[-1].plan.step))

    def _engine_step(self, step: int) -> EngineStep:
        """Statistics of a step. vLLM's usage excludes the null block: used ÷ (blocks - 1)."""
        stats = self.stats.scheduler
        found = stats.prefix_cache_stats
        blocks = self.engine.vllm_config.cache_config.num_gpu_blocks
        preempted, self.stats.preempted = self.stats.preempted, 0
        return EngineStep(
            arm=self.task.arm,
            step=step,
            used_blocks=round(stats.kv_cache_usage * (blocks - 1)),
            table_blocks=self.watcher.blocks_in_tables(),
            running=stats.num_running_reqs,
            waiting=stats.num_waiting_reqs + stats.num_skipped_waiting_reqs,
            preempted=preempted,
            prefix_queries=found.queries if found is not None else 0,
            prefix_hits=found.hits if found is not None else 0,
        )

    def _watcher(self) -> SchedulerWatcher:
        scheduler = self.engine.engine_core.engine_core.scheduler
        pool = scheduler.kv_cache_manager.block_pool

        def keeps(block: int) -> bool:
            return pool.blocks[block].block_hash is not None

        cache = self.engine.vllm_config.cache_config
        trace = ScheduleTrace(cache.block_size, keeps if cache.enable_prefix_caching else None)
        return SchedulerWatcher(scheduler, trace, self.ids, self.reporter.paused)

    def _eos(self) -> tuple[int, ...]:
        return () if self.task.ignore_eos else self.task.model.eos_token_ids


def _sampling(
    chosen: SamplingConfig, request: int, tokens: int, ignore_eos: bool, eos: Sequence[int] = ()
) -> Any:
    """Sampling parameters equal to the other arms'.

    The model's end tokens are set here, because vLLM has no tokenizer.

    Args:
        request: added to the run's seed, as in the paged engine.
    """
    return SamplingParams(
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        seed=None if chosen.greedy else chosen.seed + request,
        min_tokens=min(chosen.min_new_tokens, tokens),
        max_tokens=tokens,
        ignore_eos=ignore_eos,
        stop_token_ids=[*chosen.stop_token_ids, *eos],
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
