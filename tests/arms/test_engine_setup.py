"""Which kernel and graphs an arm comes to, and how the report says so. No GPU is needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import BaseModel

from experiment.analysis.conclusions import kernel_facts
from experiment.arms import engine_setup
from experiment.arms.engine_setup import (
    announce_kernel,
    capture_graphs,
    resolve_kernel,
)
from experiment.config.schema import Config
from experiment.engine.attention import kernel_choice, kernels
from experiment.engine.attention.interface import UnsupportedModelError
from experiment.engine.cuda.decode_graphs import DecodeCounts
from experiment.events import DecodeGraphsReady
from experiment.events.sampling import SamplingConfig
from experiment.record.log import Record
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.text.messages import Message, message

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
OLD = message("kernel.old_gpu", found="7.0", least="8.0")


def record(events: list[Any]) -> Record:
    return Record(Path(), tuple(events))


class FakeRun:
    """As much of an arm's run as the choices look at."""

    def __init__(
        self, device: torch.device = CUDA, arms: Sequence[str] = ("paged",), samples: int = 1,
        **engine: Any,
    ) -> None:  # fmt: skip
        config = Config.model_validate({"engine": engine, "run": {"arms": list(arms)}})
        requests, sampling = [SimpleNamespace(arrival=0)] * 6, SamplingConfig(n=samples)
        workload = SimpleNamespace(requests=requests, max_length=64, sampling=sampling)
        self.task = SimpleNamespace(
            arm="paged", config=config, dtype=torch.float16, workload=workload,
            model=SimpleNamespace(own_attention=False),
        )  # fmt: skip
        self.device = device
        self.events: list[Any] = []

    def emit(self, event: BaseModel) -> None:
        self.events.append(event)

    def paused(self) -> Any:
        return nullcontext()


class FakeRunner:
    """Captures nothing, or fails as it is told."""

    def __init__(
        self, error: Exception | None = None, quantized: bool = False, blocks: int = 5
    ) -> None:
        self.pool = SimpleNamespace(num_blocks=blocks, quantized=quantized)
        self.graphs: Any = None
        self.error = error
        self.asked: tuple[int, int] | None = None
        self.compiled: bool | None = None

    def capture_decoding(
        self, most: int, max_length: int, capture: object, *, compiled: bool
    ) -> None:
        self.asked, self.compiled = (most, max_length), compiled
        if self.error is not None:
            raise self.error
        self.graphs = SimpleNamespace(
            sizes=(1, 2, 4, most), static_bytes=1000, capture_s=0.5, counts=DecodeCounts(9, 30, 6)
        )


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_setup, "cuda_capture", lambda device: None)


def capture(run: FakeRun, runner: FakeRunner, kernel: str = "triton") -> DecodeGraphsReady:
    capture_graphs(run, runner, kernel)  # type: ignore[arg-type]
    [event] = run.events
    assert isinstance(event, DecodeGraphsReady)
    return event


def choose(
    monkeypatch: pytest.MonkeyPatch, run: FakeRun, reason: Message | None
) -> tuple[str, Message | None]:
    for module in (kernel_choice, engine_setup):
        monkeypatch.setattr(module, "reason_against", lambda device, shape: reason)
    return resolve_kernel(run)  # type: ignore[arg-type]


def test_on_a_gpu_auto_is_triton_where_it_runs_and_torch_with_the_reason_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for reason, kernel in ((None, "triton"), (OLD, "torch")):
        run = FakeRun()
        found = choose(monkeypatch, run, reason)
        assert found == (kernel, reason)
        announce_kernel(run, *found)  # type: ignore[arg-type]
        [event] = run.events
        assert (event.kernel, event.asked, event.reason) == (kernel, "auto", reason)


def test_triton_by_name_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun(CPU, kernel="triton")
    with pytest.raises(UserError) as found:
        choose(monkeypatch, run, OLD)
    text = Translator("en").message(found.value.text)
    assert "7.0" in text
    assert "engine.kernel" in text
    assert "auto" in text
    assert choose(monkeypatch, run, None) == ("triton", None)


