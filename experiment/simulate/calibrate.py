"""The time of a step, fitted to a recorded run, and how far that is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiment.events import Step, WorkloadReady
from experiment.files.bounded_reading import evaluating
from experiment.record.log import EVENTS_FILE, read_record
from experiment.simulate.from_log import read_log
from experiment.simulate.latency_file import latency_to_json
from experiment.simulate.names import check_given, gpu_of, model_of
from experiment.simulate.setup import Limits, Memory
from experiment.text.errors import user_error
from experiment.workload.kvsim_errors import translate_errors
from kvsim.base.files import file_sha256
from kvsim.latency.calibrate import Calibration, StepRecord, calibrate_linear, calibrate_roofline
from kvsim.latency.request_times import RequestRecord, read_request_records
from kvsim.latency.roofline import LinearLatency, Roofline, StepWork, least_costs
from kvsim.planning.replay_fit import PoolTooSmallError, fit_replay
from kvsim.sim.config import SimConfig

# vLLM's on a GPU.
_BLOCK_SIZE = 16


def requests_file(path: Path) -> Path:
    """The JSONL file of a recorded run's requests.

    Raises:
        UserError: there is none.
    """
    if not path.exists():
        raise user_error("error.file_missing", path=str(path))
    file = path / "requests.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise user_error("error.sim.no_run", path=str(path))
    return file


def step_records(directory: Path, arm: str | None) -> tuple[str, list[StepRecord]]:
    """Steps of one arm that computed something: what, and how long it took.

    A token is decoded when it lies behind its request's prompt and is computed alone; what is
    computed again after a preemption counts as a prompt.

    Raises:
        UserError: no such arm, or none recorded steps with their times.
    """
    record = read_record(directory)
    prompts: dict[int | None, dict[int, int]] = {}  # by cell of an experiment
    steps: dict[str, list[StepRecord]] = {}
    with evaluating(directory):
        for cell, event in record.by_cell():
            if isinstance(event, WorkloadReady):
                prompts[cell] = {r.id: len(r.token_ids) for r in event.requests}
            elif isinstance(event, Step):
                _add(steps, event, prompts.get(cell, {}))
    if not steps:
        raise user_error("error.sim.no_steps", path=str(directory))
    name = arm or ("paged" if "paged" in steps else next(iter(steps)))
    if name not in steps:
        choices = ", ".join(steps)
        raise user_error("error.sim.no_arm", path=str(directory), arm=name, choices=choices)
    return name, steps[name]


def _add(steps: dict[str, list[StepRecord]], event: Step, prompts: Mapping[int, int]) -> None:
    work = StepWork.of(
        (c.start, c.count, c.count == 1 and c.start >= prompts.get(c.request, 0))
        for c in event.plan.chunks
    )
    seconds = (event.t_ns - event.started_ns) / 1e9
    if work.tokens and seconds > 0:
        steps.setdefault(event.arm, []).append(StepRecord(work, seconds))


@dataclass(frozen=True, slots=True)
class Server:
    """What the server of recorded requests ran with; None: what its log says, or vLLM's default.

    Attributes:
        log: its start-up log, which has the size of its KV cache.
        shared_prefix: tokens that all prompts begin with, which its prefix cache keeps.
    """

    log: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    shared_prefix: int = 0

    def given(self) -> list[str]:
        """Options that were given."""
        flags = {
            "--from-log": self.log,
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.max_num_batched_tokens,
            "--shared-prefix": self.shared_prefix or None,
        }
        return [flag for flag, value in flags.items() if value is not None]

    def replay(self, records: Sequence[RequestRecord]) -> tuple[list[RequestRecord], SimConfig]:
        """The requests with their cached tokens, and the pool and limits.

        Without a log the pool holds all requests.

        Raises:
            UserError: no log of vLLM, none with the size of a KV cache, or a shared prefix that is
                not below the shortest prompt.
        """
        log = read_log(self.log) if self.log else None
        shortest = min(each.prompt_tokens for each in records)
        if self.shared_prefix >= shortest:
            raise user_error("error.plan.prefix", prefix=self.shared_prefix, prompt=shortest)
        block = (log and log.block_size) or _BLOCK_SIZE
        longest = max(each.prompt_tokens + each.output_tokens for each in records)
        if log is None:
            blocks = sum(-(-(r.prompt_tokens + r.output_tokens) // block) for r in records)
        elif log.tokens:
            blocks = log.tokens // block - 1  # vLLM's null block holds no tokens
        else:
            raise user_error("error.plan.no_log", path=self.log, engine="")
        limits = Limits()
        shared = self.shared_prefix // block * block
        config = SimConfig(
            "paged+prefix" if shared or (log and log.prefix_caching) else "paged",
            blocks * block,
            1,
            longest,
            block_size=block,
            max_num_seqs=self.max_num_seqs or (log and log.max_num_seqs) or limits.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens
            or (log and log.max_num_batched_tokens)
            or limits.max_num_batched_tokens,
        )
        return [each._replace(cached_tokens=shared) for each in records], config


def calibrate(
    source: Path,
    *,
    arm: str | None = None,
    folds: int = 5,
    model: str | None = None,
    gpu: str | None = None,
    memory: Memory = Memory(),  # noqa: B008
    server: Server = Server(),
) -> dict[str, Any]:
    """Fit the seconds of a step; what ``calibrate --out`` writes.

    Args:
        source: the directory of a run, or a file of requests with their times.
        arm: of a run; None: ``paged``, or the first.
        folds: parts of the records, each held out once.
        model, gpu, memory: they bound the costs; a run is then fitted by a roofline.
        server: of requests; the pool and the limits of their replay.

    Raises:
        UserError: there is no record to fit to, too little of it, or a name is unknown.
    """
    ideal: Roofline | None = None
    if model is not None or gpu is not None or memory != Memory():
        check_given({"--model": model, "--gpu": gpu})
        named = model_of(str(model))
        memory.caches(named)
        ideal = memory.roofline(named, gpu_of(str(gpu)))
    if not (source / EVENTS_FILE).exists():
        if arm is not None:
            raise user_error("error.omit", what=str(source), flags="--arm")
        return _of_requests(source, folds, server, ideal)
    if unused := server.given():
        raise user_error("error.omit", what=str(source), flags=", ".join(unused))
    return _of_run(source, arm, folds, ideal)


def _of_run(path: Path, arm: str | None, folds: int, ideal: Roofline | None) -> dict[str, Any]:
    """Steps of our own log; with a model and a GPU a roofline, else a sum of costs."""
    arm, records = step_records(path, arm)
    if len(records) < folds:
        raise _too_few(path, len(records), folds)
    fitted: Calibration[Roofline] | Calibration[LinearLatency]
    if ideal is not None:
        fitted = calibrate_roofline(records, ideal, folds)
    else:
        fitted = calibrate_linear(records, folds)
    return {
        "kind": "latency",
        "source": path.name,
        "sha256": file_sha256(path / EVENTS_FILE),
        "arm": arm,
        "steps": len(records),
        "folds": folds,
        "latency": latency_to_json(fitted.latency),
        "errors": {"steps": _errors(fitted)},
    }


def _of_requests(path: Path, folds: int, server: Server, ideal: Roofline | None) -> dict[str, Any]:
    """Requests with their times: the costs under which a replay takes as long."""
    path = requests_file(path)
    with translate_errors():
        records, rejected = read_request_records(path)
    if len(records) < folds:
        raise _too_few(path, len(records), folds)
    records, config = server.replay(records)
    log = read_log(server.log) if server.log else None
    limit = config.max_num_batched_tokens
    least = least_costs(ideal, limit) if ideal else LinearLatency()
    try:
        with translate_errors():
            fitted = fit_replay(records, config, least, folds)
    except PoolTooSmallError as error:
        raise user_error("error.sim.replay_pool", path=str(path), **error.params) from error
    return {
        "kind": "latency",
        "source": path.name,
        "sha256": file_sha256(path),
        "requests": len(records),
        "rejected": [asdict(each) for each in rejected],
        "folds": folds,
        "pool": {
            "blocks": config.shape.blocks if server.log else None,
            "block_size": config.block_size,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": limit,
            "shared_prefix": server.shared_prefix,
            "prefix_hits": log.prefix_hits if log else None,
        },
        "latency": latency_to_json(fitted.costs),
        "least": asdict(least),
        "replay": asdict(fitted.replay) | {"preemptions": fitted.preemptions},
        "errors": {
            "first_token": _errors(fitted.first_token),
            "latency": _errors(fitted.latency),
        },
    }


def _errors(fitted: Any) -> dict[str, Any]:
    return {name: asdict(getattr(fitted, name)) for name in ("fit", "held_out", "constant")}


def _too_few(path: Path, count: int, folds: int) -> Exception:
    return user_error("error.sim.few_records", path=str(path), count=count, folds=folds)
