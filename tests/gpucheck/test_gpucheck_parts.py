"""Parts of ``gpucheck`` by themselves: verdicts, the machine, the record, the list of GPUs."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from guide_pages import read
from made_up_machine import cpu_environment, cuda_environment, cuda_machine
from sweeps import full

from experiment.children.probe import assemble
from experiment.events import ArmSkipped, Check, Event
from experiment.gpucheck import child, machine, memory, speed_transformers, walkthrough
from experiment.gpucheck.decode_steps import Setting
from experiment.gpucheck.parts import PARTS, Part, Task, as_task
from experiment.gpucheck.result import (
    FILE,
    INTERRUPTED,
    NEEDS_GPU,
    NEEDS_TRITON,
    NO_TIME,
    GpuCheck,
    PartResult,
    result_json,
)
from experiment.gpucheck.run import Examination
from experiment.gpucheck.tiny_models import tiny
from experiment.gpucheck.walkthrough import arm_checks
from experiment.machine.environment import Environment, TorchFacts
from experiment.report.files.markdown import GPUS, NONE_YET, gpus_markdown, write_gpus
from experiment.report.files.markup import marks
from experiment.text import LANGUAGES, Translator, catalogue
from experiment.text.errors import UserError
from experiment.text.messages import Message, message

HERE = Path(__file__).parent
BEGIN, END = marks(GPUS)
PASSED = message("gpucheck.passed", n=3)


def part(name: str, verdict: Any, reason: Message = PASSED) -> PartResult:
    return PartResult(part=name, verdict=verdict, reason=reason)


def result(*parts: PartResult, environment: Environment | None = None) -> GpuCheck:
    return GpuCheck(
        program="1",
        wall_ns=1,
        utc_offset_s=0,
        minutes=8,
        device=environment.device if environment else None,
        device_name=environment.device_name if environment else None,
        environment=environment,
        parts=parts,
    )


CPU, CUDA = cpu_environment(), cuda_environment()
TURING = message("kernel.old_gpu", found="7.5", least="8.0")


@pytest.mark.parametrize(
    ("environment", "last", "complete"),
    [
        (CPU, part("speed", "pass"), True),
        (CPU, part("speed", "fail"), False),
        (CPU, part("speed", "skipped", NEEDS_GPU), True),
        (CPU, part("kernels", "skipped", NEEDS_TRITON), True),
        (CPU, part("speed", "skipped", NO_TIME), False),
        (CPU, part("speed", "skipped", INTERRUPTED), False),
        (CUDA, part("speed", "skipped", NEEDS_GPU), False),
        (CUDA, part("kernels", "skipped", NEEDS_TRITON), False),
        (CUDA, part("kernels", "skipped", TURING), True),
        (None, part("speed", "skipped", NEEDS_GPU), False),
    ],
)
def test_what_a_machine_can_run_must_have_run(
    environment: Environment | None, last: PartResult, complete: bool
) -> None:
    assert result(part("memory", "pass"), last, environment=environment).is_complete is complete


def test_the_parts_have_texts_and_modules_and_all_of_the_time() -> None:
    for each in PARTS:
        assert importlib.util.find_spec(each.module) is not None
        assert f"gpucheck.part_{each.name}" in catalogue("en")
    assert sum(each.share for each in PARTS) == pytest.approx(1)


def test_without_time_a_part_is_skipped_by_name(tmp_path: Path) -> None:
    examination = Examination(tmp_path, 0.001, PARTS[:2], lambda _: None)
    examination.run()
    assert [each.reason for each in examination.data.parts] == [NO_TIME, NO_TIME]


def test_a_part_that_checks_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE / "parts"))
    examination = Examination(tmp_path, 5, (Part("tokens", "part_silent", 1.0),), lambda _: None)
    examination.run()
    (found,) = examination.data.parts
    assert found.verdict == "fail"
    assert found.reason.key == "gpucheck.nothing_checked"


class Heard:
    """Stands in for a wire."""

    def __init__(self) -> None:
        self.checks: dict[str, bool | None] = {}

    def emit(self, event: Event) -> None:
        assert isinstance(event, Check)
        for lang in LANGUAGES:
            assert Translator(lang).message(event.text)
        self.checks[event.check] = event.passed


def gpus(environment: Environment) -> dict[str, bool | None]:
    heard: Any = Heard()
    machine._gpus(heard, environment)
    return dict(heard.checks)


def without_cuda(reason: str) -> Environment:
    torch = TorchFacts(
        version="2.13.0", cuda_build="13.0", cuda_available=False, reason=message(reason)
    )
    found = cuda_machine()
    gpu = found.gpus[0].model_copy(update={"visible": False})
    return assemble(found.model_copy(update={"torch": torch, "gpus": (gpu,)}), "cpu")


def test_a_gpu_that_torch_cannot_use_fails_unless_it_is_hidden() -> None:
    assert gpus(without_cuda("environment.cuda_driver_old"))["cuda"] is False
    assert gpus(without_cuda("environment.cuda_hidden"))["cuda"] is None
    assert "cuda" not in gpus(CUDA)
    assert gpus(CPU) == {"gpu": None, "visible": None}


def test_the_cost_of_sampling_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It depends on what else runs; a channel that is wrong fails."""
    text = message("selfcheck.damage_slot")
    names = ("sampler.cost.cpu", "memory.process.rss")
    found = [Check(check=name, passed=False, text=text) for name in names]
    monkeypatch.setattr(memory, "all_checks", lambda *_: found)
    heard: Any = Heard()
    memory.check(heard, Task(PARTS[3], "cpu", Path(), 1.0))
    assert heard.checks == {"sampler.cost.cpu": None, "memory.process.rss": False}


