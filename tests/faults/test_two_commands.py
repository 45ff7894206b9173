"""Two commands that write into one directory at once: one of them refuses, or waits for the other.

What holds a directory here is a process of its own, as another command is.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import is_gone
from written_runs import sample_run

from experiment.commands import render as drawing
from experiment.commands.main import main
from experiment.files.locks import held, is_locked, turn
from experiment.record.directories import make_run_directory
from experiment.record.log import EVENTS_FILE, EventLog, Record
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.files import write as files
from experiment.report.pages import index
from experiment.report.pages.index import write_index
from experiment.report.pages.index_entries import Entry
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode, UserError

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys, time
from pathlib import Path
from experiment.files.locks import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""
SIMULATE = (
    "simulate", "--trace", "sharegpt-like", "--requests", "40", "--model", "gpt2", "--gpu",
    "a100-80gb", "--policy", "paged", "--quiet",
)  # fmt: skip
GRID = ("trace='sharegpt-like'", "policy='paged'", "model='gpt2'", "gpu='a100-80gb'", "requests=20")
# Each writes several files, or files that must agree with each other.
COMMANDS = {
    "run": ("run", "--yes", "--model", "tiny-gpt2"),
    "simulate": SIMULATE,
    "sweep": ("sweep", "--workers", "1", *(word for axis in GRID for word in ("--set", axis))),
    "paper": ("paper", "--seeds", "1"),
    "claims": ("claims", "--quick"),
    "bench": ("bench", "--quick"),
    "gpucheck": ("gpucheck",),
}
Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Have a directory in another process, for so many seconds."""
    started: list[subprocess.Popen[str]] = []

    def begin(directory: Path, seconds: float = 60.0) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(directory), str(seconds)],
            stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def soon_gone(holder: subprocess.Popen[str]) -> threading.Event:
    """End a holder in half a second; set as soon as it is."""
    gone = threading.Event()

    def end() -> None:
        gone.set()
        holder.kill()

    threading.Timer(0.5, end).start()
    return gone


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulation") / "out"
    assert main([*SIMULATE, "--out", str(out), "--lang", "en"]) == ExitCode.OK
    return out


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_a_directory_that_another_one_has(
    name: str, lang: str, hold: Hold, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    hold(out)
    code = main([*COMMANDS[name], "--out", str(out), "--lang", lang])
    assert code == ExitCode.USAGE
    t = Translator(lang)
    wanted = t("error.prefix") + t("error.run_in_use", path=str(out))
    assert capsys.readouterr().err == wanted + "\n"
    assert list(out.iterdir()) == []


def test_the_directory_of_a_command_that_was_killed_is_free(hold: Hold, tmp_path: Path) -> None:
    process = hold(tmp_path)
    assert is_locked(tmp_path)
    process.kill()
    assert is_gone(process.pid)
    with held(tmp_path):
        assert not is_locked(tmp_path), "it is ours"


def test_of_simulations_that_begin_at_once_one_writes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [*SIMULATE, "--out", str(out), "--lang", "en"]
    both = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "run_experiment.py"), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", cwd=tmp_path,
        )
        for _ in range(2)
    ]  # fmt: skip
    ended = [(process.communicate(timeout=120)[1], process.returncode) for process in both]
    assert sorted(code for _, code in ended) == [ExitCode.OK, ExitCode.USAGE]
    ((err,),) = [said.splitlines() for said, code in ended if code == ExitCode.USAGE]
    assert str(out) in err
    assert json.loads((out / "sim.json").read_text("utf-8"))["cells"]


