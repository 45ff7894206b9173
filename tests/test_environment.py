"""What the probe finds, what follows from it, and that nothing personal is in it."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_machine import cuda_machine, machine

from experiment.children.probe import assemble, cpu_flags, in_container
from experiment.events import Channel, EnvironmentProbed, decode
from experiment.machine.cpuinfo import parse_cpuinfo
from experiment.machine.environment import (
    Environment,
    NvmlFacts,
    Package,
    PythonFacts,
    RamFacts,
    Requirement,
    SystemFacts,
    load_facts,
    requirements,
)
from experiment.memory.gpu_probe import torch_facts
from experiment.memory.ladder import ladder
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.text.messages import Message, message

GIB = 2**30


def requirement(name: str, **changes: Any) -> Requirement:
    found = {entry.key: entry for entry in requirements(machine(**changes))}
    return found[f"requirement.{name}"]


def primary(environment: Environment) -> Channel:
    assert environment.primary.usable
    return environment.primary.channel


def test_a_sound_machine_needs_nothing() -> None:
    verdicts = {entry.key: entry.verdict for entry in requirements(machine())}
    optional = {"requirement.gpu", "requirement.vllm"}
    assert {key for key, verdict in verdicts.items() if verdict == "optional"} == optional
    assert {verdict for key, verdict in verdicts.items() if key not in optional} == {"ok"}
    assert len(verdicts) == 9


@pytest.mark.parametrize(
    ("name", "changes", "verdict", "advice"),
    [
        (
            "python",
            {
                "python": PythonFacts(
                    version="3.9.18", implementation="CPython", virtual_environment="venv"
                )
            },
            "missing",
            "python",
        ),
        (
            "virtual_environment",
            {
                "python": PythonFacts(
                    version="3.11.0", implementation="CPython", virtual_environment=None
                )
            },
            "warn",
            "virtual_environment",
        ),
        ("torch", {"torch": torch_facts(None)}, "missing", "torch"),
        ("transformers", {"transformers": Package(found=False)}, "missing", "transformers"),
        (
            "transformers",
            {"transformers": Package(found=True, version="4.57.1")},
            "missing",
            "transformers",
        ),
        (
            "transformers",
            {"transformers": Package(found=True, version="5.18.0")},
            "missing",
            "transformers",
        ),
        (
            "pynvml",
            {"pynvml_distributions": {"nvidia-ml-py": "13.0", "pynvml": "11.5.0"}},
            "warn",
            "pynvml_deprecated",
        ),
        ("pynvml", {"pynvml_distributions": {}}, "optional", "pynvml"),
        (
            "ram",
            {"ram": RamFacts(total_bytes=8 * GIB, available_bytes=4 * GIB - 1)},
            "warn",
            "ram",
        ),
        (
            "system",
            {
                "system": SystemFacts(
                    os="Windows", kernel="11", machine="AMD64", container=False, wsl=False
                )
            },
            "warn",
            "system",
        ),
        ("quiet", {"load": load_facts(6.0, 8)}, "warn", "quiet"),
        ("quiet", {"load": load_facts(None, 8)}, "warn", "load_unknown"),
    ],
)
def test_what_is_lacking_has_a_verdict_and_advice(
    name: str, changes: dict[str, Any], verdict: str, advice: str
) -> None:
    found = requirement(name, **changes)
    assert found.verdict == verdict
    assert found.advice == message(f"requirement.advice.{advice}")


@pytest.mark.parametrize(("found", "verdict"), [("gcc", "ok"), (None, "warn")])
def test_on_a_gpu_what_triton_builds_with_has_a_line(found: str | None, verdict: str) -> None:
    lines = {one.key: one for one in requirements(cuda_machine(c_compiler=found))}
    line = lines["requirement.toolchain"]
    assert (line.found, line.verdict) == (found, verdict)
    assert (line.advice is None) is (found is not None)
    assert "requirement.toolchain" not in {one.key for one in requirements(machine())}


def test_a_load_average_accuses_nobody_whom_a_look_clears() -> None:
    """It is of the minute before: of a run that has just ended, or of what started this one."""
    cleared = load_facts(6.0, 8, 0.1)
    assert cleared.busy is False
    found = requirement("quiet_now", load=cleared)
    assert (found.found, found.verdict, found.advice) == ("0.10 / 8", "ok", None)
    seen = load_facts(6.0, 8, 1.5)
    assert seen.busy is True
    found = requirement("quiet_now", load=seen)
    assert (found.found, found.verdict) == ("1.50 / 8", "warn")
    assert found.advice == message("requirement.advice.quiet")


def test_a_gpu_that_torch_cannot_use_is_named_with_the_reason() -> None:
    gpu = cuda_machine().gpus[0].model_copy(update={"visible": False})
    found = requirement("gpu", gpus=(gpu,))
    assert (found.found, found.verdict) == (gpu.name, "optional")
    assert found.advice == message("environment.cuda_cpu_build")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, None),
        (
            "CUDA error: no kernel image is available for execution on the device\nCompile with",
            message("environment.cuda_no_kernels"),
        ),
        (
            "CUDA error: out of memory\nCompile with",
            message(
                "environment.cuda_kernel_failed", error="RuntimeError: CUDA error: out of memory"
            ),
        ),
    ],
)
def test_a_gpu_on_which_no_kernel_of_this_torch_runs_is_not_taken(
    error: str | None, reason: Message | None
) -> None:
    def ones(size: int, device: str) -> Any:
        if error:
            raise RuntimeError(error)
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 1.0))

    torch = SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda="13.0", hip=None),
        cuda=SimpleNamespace(is_available=lambda: True),
        ones=ones,
    )
    facts = torch_facts(torch)
    assert (facts.cuda_available, facts.reason) == (error is None, reason)
    found = machine(torch=facts)
    assert assemble(found, "auto").device == ("cpu" if error else "cuda")
    if reason:
        with pytest.raises(UserError) as caught:
            assemble(found, "cuda")
        assert caught.value.text.params["reason"] == reason.model_dump()


def test_auto_takes_cuda_where_it_works() -> None:
    assert (assemble(machine(), "auto").device, assemble(machine(), "auto").gpu) == ("cpu", None)
    on_gpu = assemble(cuda_machine(), "auto")
    assert (on_gpu.device, on_gpu.device_name) == ("cuda", "Fake GPU")
    assert on_gpu.gpu == cuda_machine().gpus[0]
    on_cpu = assemble(cuda_machine(), "cpu")
    assert (on_cpu.device, on_cpu.device_name, on_cpu.gpu) == ("cpu", "A CPU", None)


@pytest.mark.parametrize(
    ("visible", "build", "error", "key"),
    [
        (None, None, None, "cuda_cpu_build"),
        ("", "13.0", None, "cuda_hidden"),
        ("-1", "13.0", None, "cuda_hidden"),
        (None, "99.0", "The NVIDIA driver on your system is too old (found 11040)", "driver_old"),
        (None, "99.0", "Found no NVIDIA driver on your system", "no_driver"),
        (None, "13.0", "Found no NVIDIA driver on your system", "driver_needed"),
        ("0", "13.0", "No CUDA GPUs are available", "no_device"),
        (None, "13.0", "Error 802: system not yet initialized", "not_started"),
    ],
)
def test_why_there_is_no_cuda(
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    build: str | None,
    error: str | None,
    key: str,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    def init() -> None:
        if error:
            raise RuntimeError(error)

    torch = SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=build, hip=None),
        cuda=SimpleNamespace(is_available=lambda: False, init=init),
    )
    facts = torch_facts(torch)
    assert not facts.cuda_available
    assert facts.reason is not None
    assert facts.reason.key.endswith(key)
    for lang in LANGUAGES:
        assert ("580" in Translator(lang).message(facts.reason)) is (key == "driver_needed")


def test_on_the_cpu_no_channel_of_the_gpu_is_used() -> None:
    for found in (assemble(machine(), "cpu"), assemble(cuda_machine(), "cpu")):
        assert primary(found) is Channel.RSS
        for channel in (Channel.TORCH_ALLOCATED, Channel.NVML_PROCESS, Channel.CUDA_MEM_GET_INFO):
            status = found.status(channel)
            assert (status.usable, status.role) == (False, "unused")
            assert status.reason is not None
    reason = assemble(cuda_machine(), "cpu").status(Channel.NVML_DEVICE).reason
    assert reason == message("memory.device_is_cpu")


@pytest.mark.parametrize(
    ("nvml", "expected"),
    [
        (NvmlFacts(reason=None), Channel.NVML_PROCESS),
        (
            NvmlFacts(reason=None, process_reason=message("memory.nvml_pid_namespace")),
            Channel.NVML_DEVICE,
        ),
        (NvmlFacts(reason=message("memory.nvml_no_library")), Channel.CUDA_MEM_GET_INFO),
    ],
)
def test_the_ladder_on_cuda(nvml: NvmlFacts, expected: Channel) -> None:
    found = assemble(cuda_machine(nvml=nvml), "cuda")
    assert primary(found) is expected
    status = found.status(Channel.NVML_PROCESS)
    assert status.reason == (nvml.reason or nvml.process_reason)
    assert status.role == ("primary" if status.usable else "cross_check")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_every_channel_stands_in_the_ladder_once_with_a_reason_if_unusable(
    platform: str, device: Any
) -> None:
    statuses = ladder(cuda_machine(), device, platform)
    assert sorted(s.channel for s in statuses) == sorted(Channel)
    assert all(status.usable == (status.reason is None) for status in statuses)
    assert [s.usable for s in statuses if s.role == "primary"] == [True]
    unusable = {s.channel for s in statuses if not s.usable and s.role != "unused"}
    expected: dict[str, set[Channel]] = {
        "linux": set(), "darwin": {Channel.PSS, Channel.HIGH_WATER}, "win32": {Channel.PSS},
    }  # fmt: skip
    assert unusable == expected[platform]


ROOT = Path(__file__).parent.parent


CPUS = [
    ("model name\t: Fast CPU 9\nflags\t\t: fpu avx2 avx512f amx_tile\n", "x86_64",
     "Fast CPU 9", (True, True, False, True)),
    ("Features : fp asimd bf16\n", "aarch64", None, (False, False, True, False)),
    # Unlisted flags are unknown, unless the architecture rules them out.
    ("", "AMD64", None, (None, None, None, None)),
    ("", "arm64", None, (False, False, None, False)),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "architecture", "name", "has"), CPUS)
def test_a_processor_is_known_by_its_flags(
    lines: str, architecture: str, name: str | None, has: tuple[bool | None, ...]
) -> None:
    model, flags = parse_cpuinfo(f"processor\t: 0\n{lines}" * 2)
    assert model == name
    names = ("avx2", "avx512", "bf16", "amx")
    assert cpu_flags(flags, architecture) == dict(zip(names, has, strict=True))


def test_a_container_is_told_by_environment_or_control_group(tmp_path: Path) -> None:
    assert not in_container(tmp_path, {})
    assert in_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    (tmp_path / "proc/1").mkdir(parents=True)
    for text, inside in (("0::/init.scope\n", False), ("1:memory:/kubepods/pod1\n", True)):
        (tmp_path / "proc/1/cgroup").write_text(text, encoding="utf-8")
        assert in_container(tmp_path, {}) is inside
    (tmp_path / "other/run").mkdir(parents=True)
    (tmp_path / "other/run/.containerenv").touch()
    assert in_container(tmp_path / "other", {})


SENTINEL = "nobodys-business"


@pytest.fixture(scope="module")
def probed() -> tuple[str, Environment]:
    names = ("USER", "LOGNAME", "HOSTNAME", "HF_TOKEN")
    done = subprocess.run(
        [sys.executable, "-m", "experiment.children.probe"],
        input=json.dumps({"device": "cpu"}) + "\n", capture_output=True, cwd=ROOT,
        env=os.environ | dict.fromkeys(names, SENTINEL), timeout=300, check=True, encoding="utf-8",
    )  # fmt: skip
    (event,) = map(decode, done.stdout.splitlines())
    assert isinstance(event, EnvironmentProbed)
    return done.stdout, Environment.model_validate(event.environment)


def test_the_probe_describes_this_machine(probed: tuple[str, Environment]) -> None:
    found = probed[1]
    assert found.python.version == ".".join(map(str, sys.version_info[:3]))
    assert found.torch.version
    assert found.device == "cpu"
    assert 0 < found.ram.available_bytes <= found.ram.total_bytes
    assert found.primary.channel is Channel.RSS
    assert found.status(Channel.TORCH_ALLOCATED).usable is False


def test_the_probe_tells_nothing_personal(probed: tuple[str, Environment]) -> None:
    text = probed[0]
    assert SENTINEL not in text
    for path in (str(Path.home()), str(ROOT), sys.prefix):
        assert len(path) < 4 or path not in text  # a home of "/" would be found in any text
    # Words of the schema and of the machine itself may happen to be somebody's name.
    for name in {getpass.getuser(), socket.gethostname()} - {"root", "python", "linux", "cpu"}:
        assert not re.search(rf"\b{re.escape(name)}\b", text)


@pytest.mark.parametrize(
    "module",
    ["experiment.machine.environment", "experiment.children.probe", "experiment.memory.monitor"],
)
def test_the_runners_modules_leave_torch_alone(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
