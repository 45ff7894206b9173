"""A file that was changed after the run wrote it is named, and nothing is judged by it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from event_makers import whole_run

from experiment.commands.main import main
from experiment.events import encode
from experiment.files.locks import lock
from experiment.record import checksums
from experiment.record.checksums import changed_files
from experiment.record.log import EVENTS_FILE, RUN_FILE, read_record
from experiment.text import Translator, catalogue
from experiment.text.errors import ExitCode
from kvsim.base.files import file_sha256

CHANGED = Translator("en")("note.changed_files", files=EVENTS_FILE)
REDRAWN = catalogue("en")["note.changed_reports"].partition(":")[0]
GATE = '[limits]\n"paged/blocks" = { max = 8 }\n'
Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two small arms, drawn once."""
    directory = tmp_path_factory.mktemp("drawn") / "run"
    (directory / "logs").mkdir(parents=True)
    (directory / "logs" / "paged.log").write_text("what the arm printed\n", encoding="utf-8")
    text = "".join(encode(event) + "\n" for event in whole_run())
    (directory / EVENTS_FILE).write_text(text, encoding="utf-8")
    assert main(["render", str(directory), "--lang", "en"]) == ExitCode.OK
    return directory


@pytest.fixture
def run(drawn: Path, tmp_path: Path) -> Path:
    """A copy that may be changed, and a gate beside it."""
    (tmp_path / "gate.toml").write_text(GATE, encoding="utf-8")
    return Path(shutil.copytree(drawn, tmp_path / "run"))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command; its exit code and what it printed, as one line."""

    def ask(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code, printed = main([*map(str, words), "--lang", "en"]), capsys.readouterr()
        return code, " ".join((printed.out + printed.err).split())

    return ask


def sums(run: Path) -> dict[str, str]:
    found = json.loads((run / RUN_FILE).read_text(encoding="utf-8"))["files"]
    assert isinstance(found, dict)
    return found


def change(path: Path) -> None:
    """Another token id, of the same length: nothing else can notice it."""
    text = path.read_text(encoding="utf-8")
    assert "[10,11,12]" in text
    path.write_text(text.replace("[10,11,12]", "[10,11,13]"), encoding="utf-8")


def test_every_file_beside_the_summary_has_its_checksum(run: Path) -> None:
    files = {p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()}
    assert sums(run) == {name: file_sha256(run / name) for name in files - {RUN_FILE}}
    assert len(files) > 8
    assert read_record(run).changed_files == ()


def test_a_changed_log_is_drawn_with_a_warning_that_stays(run: Path, command: Command) -> None:
    before = sums(run)
    change(run / EVENTS_FILE)
    for _ in range(2):  # drawing it again must not turn it into the true one
        code, printed = command("render", run)
        assert (code, CHANGED in printed) == (ExitCode.OK, True)
        assert sums(run)[EVENTS_FILE] == before[EVENTS_FILE]
        assert CHANGED in (run / "report.html").read_text(encoding="utf-8")
    _, printed = command("compare", run, run, "--out", run.parent / "out")
    assert f"files changed after the run: {EVENTS_FILE}" in printed


def test_a_changed_report_is_said_and_drawn_anew(run: Path, command: Command) -> None:
    (run / "summary.csv").write_text("arm,best\nmine,always\n", encoding="utf-8")
    for said in (True, False):
        assert (f"{REDRAWN}: summary.csv" in command("render", run)[1]) is said
    assert "always" not in (run / "summary.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [EVENTS_FILE, "report.html"])
def test_a_gate_is_not_judged_by_a_changed_run(run: Path, name: str, command: Command) -> None:
    words, baseline = ("compare", run), run.parent / "b.json"
    gate = ("--gate", run.parent / "gate.toml")
    assert command(*words, *gate)[0] == ExitCode.OK
    with (run / name).open("a", encoding="utf-8") as file:
        file.write("\n")
    code, printed = command(*words, *gate)
    assert (code, name in printed) == (ExitCode.CHANGED, True)
    assert command(*words, "--write-baseline", baseline)[0] == ExitCode.CHANGED
    assert not baseline.exists()


def test_a_missing_log_is_a_change_and_a_missing_report_is_none(run: Path) -> None:
    known = sums(run)
    (run / "report.html").unlink()
    assert changed_files(run, known) == ()
    (run / "logs" / "paged.log").unlink()
    assert changed_files(run, known) == ("logs/paged.log",)


def test_a_run_that_is_drawn_while_it_is_written_is_not_called_changed_later(run: Path) -> None:
    (run / RUN_FILE).unlink()
    with (run / EVENTS_FILE).open("r+b") as file:
        assert lock(file)
        assert main(["render", str(run), "--lang", "en"]) == ExitCode.OK
        file.seek(0, 2)
        file.write((encode(whole_run()[-1]) + "\n").encode())
    assert read_record(run).changed_files == ()
    assert main(["render", str(run), "--lang", "en"]) == ExitCode.OK
    assert sums(run)[EVENTS_FILE] == file_sha256(run / EVENTS_FILE)


def test_no_more_is_read_than_a_run_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a file of a terabyte, or one that is named a million times, would be read for days."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 100)
    known = {name: file_sha256(tmp_path / name.lstrip("./")) for name in ("a", "./a", "b", "././b")}
    assert changed_files(tmp_path, known) == ()
    monkeypatch.setattr(checksums, "MAX_READ", 250)
    assert changed_files(tmp_path, known) == ("b", "././b")
    os.truncate(tmp_path / "a", 1 << 40)
    assert changed_files(tmp_path, known) == ("a", "./a")
    for target in ("/proc/self/pagemap", "/dev/zero", "a"):
        (tmp_path / "b").unlink()
        (tmp_path / "b").symlink_to(target)
        assert "b" in changed_files(tmp_path, known)


def test_names_that_no_run_has_are_changed_files(tmp_path: Path) -> None:
    """Too many, too long, of another directory, or such as no file can have."""
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.touch()
    run.mkdir()
    for names in (["logs/" + "a" * 300], [str(n) for n in range(5000)]):
        assert changed_files(run, dict.fromkeys(names, "ab" * 32)) == (RUN_FILE,)
    known = dict.fromkeys(["../outside", str(outside), "logs/x\0"], file_sha256(outside))
    assert changed_files(run, known) == tuple(known)


def test_logs_of_a_killed_run_are_cleaned_before_their_sums_are_taken(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who cleans a log when its process has ended was killed with it."""
    monkeypatch.setenv("HOME", "/home/zqmarker")
    log, text = run / "logs" / "paged.log", "File /home/zqmarker/lab/x.py\n"
    log.write_text(text, encoding="utf-8")
    assert main(["render", str(run), "--lang", "en"]) == ExitCode.OK
    assert log.read_text(encoding="utf-8") == text  # it has a sum, and is evidence
    (run / RUN_FILE).unlink()
    assert main(["render", str(run), "--lang", "en"]) == ExitCode.OK
    assert log.read_text(encoding="utf-8") == "File ~/lab/x.py\n"
    assert read_record(run).changed_files == ()


@pytest.mark.parametrize("what", ["cut short", "a pipe"])
def test_a_damaged_summary_is_said_and_nothing_is_judged_by_its_run(
    run: Path, what: str, command: Command
) -> None:
    """It has the sums of all others, so that nobody knows whether those are as they were."""
    summary = run / RUN_FILE
    text = summary.read_text(encoding="utf-8")
    summary.unlink()
    if what == "a pipe":
        os.mkfifo(summary)
    else:
        summary.write_text(text[: len(text) // 2], "utf-8")
    words = ("compare", run, "--gate", run.parent / "gate.toml")
    code, printed = command(*words)
    assert (code, RUN_FILE in printed) == (ExitCode.CHANGED, True)
    for told in (True, False):
        code, printed = command("render", run)
        assert (code, f"{REDRAWN}: {RUN_FILE}" in printed) == (ExitCode.OK, told)
    assert command(*words)[0] == ExitCode.OK
