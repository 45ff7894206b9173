"""The probe as a child process, and how it reads the system; nothing personal is in its answer."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiment.children.probe import cpu_flags, in_container, parse_cpuinfo
from experiment.events import ArmFailed, Channel, EnvironmentProbed, decode
from experiment.machine.environment import Environment

ROOT = Path(__file__).parent.parent


def test_a_processor_is_told_by_its_name_and_flags() -> None:
    text = "processor\t: 0\nmodel name\t: Fast CPU 9\nflags\t\t: fpu avx2 avx512f amx_tile\n"
    model, flags = parse_cpuinfo(text * 2)
    assert model == "Fast CPU 9"
    assert cpu_flags(flags, "x86_64") == {"avx2": True, "avx512": True, "bf16": False, "amx": True}


def test_an_arm_processor_is_told_by_its_features() -> None:
    model, flags = parse_cpuinfo("processor : 0\nFeatures : fp asimd bf16\n")
    assert model is None
    expected = {"avx2": False, "avx512": False, "bf16": True, "amx": False}
    assert cpu_flags(flags, "aarch64") == expected


def test_unlisted_flags_are_unknown_unless_the_architecture_rules_them_out() -> None:
    assert set(cpu_flags(frozenset(), "AMD64").values()) == {None}
    expected = {"avx2": False, "avx512": False, "bf16": None, "amx": False}
    assert cpu_flags(frozenset(), "arm64") == expected


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_container_is_told_by_environment_or_control_group(tmp_path: Path) -> None:
    assert not in_container(tmp_path, {})
    assert in_container(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    write(tmp_path / "proc/1/cgroup", "0::/init.scope\n")
    assert not in_container(tmp_path, {})
    write(tmp_path / "proc/1/cgroup", "1:memory:/kubepods/pod1\n")
    assert in_container(tmp_path, {})
    write(tmp_path / "other/run/.containerenv", "")
    assert in_container(tmp_path / "other", {})


SENTINEL = "nobodys-business"


def run_probe(device: str) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "experiment.children.probe"],
        input=json.dumps({"device": device}) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | dict.fromkeys(("USER", "LOGNAME", "HOSTNAME", "HF_TOKEN"), SENTINEL),
        timeout=300,
        check=False,
        encoding="utf-8",
    )
    return done, [decode(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def probed() -> tuple[str, Environment]:
    done, events = run_probe("cpu")
    assert done.returncode == 0, done.stderr
    (event,) = events
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


def test_the_probe_refuses_cuda_where_there_is_none(probed: tuple[str, Environment]) -> None:
    if probed[1].torch.cuda_available:
        pytest.skip("this machine has CUDA")
    done, (event,) = run_probe("cuda")
    assert done.returncode == 2
    assert isinstance(event, ArmFailed)
    assert event.arm == "environment"
    assert event.reason.key == "error.env.no_cuda"


@pytest.mark.parametrize(
    "module",
    ["experiment.machine.environment", "experiment.children.probe", "experiment.memory.monitor"],
)
def test_the_runners_modules_leave_torch_alone(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