def test_a_gpu_that_is_gone_fails_and_is_not_replaced_by_the_cpu(tmp_path: Path) -> None:
    """These parts measure other processes, each of which looks for a device."""
    heard: Any = Heard()
    with pytest.raises(UserError) as caught:
        memory.check(heard, Task(PARTS[3], "cuda:0", tmp_path, 1.0))
    assert caught.value.text.key == "error.env.no_cuda"
    walkthrough.check(heard, Task(PARTS[6], "cuda:0", tmp_path, time.monotonic() + 60.0))
    assert heard.checks["exit"] is False
    assert not any(heard.checks.values())


def test_a_gpu_without_our_kernels_skips_what_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    skipped = []
    for each in PARTS:
        heard: list[Event] = []
        wire: Any = SimpleNamespace(emit=heard.append)
        monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(check=ran))
        child.main(wire, as_task(each, tmp_path, 1.0, "cuda"))
        if heard:
            (event,) = heard
            assert isinstance(event, ArmSkipped)
            assert event.reason.key == "kernel.old_gpu"
            skipped.append(each.name)
    assert skipped == ["kernels", "graphs", "speed"]


def ran(_: Any, task: Task) -> None:
    """Stands in for a part's check."""
    assert task.device == "cuda:0"


@full
def test_a_walkthrough_that_needs_more_time_reports_the_arms_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OutOfTime(subprocess.Popen[bytes]):
        """Its time is up when the first arm has ended, on however slow a machine."""

        terminated = False

        def terminate(self) -> None:
            self.terminated = True
            super().terminate()

        def wait(self, timeout: float | None = None) -> int:
            if self.terminated or "experiment" not in self.args:
                return super().wait(None if self.terminated else timeout)
            log = tmp_path / "walkthrough" / "events.jsonl"
            while self.poll() is None:
                if log.exists() and '"arm_finished"' in log.read_text(encoding="utf-8"):
                    raise subprocess.TimeoutExpired(self.args, timeout)
                time.sleep(0.1)
            raise AssertionError

    monkeypatch.setattr(subprocess, "Popen", OutOfTime)
    heard: Any = Heard()
    walkthrough.check(heard, Task(PARTS[6], "cpu", tmp_path, time.monotonic() + 60.0))
    assert heard.checks["exit"] is False
    assert any(found is True for name, found in heard.checks.items() if name.startswith("arm."))


