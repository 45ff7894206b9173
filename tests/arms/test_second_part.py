"""The second part of a run: twenty requests at once, in slabs and in blocks."""

from __future__ import annotations

import pytest
import torch
from arm_runs import Run, make_config, run_arms_here, with_requests
from event_makers import SLOT_BYTES, head, paged_arm, record
from made_up_machine import cpu_environment

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Claim
from experiment.arms.second_part import COPIES, LIMIT_S, has_second_part, run_second_part
from experiment.arms.task import ArmTask
from experiment.config.schema import Config
from experiment.engine.attention.interface import ATTENTION
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.events import (
    Channel,
    EnvironmentProbed,
    Event,
    Reading,
    Scope,
    SecondPartRun,
    Stage,
    Usage,
)
from experiment.model.load import load_model
from experiment.text.messages import message
from experiment.workload.prepared import Prepared
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens

LENGTH, BLOCK = 64, 4
REQUESTS = ((15, 20), (20, 3), (4, 30), (13, 1))
ARMS = ("slabs", "paged")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, prepared: Prepared) -> Run:
    """Four requests in a budget of four slabs, and a little more for blocks."""
    fitted = with_requests(prepared, REQUESTS, slabs=4.5, max_length=LENGTH, block_size=BLOCK)
    place = tmp_path_factory.mktemp("second")
    return run_arms_here(place / "run", make_config("tiny-gpt2", ARMS), fitted)


def part(run: Run, arm: str) -> SecondPartRun:
    [found] = [event for event in run.record.of(SecondPartRun) if event.arm == arm]
    return found


@pytest.mark.parametrize("arm", ARMS)
def test_every_request_of_the_workload_runs_five_times(run: Run, arm: str) -> None:
    found = part(run, arm)
    assert found.requests == found.finished == COPIES * len(REQUESTS)
    assert found.tokens == COPIES * sum(new for _, new in REQUESTS)
    assert found.reason is None
    assert found.seconds > 0


def test_slabs_run_as_many_as_the_budget_has_and_blocks_as_many_as_their_tokens_fill(
    run: Run,
) -> None:
    assert part(run, "slabs").running == 4
    blocks = int(4.5 * LENGTH) // BLOCK
    whole = sum(blocks_needed(final_tokens(prompt, new), BLOCK) for prompt, new in REQUESTS)
    beginnings = sum(blocks_needed(prompt, BLOCK) for prompt, _ in REQUESTS)
    # All at their ends would not fit, all of their prompts do.
    assert COPIES * whole > blocks >= COPIES * beginnings
    assert part(run, "paged").running == COPIES * len(REQUESTS)
    for arm in ARMS:
        mean, most = part(run, arm).mean_running, part(run, arm).running
        assert mean is not None
        assert most is not None
        assert 1 <= mean <= most


def task(run: Run, prepared: Prepared, config: Config) -> ArmTask:
    return ArmTask(arm="paged", config=config, device="cpu", directory="", model=prepared.model,
                   workload=run.workload)  # fmt: skip


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("run", {"arms": ["contiguous", "paged"]}),
        ("engine", {"prefix_caching": True}),
        ("experiment", {"name": "capacity"}),
    ],
)
def test_a_run_without_the_two_arms_and_what_is_no_ordinary_run_have_none(
    run: Run, prepared: Prepared, section: str, values: dict[str, object]
) -> None:
    config = make_config("tiny-gpt2", ARMS)
    assert has_second_part(task(run, prepared, config))
    changed = getattr(config, section).model_copy(update=values)
    assert not has_second_part(task(run, prepared, config.model_copy(update={section: changed})))


def test_a_machine_that_is_too_slow_stops_it_and_keeps_what_was_seen(
    run: Run, prepared: Prepared
) -> None:
    slow = Slow(task(run, prepared, make_config("tiny-gpt2", ARMS)))
    model = load_model(prepared.directory, "float32", "cpu", ATTENTION)
    pool = KVPool(slow.task.geometry, 500, BLOCK, torch.float32, torch.device("cpu"))
    run_second_part(slow, Engine(ModelRunner(model, pool)))  # type: ignore[arg-type]
    [found] = [event for event in slow.events if isinstance(event, SecondPartRun)]
    assert found.reason == message("second_part.too_slow", seconds=LIMIT_S)
    assert found.finished < found.requests == found.running
    assert found.seconds > LIMIT_S


