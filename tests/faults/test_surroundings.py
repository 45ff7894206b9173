"""What surrounds a program is broken: descriptors, homes, disks, names; whatever it finds there."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from written_runs import sample_run

from experiment.commands.main import main
from experiment.machine.environment import Environment
from experiment.runner.session import Session
from experiment.text.errors import ExitCode
from kvsim.base import files as whole_files
from kvsim.sweep import expand

ROOT = Path(__file__).parents[2]
SIM = (
    "simulate", "--trace", "sharegpt-like", "--requests", "20", "--rate", "5", "--model", "gpt2",
    "--gpu", "a100-80gb", "--policy", "paged",
)  # fmt: skip
GRID = {"trace": "sharegpt-like", "policy": "paged", "model": "gpt2", "gpu": "a100-80gb"}
AXES = [f"{name}='{value}'" for name, value in GRID.items()]
SWEEP = ("sweep", "--workers", "1", *(word for axis in AXES for word in ("--set", axis)))


def test_a_program_that_may_open_few_files_says_so(tmp_path: Path) -> None:
    """Python needs some itself; with what is left it works, or one line says what it lacks."""
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (8, 8))
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), *SWEEP, "--out", str(tmp_path / "out")],
        preexec_fn=limit, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
        timeout=120, check=False,
    )  # fmt: skip
    if done.returncode != ExitCode.OK:
        assert done.returncode in (ExitCode.USAGE, ExitCode.UNWRITABLE), done.stderr
        assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in done.stderr


def test_cells_for_which_the_system_makes_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """What they share lies in /dev/shm, which may be full."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kvsim.sweep.processes.ProcessPoolExecutor", full)
    assert "ENOSPC" in refused(*SWEEP, "--set", "requests=20", "--out", tmp_path / "out")