def test_arms_with_problems_pools_and_tokens_that_differ_fail(tmp_path: Path) -> None:
    problem = message("failure.out_of_memory").model_dump()
    sound = {"arm": "paged", "status": "finished", "reason": None, "problems": [],
             "reconciliation": {"agree": True, "text": problem}}  # fmt: skip
    differs = {"agree": False, "text": problem}
    arms = [sound, sound | {"arm": "slabs", "reconciliation": differs},
            sound | {"arm": "contiguous.batch", "problems": [problem], "reconciliation": None},
            sound | {"arm": "transformers_paged", "reconciliation": differs},
            sound | {"arm": "vllm", "status": "skipped", "reason": problem,
                     "reconciliation": None}]  # fmt: skip
    tokens = [{"arm": "paged", "requests": 4, "equal_requests": equal, "reason": reason}
              for equal, reason in ((4, None), (3, None), (0, problem))]  # fmt: skip
    path = tmp_path / "run.json"

    def checks(dtype: str) -> list[tuple[str, bool | None]]:
        run = {"config": {"model": {"dtype": dtype}}, "results": {"arms": arms, "tokens": tokens}}
        path.write_text(json.dumps(run), encoding="utf-8")
        return [(each.check, each.passed) for each in arm_checks(path)]

    assert checks("float32") == [
        ("arm.paged", True), ("arm.slabs", True), ("arm.contiguous.batch", False),
        ("arm.transformers_paged", True), ("arm.vllm", None),
        ("pool.paged", True), ("pool.slabs", False), ("pool.transformers_paged", None),
        ("tokens.paged", True), ("tokens.paged", False), ("tokens.paged", None),
    ]  # fmt: skip
    assert [passed for _, passed in checks("float16")[-3:]] == [None, None, None]
    assert [each.passed for each in arm_checks(tmp_path / "none.json")] == [False]


def test_the_page_on_performance_lists_the_gpus_that_were_seen(tmp_path: Path) -> None:
    region = read("docs/performance.md").partition(BEGIN)[2].partition(END)[0]
    rows = [line for line in region.splitlines() if line.startswith("| NVIDIA")]
    assert region.strip() == gpus_markdown(rows)
    assert gpus_markdown([]) == NONE_YET
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n\n{NONE_YET}\n\n{END}\nafter\n", encoding="utf-8")
    write_gpus(page, result(part("memory", "fail"), environment=CUDA))
    once = page.read_text(encoding="utf-8")
    assert once.startswith(f"before\n{BEGIN}\n")
    assert once.endswith(f"{END}\nafter\n")
    told = "| Fake GPU | 9.0 | 570.124.06 | 2.13.0 | 1970-01-01 | Parts: 0 passed, 1 failed,"
    assert told in once
    write_gpus(page, result(part("memory", "pass"), environment=CUDA))
    again = page.read_text(encoding="utf-8")
    assert again.count("Fake GPU") == 1
    assert "Parts: 1 passed" in again
    other = CUDA.model_copy(
        update={"gpus": (CUDA.gpus[0].model_copy(update={"name": "Another GPU"}),)}
    )
    write_gpus(page, result(part("memory", "pass"), environment=other))
    lines = page.read_text(encoding="utf-8").splitlines()
    named = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert named == ["GPU", "Another GPU", "Fake GPU"]
    with pytest.raises(UserError):
        write_gpus(page, result(part("memory", "pass"), environment=CPU))


def test_the_result_keeps_no_home_and_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alicewonder")
    monkeypatch.setenv("USER", "alicewonder")
    reason = message("failure.exception", error="/home/alicewonder/x is of alicewonder")
    text = result_json(result(part("memory", "fail", reason), environment=CPU))
    assert "alicewonder" not in text
    assert "~/x is of <user>" in text
    assert FILE.endswith(".json")


def test_continuous_batching_admits_all_requests_however_full_its_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 15 of these 16 prompts in the cache, less than Transformers' safety margin is free."""
    monkeypatch.setattr(speed_transformers, "_BATCH_TOKENS", 1024)
    monkeypatch.setattr(speed_transformers, "WARM_UP", 1)
    monkeypatch.setattr(speed_transformers, "STEPS", 1)
    with torch.no_grad():
        model = copy.deepcopy(tiny("llama", "sdpa"))
        assert speed_transformers.continuous_step_s(model, Setting(16, 1024)) > 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_one_format_one_family_and_one_setting_run_for_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE / "parts"))
    real = Part("kernels", "part_one_of_each", 1.0, uses_triton=True)
    examination = Examination(tmp_path, 5, (real,), lambda _: None)
    examination.run()
    (found,) = examination.data.parts
    log = (tmp_path / "logs" / "kernels.log").read_text(encoding="utf-8")
    assert found.verdict == "pass", (found.reason, log)
    checks = {check.id: check for check in found.checks}
    assert checks["float16.dim16.group4.prefill"].passed
    assert checks["float16.poison.values"].passed
    assert checks["llama.float32"].passed
    assert checks["int8.rescale"].passed
    for mode in ("paged", "static", "continuous"):
        speed = checks[f"{mode}.batch2.context8"].text
        assert speed.key == "gpucheck.speed.step", (speed, log)
        assert speed.params["share"] > 0
    assert checks["paged.batch1.context8"].text.key == "gpucheck.speed.no_time"
