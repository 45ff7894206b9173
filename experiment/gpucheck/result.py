"""The file of a check, ``gpucheck.json``: a verdict for each part, its checks and their numbers.

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
NEEDS_GPU = message("gpucheck.needs_gpu")
NEEDS_TRITON = message("gpucheck.needs_triton")
NO_TIME = message("gpucheck.no_time")
INTERRUPTED = message("gpucheck.interrupted")


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CheckResult(_Data):
    """One check; ``passed`` is None where nothing could be judged or a fact is reported."""

    id: str
    passed: bool | None
    text: Message


class PartResult(_Data):
    """How a part ended.

    Attributes:
        interpreted: its kernels ran in Triton's interpreter on the CPU.
        seconds: wall-clock time; None of a part that was not started.
        limit_s: the time limit that it had; None likewise.
        reason: why it failed or was skipped; of one that passed, how many checks it made.
    """

    part: str
    verdict: Verdict
    interpreted: bool = False
    seconds: float | None = None
    limit_s: float | None = None
    reason: Message
    checks: tuple[CheckResult, ...] = ()


class GpuCheck(_Data):
    """Everything that a check found.

    ``device``, ``device_name`` and ``environment`` are None where the part ``environment`` did not
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
        """How many parts ended how."""
        found = [part.verdict for part in self.parts]
        passed, failed, skipped = map(found.count, get_args(Verdict))
        return message("gpucheck.headline", passed=passed, failed=failed, skipped=skipped)

    @property
    def is_complete(self) -> bool:
        """Whether nothing failed and every part that this machine can run did run."""
        return all(part.verdict == "pass" or self._cannot_run(part) for part in self.parts)

    @property
    def is_whole(self) -> bool:
        """Whether no part was left out because the check was interrupted."""
        return all(part.reason != INTERRUPTED for part in self.parts)

    def _cannot_run(self, part: PartResult) -> bool:
        on_cpu = self.device == "cpu"
        return part.verdict == "skipped" and on_cpu and part.reason in (NEEDS_GPU, NEEDS_TRITON)


def result_json(data: GpuCheck) -> str:
    """The text of ``gpucheck.json``, without secrets, home directories and names."""
    return json.dumps(cleaned(data).model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n"


def cleaned(data: GpuCheck) -> GpuCheck:
    """The same without what is private in its texts."""
    plain: dict[str, Any] = in_values(data.model_dump(mode="json"), without_private)
    for part in plain["parts"]:
        part["reason"] = without_words(part["reason"])
        for check in part["checks"]:
            check["text"] = without_words(check["text"])
    return GpuCheck.model_validate(plain)


def read_result(path: Path) -> GpuCheck:
    """Read a ``gpucheck.json``, or the one of a directory.

    Raises:
        UserError: it is not there, or is none.
    """
    path = path / FILE if path.is_dir() else path
    if not path.is_file():  # a pipe would be waited for without end
        raise user_error("error.file_unreadable", path=str(path))
    try:
        return GpuCheck.model_validate_json(read_bounded(path, MAX_JSON_BYTES))
    except ValidationError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error