@pytest.mark.parametrize(
    ("asked", "blocks", "most"),
    [
        ({}, 5, 5),
        ({"max_num_seqs": 3}, 5, 3),
        ({"max_num_batched_tokens": 2}, 5, 2),
        ({}, 500, 6),
        ({"arms": ("slabs", "paged")}, 500, 30),  # the second part
        ({"samples": 4}, 500, 24),
    ],
)
def test_graphs_are_captured_for_as_many_requests_as_can_decode_at_once(
    asked: dict[str, Any], blocks: int, most: int
) -> None:
    runner = FakeRunner(blocks=blocks)
    event = capture(FakeRun(**asked), runner)
    assert runner.asked == (most, 64)
    assert (event.sizes, event.static_bytes, event.reason) == ([1, 2, 4, most], 1000, None)


@pytest.mark.parametrize(
    ("run", "kernel", "runner", "key"),
    [
        (FakeRun(cuda_graphs="off"), "triton", FakeRunner(), "graphs.off"),
        (FakeRun(CPU), "numba", FakeRunner(), "graphs.no_gpu"),
        (FakeRun(), "torch", FakeRunner(), "graphs.kernel"),
        (FakeRun(), "triton", FakeRunner(RuntimeError("not permitted")), "graphs.fails"),
        (FakeRun(), "triton", FakeRunner(UnsupportedModelError("sliding_window")), "graphs.fails"),
    ],
)  # fmt: skip
def test_without_graphs_there_is_a_reason(
    run: FakeRun, kernel: str, runner: FakeRunner, key: str
) -> None:
    event = capture(run, runner, kernel)
    assert (event.sizes, event.static_bytes, event.capture_s) == ([], None, None)
    assert event.reason is not None
    assert event.reason.key == key


def test_graphs_that_are_demanded_and_cannot_be_are_an_error() -> None:
    for run, runner in (
        (FakeRun(CPU, cuda_graphs="on"), FakeRunner()),
        (FakeRun(cuda_graphs="on"), FakeRunner(RuntimeError("out of memory"))),
        (FakeRun(cuda_graphs="compiled"), FakeRunner(RuntimeError("no C compiler"))),
    ):
        with pytest.raises(UserError, match="cuda_graphs"):
            capture_graphs(run, runner, "triton")  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "compiled"), [("auto", False), ("compiled", True)])
def test_layers_are_compiled_where_that_is_asked_for_and_the_report_says_so(
    asked: str, compiled: bool
) -> None:
    run, runner = FakeRun(cuda_graphs=asked), FakeRunner()
    announce_kernel(run, "triton", None)  # type: ignore[arg-type]
    capture_graphs(run, runner, "triton")  # type: ignore[arg-type]
    assert runner.compiled is compiled
    _, text = kernel_facts(record(run.events))
    assert ("compiled" in Translator("en").message(text)) is compiled


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_cpu_without_the_compiled_kernel_says_why(
    lang: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise ImportError("Numba needs NumPy 2.3 or less")

    monkeypatch.setattr(kernels, "cpu_kernel_module", gone)
    run = FakeRun(CPU)
    kernel, reason = resolve_kernel(run)  # type: ignore[arg-type]
    announce_kernel(run, kernel, reason)  # type: ignore[arg-type]
    assert kernel == "torch"
    (text,) = kernel_facts(record(run.events))
    assert "NumPy 2.3" in Translator(lang).message(text)


class Allocator:
    """Torch's: what it holds of the device is what is in use and what it has kept."""

    def __init__(self) -> None:
        self.used, self.kept = 7000, 4000

    def trim(self) -> None:
        self.kept = 0

    def reserved(self, device: torch.device) -> int:
        assert device == CUDA
        return self.used + self.kept


class Capturing(FakeRunner):
    """Gives back what the allocator kept, as torch does before it captures, and takes 2,500."""

    def __init__(self, allocator: Allocator) -> None:
        super().__init__()
        self.allocator = allocator

    def capture_decoding(
        self, most: int, max_length: int, capture: object, *, compiled: bool
    ) -> None:
        self.allocator.trim()
        self.allocator.used += 2500
        super().capture_decoding(most, max_length, capture, compiled=compiled)


def test_what_graphs_reserve_of_the_device_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator()
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.memory_reserved", allocator.reserved)
    monkeypatch.setattr(engine_setup, "trim", allocator.trim)
    assert capture(FakeRun(), Capturing(allocator)).reserved_bytes == 2500
    # Where no count is kept, or nothing was captured, it is unknown and not nothing.
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 7000)
    assert capture(FakeRun(cuda_graphs="off"), FakeRunner()).reserved_bytes is None
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    assert capture(FakeRun(), FakeRunner()).reserved_bytes is None
