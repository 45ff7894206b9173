"""Facts about the machine, checked requirements, and usable measurement channels.

    Machine (facts) ──► requirements(...)            ─┐
                    ──► memory.ladder.ladder(...)    ─┴► Environment ──► the record

``experiment.children.probe`` collects the facts in its own process, because it needs torch. They
contain no user name, host name, path or value of an environment variable.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict

from experiment.events import Channel, Scope
from experiment.machine.background_load import is_busy
from experiment.text import format_bytes
from experiment.text.errors import user_error
from experiment.text.messages import Message, message

MIN_PYTHON = (3, 11)
MIN_TRANSFORMERS = (5, 19)
MIN_AVAILABLE_BYTES = 4 * 2**30
# Above this the scheduler shares cores with other work for a noticeable part of the time.
BUSY_LOAD_PER_CORE = 0.5
DEPRECATED_PYNVML = ("pynvml", "nvidia-ml-py3")

Verdict = Literal["ok", "warn", "missing", "optional"]
Role = Literal["primary", "cross_check", "peak", "part", "baseline", "unused"]
DeviceKind = Literal["cpu", "cuda"]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PythonFacts(_Facts):
    """The interpreter; ``virtual_environment`` is None outside of one."""

    version: str
    implementation: str
    virtual_environment: Literal["venv", "conda"] | None


class CgroupLimits(_Facts):
    """Limits of the control group; None: no limit.

    ``version`` None: no control groups, or unknown because of ``reason``.
    """

    version: Literal[1, 2] | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    cpus: float | None = None
    reason: Message | None = None


class SystemFacts(_Facts):
    """Operating system and container; ``kernel`` is None if withheld."""

    os: str
    kernel: str | None
    machine: str
    container: bool
    wsl: bool
    cgroup: CgroupLimits = CgroupLimits()


class CpuFacts(_Facts):
    """The processor. Instruction sets are None if unknown."""

    model: str | None
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int | None
    avx2: bool | None = None
    avx512: bool | None = None
    bf16: bool | None = None
    amx: bool | None = None


class RamFacts(_Facts):
    """Main memory in bytes; ``available_bytes`` includes the limit of the control group."""

    total_bytes: int
    available_bytes: int


class LoadFacts(_Facts):
    """Load average over one minute of the whole machine; None if the system has none.

    A high load average alone is not evidence, as it may be from programs that have ended.
    ``others_cores`` is the background load before the run started, and ``busy`` is derived from it.
    None: unknown.
    """

    average: float | None
    per_core: float | None
    busy: bool | None
    others_cores: float | None = None


class TorchFacts(_Facts):
    """PyTorch; ``reason`` says why CUDA is not available."""

    version: str | None
    cuda_build: str | None
    cuda_available: bool
    reason: Message | None = None


class Gpu(_Facts):
    """One GPU. ``uuid`` is NVML's with its prefix; ``visible``: torch can use it."""

    name: str
    uuid: str | None
    compute_capability: str | None
    total_bytes: int | None
    driver_version: str | None
    mig: bool | None
    visible: bool


class NvmlFacts(_Facts):
    """Why NVML, its per-process figure and its device figure are unavailable; None: available."""

    reason: Message | None
    process_reason: Message | None = None
    device_reason: Message | None = None
    driver_version: str | None = None


class Package(_Facts):
    """A package; found without a version: importable, but not installed by pip."""

    found: bool
    version: str | None = None


class Machine(_Facts):
    """All facts; ``c_compiler`` is the one that Triton uses, on a GPU."""

    python: PythonFacts
    system: SystemFacts
    cpu: CpuFacts
    ram: RamFacts
    load: LoadFacts
    torch: TorchFacts
    nvml: NvmlFacts
    gpus: tuple[Gpu, ...] = ()
    transformers: Package
    vllm: Package
    pynvml_distributions: dict[str, str]
    c_compiler: str | None = None

    @property
    def usable_cores(self) -> float | None:
        """Cores that the run can keep busy: affinity and CPU quota of the control group."""
        known = (self.cpu.usable_cores or self.cpu.logical_cores, self.system.cgroup.cpus)
        return min((cores for cores in known if cores), default=None)


class Requirement(_Facts):
    """One line of the environment check. ``key`` and ``advice`` are catalogue keys."""

    key: str
    found: str | None
    verdict: Verdict
    advice: Message | None = None


class ChannelStatus(_Facts):
    """Whether a measurement channel works, and what it is used for in this run.

    ``unused`` channels do not apply to the device. A channel with another role that is not usable
    is reported as None with ``reason``. Only a usable one is primary.
    """

    channel: Channel
    scope: Scope
    usable: bool
    role: Role
    reason: Message | None = None