@pytest.mark.parametrize("words", [SIM, (*SWEEP, "--set", "requests=20"), ("render",)])
def test_a_disk_that_is_full_when_something_was_found(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    made, few = whole_files.tempfile.mkstemp, iter(range(1))

    def full(*given: str, **more: str) -> tuple[int, str]:
        if words[0] == "sweep" and next(few, None) is not None:
            return made(*given, **more)  # what cells there are can still be written
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(whole_files.tempfile, "mkstemp", full)
    out = str(sample_run(tmp_path / "out") if words == ("render",) else tmp_path / "out")
    given = [*words, out] if words == ("render",) else [*words, "--out", out]
    assert main([*given, "--lang", "en"]) == ExitCode.UNWRITABLE
    (said,) = capsys.readouterr().err.splitlines()
    assert out in said
    assert said.endswith("the disk is full.")


def test_without_a_place_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", nowhere)
    assert "TMPDIR" in refused("selfcheck")


PIPES: dict[str, tuple[str, Callable[[Path], tuple[str, ...]]]] = {
    "a new run": ("events.jsonl", lambda at: ("--yes", "--out", str(at))),
    "a run to go on": ("events.jsonl", lambda at: ("--yes", "--resume", str(at))),
    "a run to draw": ("events.jsonl", lambda at: ("render", str(at))),
    "a simulation": ("sim.json", lambda at: ("render", str(at))),
    "a benchmark": ("engine.json", lambda at: ("bench", "--show", str(at))),
    "a trace": ("trace.csv", lambda at: (*SIM[:2], str(at / "trace.csv"), *SIM[7:])),
    "a grid's trace": (
        "trace.csv",
        lambda at: (*SWEEP, "--set", f"trace='{at}/trace.csv'", "--out", str(at / "out")),
    ),
    "recorded requests": ("requests.jsonl", lambda at: ("calibrate", str(at))),
}


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_in_the_place_of_a_file_is_refused(
    name: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """It would be waited for without end."""
    file, words = PIPES[name]
    os.mkfifo(tmp_path / file)
    assert str(tmp_path) in refused(*words(tmp_path))


@pytest.mark.parametrize("make", ["a pipe", "a deep text"])
def test_a_cell_that_is_none_is_computed_again(make: str, tmp_path: Path) -> None:
    words = [*SWEEP, "--set", "requests=20", "--out", str(tmp_path), "--lang", "en"]
    (cell,) = expand({**GRID, "requests": 20})
    place = tmp_path / "cells" / f"{cell.id}.json"
    place.parent.mkdir()
    if make == "a pipe":
        os.mkfifo(place)
    else:
        place.write_text("[" * 200_000, "utf-8")
    assert main(words) == ExitCode.OK
    assert json.loads(place.read_text("utf-8"))["id"] == cell.id


@pytest.mark.parametrize("source", ["/dev/zero", "/proc/self/mem"])
def test_a_device_is_no_trace(source: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    assert source in refused(*SIM[:2], source, *SIM[7:], "--out", tmp_path / "out")


CLOSED = """
import sys
from pathlib import Path
from experiment.commands.main import main
from experiment.config.schema import Config
from experiment.text.errors import UserError
from experiment.model.source import find_model
closed = sys.argv[1]
SIM = ["--model", "gpt2", "--gpu", "a100-80gb", "--policy", "paged"]
for words in (
    ["--yes", "--config", closed], ["--yes", "--prompts", closed], ["--yes", "--gate", closed],
    ["--yes", "--baseline", closed], ["--yes", "--resume", closed],
    ["--yes", "--out", closed, "--model", "tiny-gpt2"],
    ["render", closed], ["compare", closed, closed], ["bench", "--show", closed],
    ["bench", "--show", closed, "--markdown", closed], ["calibrate", closed],
    ["simulate", "--trace", closed, *SIM], ["simulate", "--trace", "sharegpt-like", *SIM,
     "--latency", closed], ["plan", "--trace", closed, *SIM[:4]], ["sweep", closed],
    ["sweep", "--set", f"trace='{closed}'", "--set", "policy='paged'", "--set", "model='gpt2'",
     "--set", "gpu='a100-80gb'"], ["paper", "--seeds", "1", "--out", closed],
    ["claims", "--quick", "--out", closed],
    ["claims", "--quick", "--out", str(Path(closed).parent)],  # of its names none is ever free
):
    print("ended", main([*words, "--lang", "en"]), *words, flush=True)
try:
    find_model(Config.model_validate({"model": {"name": closed}}), print)
except UserError as error:
    print(error.text.key)
"""


def test_what_nobody_may_look_at_is_one_line(tmp_path: Path) -> None:
    """Whoever may look at everything, as these tests may, gives that up first."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, str(closed / "x")], preexec_fn=as_nobody_special,
        stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *ended, of_model = done.stdout.splitlines()
    assert [line for line in ended if not line.startswith(f"ended {ExitCode.USAGE} ")] == []
    assert of_model == "error.bad_name"
    lines = done.stderr.splitlines()
    assert len(lines) == len(ended) > 15
    assert [line for line in lines if not line.startswith("Error: ")] == []


LIBC = ctypes.CDLL(None)  # loaded before a process forks


def as_nobody_special() -> None:
    """Give up the rights of root to read and search whatever there is, for the next program."""
    drop, kinds = 24, (1, 2)  # PR_CAPBSET_DROP; CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    if os.geteuid() == 0:
        for each in kinds:
            if LIBC.prctl(drop, each, 0, 0, 0):
                os._exit(99)


def test_of_a_run_that_measured_nothing_what_others_put_there_stays(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
) -> None:  # fmt: skip
    """It was empty when the run took it; a download may take hours."""

    def probe(session: Session, *_: object) -> Environment:
        (session.directory / "notes").write_text("kept", encoding="utf-8")
        return environment

    monkeypatch.setattr(Session, "_start_ahead", lambda *_: None)
    monkeypatch.setattr(Session, "probe_environment", probe)
    words = ["--yes", "--arms", "vllm", "--set", "vllm.tensor_parallel_size=99"]
    assert "99" in refused(*words, "--out", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes"]


@pytest.mark.parametrize("words", [SIM, ("--yes",), ("render",)])
def test_a_name_of_other_bytes_than_utf_8_is_refused_before_anything_runs(
    words: tuple[str, ...], tmp_path: Path, refused: Callable[..., str]
) -> None:
    """Else what was found could not be written down."""
    place = os.fsdecode(os.fsencode(tmp_path) + b"/\xb4\xfa")
    named = [*words, place] if words[0] == "render" else [*words, "--out", place]
    assert "UTF-8" in refused(*named)
    assert list(tmp_path.iterdir()) == []
