"""The result file ``gpucheck.json``: a verdict for each part, its checks and their numbers.

GpuCheck ── parts[kernels] ── checks[float16.group4.decode]     passed, and a message with numbers
         └─ environment       what the machine has, as in every record
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from experiment.events import UtcOffset, WallNs
from experiment.files.bounded_reading import MAX_JSON_BYTES, read_bounded
from experiment.machine.environment import DeviceKind, Environment
from experiment.text.errors import user_error
from experiment.text.messages import Message, message
from experiment.text.redaction import in_values, without_private, without_words

SCHEMA: Literal[1] = 1
FILE = "gpucheck.json"
PAGE = "report.html"
Verdict = Literal["pass", "fail", "skipped"]
OLD_GPU = "kernel.old_gpu"
NEEDS_GPU = message("gpucheck.needs_gpu")
NEEDS_TRITON = message("gpucheck.needs_triton")
NO_TIME = message("gpucheck.no_time")
INTERRUPTED = message("gpucheck.interrupted")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CheckResult(_Data):
    """One check; ``passed`` is None if it is inconclusive or only reports a fact."""

    id: str
    passed: bool | None
    text: Message


class PartResult(_Data):
    """Outcome of a part.

    Attributes:
        interpreted: whether its kernels ran in Triton's interpreter on the CPU.
        seconds: wall-clock time; None if the part was not started.
        limit_s: its time limit in seconds; None if not started.
        reason: why it failed or was skipped; if it passed, its number of checks.
    """

    part: str
    verdict: Verdict
    interpreted: bool = False
    seconds: float | None = None
    limit_s: float | None = None
    reason: Message
    checks: tuple[CheckResult, ...] = ()


class GpuCheck(_Data):
    """Result of all parts.

    ``device``, ``device_name`` and ``environment`` are None if the part ``environment`` did not
    report the machine.
    """

    schema_version: Literal[1] = SCHEMA
    program: str
    wall_ns: WallNs
    utc_offset_s: UtcOffset
    minutes: float
    device: DeviceKind | None
    device_name: str | None
    environment: Environment | None
    parts: tuple[PartResult, ...]

    @property
    def headline(self) -> Message:
        """Number of parts by verdict."""
        found = [part.verdict for part in self.parts]
        passed, failed, skipped = map(found.count, get_args(Verdict))
        return message("gpucheck.headline", passed=passed, failed=failed, skipped=skipped)

    @property
    def is_complete(self) -> bool:
        """Whether every part that this machine supports ran, and none failed."""
        return all(part.verdict == "pass" or self._cannot_run(part) for part in self.parts)

    @property
    def is_whole(self) -> bool:
        """Whether no part was skipped because of an interruption."""
        return all(part.reason != INTERRUPTED for part in self.parts)

    def _cannot_run(self, part: PartResult) -> bool:
        if part.verdict != "skipped":
            return False
        if self.device == "cpu":
            return part.reason in (NEEDS_GPU, NEEDS_TRITON)
        return part.reason.key == OLD_GPU


def result_json(data: GpuCheck) -> str:
    """Text of ``gpucheck.json``, without secrets, home directories and names."""
    return json.dumps(cleaned(data).model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"


def cleaned(data: GpuCheck) -> GpuCheck:
    """Redact private data in its texts."""
    plain: dict[str, Any] = in_values(data.model_dump(mode="json"), without_private)
    for part in plain["parts"]:
        part["reason"] = without_words(part["reason"])
        for check in part["checks"]:
            check["text"] = without_words(check["text"])
    return GpuCheck.model_validate(plain)


def read_result(path: Path) -> GpuCheck:
    """Read a ``gpucheck.json``, or the one of a directory.

    Raises:
        UserError: missing or invalid.
    """
    path = path / FILE if path.is_dir() else path
    if not path.is_file():  # reading a pipe could block forever
        raise user_error("error.file_unreadable", path=str(path))
    try:
        return GpuCheck.model_validate_json(read_bounded(path, MAX_JSON_BYTES))
    except ValidationError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error