class Environment(Machine):
    """Facts, device of the run, checked requirements and channels.

    ``withheld`` lists facts such as ``cpu.model`` that were removed from a shared copy. They are
    null there, which does not mean not found.
    """

    device: DeviceKind
    device_name: str
    requirements: tuple[Requirement, ...]
    channels: tuple[ChannelStatus, ...]
    withheld: tuple[str, ...] = ()

    @property
    def gpu(self) -> Gpu | None:
        """The GPU of the run: torch's first one."""
        return next(iter(self.used_gpus(1)), None)

    def used_gpus(self, count: int) -> tuple[Gpu, ...]:
        """GPUs of an arm that uses ``count``, torch's first ones; none on the CPU."""
        visible = [gpu for gpu in self.gpus if gpu.visible and self.device == "cuda"]
        return tuple(visible[:count])

    @property
    def primary(self) -> ChannelStatus:
        """The channel whose figure is reported as the memory of the process."""
        return next(status for status in self.channels if status.role == "primary")

    def status(self, channel: Channel) -> ChannelStatus:
        """Look up the entry of ``channel``."""
        return next(status for status in self.channels if status.channel == channel)


def choose_device(requested: str, torch: TorchFacts) -> DeviceKind:
    """Choose the device of the run: ``auto`` uses CUDA if available.

    Raises:
        UserError: CUDA was requested and is not available.
    """
    if requested == "cuda" and not torch.cuda_available:
        reason = torch.reason or message("environment.cuda_no_device")
        raise user_error("error.env.no_cuda", reason=reason.model_dump())
    return "cuda" if requested != "cpu" and torch.cuda_available else "cpu"


def device_name(machine: Machine, device: DeviceKind) -> str:
    """Name of the run's GPU or CPU."""
    if device == "cuda":
        return next((gpu.name for gpu in machine.gpus if gpu.visible), "CUDA")
    return machine.cpu.model or machine.system.machine


def load_facts(
    average: float | None, cores: int | None, others_cores: float | None = None
) -> LoadFacts:
    """Build :class:`LoadFacts`; the load average is divided by all cores of the machine."""
    seen = None if others_cores is None else is_busy(others_cores)
    if average is None or not cores:
        return LoadFacts(average=average, per_core=None, busy=seen, others_cores=others_cores)
    per_core = average / cores
    busy = per_core > BUSY_LOAD_PER_CORE if seen is None else seen
    return LoadFacts(average=average, per_core=per_core, busy=busy, others_cores=others_cores)


def requirements(machine: Machine) -> tuple[Requirement, ...]:
    """Check the machine against the requirements of the experiment."""
    python, torch, system = machine.python, machine.torch, machine.system
    found = re.match(r"(\d+)\.(\d+)", machine.transformers.version or "")
    enough = found is not None and (int(found[1]), int(found[2])) >= MIN_TRANSFORMERS
    version = tuple(int(part) for part in python.version.split(".")[:2])
    ram = machine.ram.available_bytes
    vllm = "vllm" if system.os == "Linux" else "vllm_linux"
    rows = [
        _judge("python", python.version, version >= MIN_PYTHON, "missing"),
        _judge("virtual_environment", python.virtual_environment),
        _judge("torch", torch.version, torch.version is not None, "missing"),
        _judge("transformers", machine.transformers.version, enough, "missing"),
        _gpu(machine),
        _judge(
            "vllm", machine.vllm.version or ("vllm" if machine.vllm.found else None),
            machine.vllm.found, "optional", vllm,
        ),
        _pynvml(machine.pynvml_distributions),
        _judge("ram", format_bytes(ram), ram >= MIN_AVAILABLE_BYTES),
        _quiet(machine),
    ]  # fmt: skip
    if torch.cuda_available:  # to build kernels
        rows.insert(5, _judge("toolchain", machine.c_compiler))
    if system.os not in ("Linux", "Darwin"):  # where runs are not tested
        rows.insert(2, _judge("system", system.os, False))
    return tuple(rows)


def _judge(
    name: str, found: str | None, is_met: bool | None = None, otherwise: Verdict = "warn",
    advice: str = "",
) -> Requirement:  # fmt: skip
    """A line of the check; ``is_met``: whether anything was found, unless given."""
    verdict: Verdict = "ok" if (bool(found) if is_met is None else is_met) else otherwise
    text = None if verdict == "ok" else message(f"requirement.advice.{advice or name}")
    return Requirement(key=f"requirement.{name}", found=found, verdict=verdict, advice=text)


def _gpu(machine: Machine) -> Requirement:
    names = ", ".join(gpu.name for gpu in machine.gpus) or None
    if machine.torch.cuda_available:
        return _judge("gpu", names or "CUDA")
    is_apple = (machine.system.os, machine.system.machine) == ("Darwin", "arm64")
    reason = message("requirement.advice.gpu_apple") if is_apple else machine.torch.reason
    return Requirement(key="requirement.gpu", found=names, verdict="optional", advice=reason)


def _pynvml(distributions: dict[str, str]) -> Requirement:
    found = ", ".join(f"{name} {version}" for name, version in distributions.items()) or None
    if any(name in distributions for name in DEPRECATED_PYNVML):
        return _judge("pynvml", found, False, advice="pynvml_deprecated")
    return _judge("pynvml", found, otherwise="optional")


def _quiet(machine: Machine) -> Requirement:
    load = machine.load
    cores = load.average if load.others_cores is None else load.others_cores
    if cores is None or load.busy is None:
        return _judge("quiet", None, advice="load_unknown")
    name = "quiet" if load.others_cores is None else "quiet_now"
    found = f"{cores:.2f} / {machine.cpu.logical_cores}"
    return _judge(name, found, not load.busy, advice="quiet")