def test_a_simulation_sees_what_came_before_it_had_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one ended between our look and our lock."""

    def and_another_one_writes(out: Path, prefix: str) -> Path:
        made = make_run_directory(out, prefix)
        (made / "sim.json").touch()
        return made

    monkeypatch.setattr("experiment.record.directories.make_run_directory", and_another_one_writes)
    monkeypatch.setattr("experiment.commands.simulate.run", lambda *_: pytest.fail("it ran"))
    assert main([*SIMULATE, "--out", str(tmp_path / "out"), "--lang", "en"]) == ExitCode.USAGE


def test_a_run_that_begins_as_another_command_does_leaves_the_directory_to_it(
    hold: Hold, tmp_path: Path
) -> None:
    hold(tmp_path)
    with pytest.raises(UserError) as caught:
        EventLog(tmp_path)
    assert caught.value.text.key == "error.run_in_use"
    assert not (tmp_path / EVENTS_FILE).exists()


def test_whoever_only_looks_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that begin at once look at each other; one of them must begin."""
    monkeypatch.setattr("experiment.files.locks._GLANCE_S", 60.0)
    for place in (tmp_path, tmp_path / EVENTS_FILE):
        if place != tmp_path:
            place.touch()
        looking = os.open(place, os.O_RDONLY)
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not is_locked(place)
        threading.Timer(0.1, os.close, [looking]).start()
        with EventLog(tmp_path, resume=place != tmp_path):
            assert is_locked(tmp_path / EVENTS_FILE)
        (tmp_path / EVENTS_FILE).unlink()


def test_a_run_goes_on_when_it_was_drawn(hold: Hold, tmp_path: Path) -> None:
    """Else the sums of its log would be those of before."""
    (tmp_path / EVENTS_FILE).touch()
    gone = soon_gone(hold(tmp_path))
    with EventLog(tmp_path, resume=True):
        assert gone.is_set()


def test_what_is_drawn_waits_until_another_one_is_done(
    hold: Hold, simulation: Path, tmp_path: Path
) -> None:
    """Drawing takes seconds, and files of two that draw at once would not agree."""
    gone = soon_gone(hold(simulation))
    assert main(["render", str(simulation), "--lang", "zh"]) == ExitCode.OK
    assert gone.is_set()


def test_a_run_is_drawn_and_read_when_another_one_is_done(
    hold: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `render`, and by a run that has just ended: what was read before may be another run's."""
    read, begun = drawing.read_record, []

    def when_it_is_done(directory: Path, *, own: bool = False) -> Record:
        assert begun[-1].is_set()
        return read(directory, own=own)

    monkeypatch.setattr(files, "draw_plots", lambda *_: iter(()))  # seconds for each
    monkeypatch.setattr(drawing, "read_record", when_it_is_done)
    run = sample_run(tmp_path / "run")
    for ways in (
        lambda: drawing.render(run, "en", ascii_only=False),
        lambda: drawing.draw(run, ConsoleReporter("en"), "en"),
    ):
        begun.append(soon_gone(hold(run)))
        ways()
    monkeypatch.setattr(drawing, "DRAWING_S", 0.1)
    hold(run)
    assert main(["render", str(run), "--lang", "en"]) == ExitCode.USAGE


def test_a_comparison_is_written_when_another_one_is_done(
    hold: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, run = tmp_path / "out", str(sample_run(tmp_path / "run"))
    out.mkdir()
    words = ["compare", run, run, "--out", str(out), "--lang", "en"]
    process = hold(out)
    monkeypatch.setattr(index, "DRAWING_S", 0.1)
    assert main(words) == ExitCode.USAGE
    assert list(out.iterdir()) == []
    monkeypatch.undo()
    soon_gone(process)
    assert main(words) == ExitCode.OK


def test_whoever_draws_does_not_wait_for_ever(
    hold: Hold, simulation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.commands.simulate.DRAWING_S", 0.2)
    hold(simulation)
    assert main(["render", str(simulation), "--lang", "en"]) == ExitCode.USAGE


def test_a_command_within_a_command_has_what_its_own_process_has(tmp_path: Path) -> None:
    with held(tmp_path), held(tmp_path), turn(tmp_path, 0) as ours:
        assert ours
    with held(tmp_path):
        assert not is_locked(tmp_path)


def test_the_index_is_made_by_one_at_a_time(
    hold: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listed the runs first must not write last."""
    reports = tmp_path / "reports"
    (reports / "one").mkdir(parents=True)
    listed, gone = index.entries, soon_gone(hold(reports))

    def when_it_is_done(place: Path) -> list[Entry]:
        assert gone.is_set()
        return listed(place)

    monkeypatch.setattr(index, "entries", when_it_is_done)
    assert write_index(reports / "one", "en") == reports / "index.html"
