"""Arms that are killed and disks that are full, in real processes: what was measured stands."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_parts import prepare, run_arms

from experiment.analysis.conclusions import evaluate
from experiment.commands import render as drawing
from experiment.commands.render import render
from experiment.config.schema import Config
from experiment.events import (
    ArmFailed,
    ArmStarted,
    Baseline,
    Event,
    Notice,
    Reading,
    RunFinished,
    SamplerCost,
    Stage,
    Step,
)
from experiment.machine.environment import Environment
from experiment.memory.monitor import Monitor
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import ExitCode, UserError
from experiment.workload.prepared import Prepared

ROOT = Path(__file__).parent.parent.parent
DOOR = ROOT / "run_experiment.py"
QUICK = ROOT / "configs" / "quick.toml"
ARM = "paged"
needs_posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and limits")
CONFIG = Config.model_validate(
    {
        "model": {"name": "tiny-gpt2"},
        "workload": {"max_new_tokens": 40},
        "run": {"arms": [ARM], "device": "cpu", "threads": 1},
    }
)


@pytest.fixture(scope="module")
def prepared(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    directory = tmp_path_factory.mktemp("prepare")
    return prepare(directory, CONFIG, environment, ["Hello", "A longer one " * 5])


@needs_posix
def test_an_arm_that_is_killed_leaves_what_it_measured(
    environment: Environment, prepared: Prepared, tmp_path: Path
) -> None:
    pids: list[int] = []
    steps: list[Step] = []

    def listener(event: Event) -> None:
        if isinstance(event, ArmStarted):
            pids.append(event.pid)
        if isinstance(event, Step):
            steps.append(event)
            if len(steps) == 5:
                os.kill(pids[0], signal.SIGKILL)

    record = run_arms(tmp_path, CONFIG, environment, prepared, listener)
    assert record.damaged_lines == 0
    (failed,) = record.of(ArmFailed)
    assert (failed.arm, failed.reason.key) == (ARM, "failure.killed")
    assert failed.exit_code == -signal.SIGKILL
    stages = {r.stage for r in record.of(Reading) if r.bytes is not None}
    assert {Stage.START, Stage.LOADED, Stage.CACHE_READY} <= stages
    assert Stage.LAST_STEP not in stages
    assert not [r for r in record.of(Reading) if r.bytes == 0 and r.channel.value != "tensors"]
    assert len(record.of(Step)) >= 5
    (baseline,) = record.of(Baseline)
    assert baseline.t_ns < record.of(ArmStarted)[0].t_ns
    assert 0 < record.of(SamplerCost)[0].cpu_s < record.of(SamplerCost)[0].wall_s
    (arm,) = evaluate(record).arms
    assert (arm.status, arm.steps >= 5) == ("failed", True)
    assert arm.reason == failed.reason


def test_a_sampler_that_dies_in_a_real_run_is_in_the_record(
    environment: Environment,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(self: Monitor) -> None:
        raise SystemExit

    monkeypatch.setattr(Monitor, "_emit_usage", die)
    record = run_arms(tmp_path, CONFIG, environment, prepared)
    assert record.damaged_lines == 0
    assert not record.of(ArmFailed)
    keys = [notice.text.key for notice in record.of(Notice)]
    assert "usage.sampler_ended" in keys
    stages = {r.stage for r in record.of(Reading) if r.bytes is not None}
    assert stages >= {Stage.START, Stage.CACHE_READY, Stage.LAST_STEP, Stage.RELEASED}


LIMITED = """
import os, resource, sys
limit = int(sys.argv[1])
sys.argv = sys.argv[2:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from experiment.commands.main import main
sys.exit(main(sys.argv[1:]))
"""


@needs_posix
@pytest.mark.parametrize("limit", [0, 20_000], ids=["from the start", "in the middle of an arm"])
def test_a_full_disk_ends_the_run_with_one_clear_line(
    limit: int, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file may grow beyond the limit: what a full disk does, without filling one."""
    assert prepared.directory  # the model is built, which a limit on files would not allow
    out = tmp_path / "out"
    words = ["--config", str(QUICK), "--yes", "--lang", "en", "--arms", ARM, "--out", str(out)]
    # Without samples the log is equally long on every machine.
    words += ["--set", "run.sample_interval_ms=10000"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), str(DOOR), *words],
        capture_output=True, text=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.UNWRITABLE, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert str(out / EVENTS_FILE) in line
    text = (out / EVENTS_FILE).read_bytes()
    assert len(text) <= limit
    if limit:
        assert text.endswith(b"\n")
        record = read_record(out)
        assert record.damaged_lines == 0
        assert [r for r in record.of(Reading) if r.stage is Stage.START and r.bytes]
        assert not record.of(RunFinished)
        draw_it_on_a_full_disk(out, monkeypatch)
        assert render(out, "en", ascii_only=False) == ExitCode.OK
        assert (out / "report.html").exists()


def draw_it_on_a_full_disk(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(drawing, "write_summary", full)
        with pytest.raises(UserError) as caught:
            render(out, "en", ascii_only=False)
    assert caught.value.text.params["why"]["key"] == "error.os.ENOSPC"


@needs_posix
def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    """Also by a log that is written on once there is room again."""
    code = """
import resource, sys
from pathlib import Path
from experiment.events import Notice, RunFinished, RunStarted
from experiment.text.errors import UserError
from experiment.text.messages import message
from experiment.record.log import EventLog
started = RunStarted(version="1", wall_ns=0, utc_offset_s=0, lang="en", command=[], config={})
with EventLog(Path(sys.argv[1])) as log:
    log.write(started)
    size = log.path.stat().st_size
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, soft))
    try:
        log.write(Notice(text=message("note.busy", load=1)))
    except UserError as error:
        print(error.text.key, log.path.stat().st_size == size)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, soft))
    log.write(RunFinished(status="complete"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, check=False,
        encoding="utf-8",
    )  # fmt: skip
    assert done.stdout.split() == ["error.record_unwritable", "True"], done.stderr
    record = read_record(tmp_path)
    assert record.damaged_lines == 0
    assert [event.event for event in record.events] == ["run_started", "run_finished"]