def test_a_second_part_that_memory_ends_keeps_what_was_seen(
    run: Run, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned memory and libraries of CUDA do not raise torch's own class."""
    ended = Slow(task(run, prepared, make_config("tiny-gpt2", ARMS)))
    model = load_model(prepared.directory, "float32", "cpu", ATTENTION)
    pool = KVPool(ended.task.geometry, 500, BLOCK, torch.float32, torch.device("cpu"))
    engine = Engine(ModelRunner(model, pool))

    def step() -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")

    monkeypatch.setattr(engine, "step", step)
    run_second_part(ended, engine)  # type: ignore[arg-type]
    [found] = [event for event in ended.events if isinstance(event, SecondPartRun)]
    assert found.reason == message("failure.out_of_memory")


# -- what is read from a log ----------------------------------------------------------------------

SECOND = 10**9
LATE = 100 * SECOND


def with_parts(
    slabs: dict[str, object] | None = None, paged: dict[str, object] | None = None
) -> list[Event]:
    """A run of slabs and blocks with second parts of four and twenty at once, each in a second."""
    machine = EnvironmentProbed(environment=cpu_environment().model_dump(mode="json"))
    started, *rest = head()
    events: list[Event] = [started, machine, *rest]
    for arm, running, tokens, told in (("slabs", 4, 100, slabs), ("paged", 20, 300, paged)):
        values = {
            "arm": arm, "t_ns": LATE + SECOND, "started_ns": LATE, "requests": 20, "finished": 20,
            "running": running, "mean_running": float(running), "tokens": tokens, "seconds": 1.0,
        }  # fmt: skip
        *first, last = [event.model_copy(update={"arm": arm}) for event in paged_arm()]
        events += [*first, SecondPartRun.model_validate(values | (told or {})), last]
    return events


def claims(events: list[Event]) -> dict[str, Claim]:
    return {claim.id: claim for claim in evaluate(record(events)).claims}


def test_what_memory_buys_and_how_fast_it_is_come_from_the_second_part() -> None:
    found = claims(with_parts())
    assert found["concurrency"].verdict == "shown"
    assert found["concurrency"].text.params == {
        "requests": 20, "slabs": 4, "paged": 20, "factor": 5.0,
    }  # fmt: skip
    assert found["throughput"].verdict == "shown"
    assert found["throughput"].text.params["factor"] == pytest.approx(3.0)
    # Beside it what paging gave where both ran as many at once.
    results = evaluate(record(with_parts()))
    (gain,) = (each.factor for each in results.gains if each.step == "paging")
    assert found["throughput"].text.params["same"] == gain
    same = claims(with_parts(slabs={"running": 20, "mean_running": 20.0}))
    assert same["concurrency"].verdict == "not_shown"
    assert same["throughput"].text.key == "claim.throughput.not_shown_equal"


def test_what_broke_off_is_no_rate() -> None:
    reason = message("second_part.too_slow", seconds=30.0)
    found = claims(with_parts(paged={"finished": 3, "reason": reason.model_dump()}))
    assert (found["throughput"].verdict, found["throughput"].text) == ("untested", reason)
    assert found["concurrency"].verdict == "shown"
    nothing = {"running": None, "mean_running": None, "reason": reason.model_dump()}
    found = claims(with_parts(paged=nothing))
    assert (found["concurrency"].verdict, found["concurrency"].text) == ("untested", reason)


@pytest.mark.parametrize(("cores", "key"), [(1.0, "busy"), (0.0, "shown_same")])
def test_other_programs_meanwhile_leave_speed_unjudged(cores: float, key: str) -> None:
    busy = Usage(arm="paged", t_ns=LATE + 1, cpu_cores=1.0, others_cores=cores, gpu_share=None,
                 gpu_memory_share=None)  # fmt: skip
    found = claims([*with_parts(), busy])
    assert found["throughput"].text.key == f"claim.throughput.{key}"
    assert found["concurrency"].verdict == "shown"


@pytest.mark.parametrize(
    ("when", "stage", "channel", "counted"),
    [
        (LATE - 1, None, Channel.RSS, True),
        (LATE + 1, None, Channel.RSS, False),
        (LATE + 2 * SECOND, Stage.RELEASED, Channel.HIGH_WATER, False),
    ],
)
def test_memory_of_the_second_part_is_no_figure_of_the_arm(
    when: int, stage: Stage | None, channel: Channel, counted: bool
) -> None:
    def reading(t_ns: int, stage: Stage | None, channel: Channel, size: int) -> Reading:
        return Reading(arm="paged", t_ns=t_ns, channel=channel, scope=Scope.TREE, bytes=size,
                       stage=stage)  # fmt: skip

    ready = reading(1, Stage.CACHE_READY, Channel.RSS, 10 * SLOT_BYTES)
    large = reading(when, stage, channel, 1 << 40)
    result = evaluate(record([*with_parts(), ready, large])).arm("paged")
    assert result is not None
    assert (result.process_peak == 1 << 40) is counted


class Slow:
    """An arm on whose clock each look takes a second."""

    def __init__(self, task: ArmTask) -> None:
        self.task = task
        self.events: list[Event] = []
        self._now = 0

    def now(self) -> int:
        self._now += SECOND
        return self._now

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def emit(self, event: Event) -> None:
        self.events.append(event)
