"""The run directory: what a crash leaves is read, what another version wrote is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from experiment.commands.main import main
from experiment.events import (
    OLDEST_SCHEMA,
    SCHEMA_VERSION,
    Notice,
    RunFinished,
    RunResumed,
    RunStarted,
    encode,
)
from experiment.process.interrupts import EndedError
from experiment.record.log import (
    EVENTS_FILE,
    RUN_FILE,
    EventLog,
    read_record,
    remove_parts,
    write_summary,
)
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import message
from kvsim.base.files import PART

ROOT = Path(__file__).parent.parent


def started(**changes: object) -> RunStarted:
    values = {"version": "1", "wall_ns": 0, "utc_offset_s": 0, "lang": "en"}
    return RunStarted.model_validate({**values, "command": [], "config": {}, **changes})


def notice(n: int) -> Notice:
    return Notice(text=message("note.busy", load=n))


def write_log(directory: Path, *lines: str, end: str = "\n") -> None:
    (directory / EVENTS_FILE).write_text("\n".join(lines) + end, encoding="utf-8")


def refusal(directory: Path) -> tuple[str, dict[str, object]]:
    with pytest.raises(UserError) as caught:
        read_record(directory)
    return caught.value.text.key, caught.value.text.params


def test_what_is_written_is_read(tmp_path: Path) -> None:
    events = [started(), notice(1), notice(2), RunFinished(status="complete")]
    with EventLog(tmp_path) as log:
        for event in events:
            log.write(event)
    record = read_record(tmp_path)
    assert list(record.events) == events
    assert (record.damaged_lines, record.summary) == (0, {})
    assert record.of(Notice) == events[1:3]
    assert (record.first(Notice), record.first(RunFinished)) == (events[1], events[3])
    assert record.started == events[0]


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    write_log(tmp_path, encode(started()))
    with pytest.raises(UserError) as caught:
        EventLog(tmp_path)
    assert caught.value.text.key == "error.run_in_use"


def test_a_log_that_goes_on_waits_until_nothing_speaks_against_it(tmp_path: Path) -> None:
    write_log(tmp_path, encode(started()), '{"cut', end="")
    write_summary(tmp_path, {"files": {EVENTS_FILE: "the checksum of what there was"}})
    first, second = notice(1), notice(2)
    before = (tmp_path / EVENTS_FILE).read_bytes()
    with EventLog(tmp_path, resume=True) as log:
        log.write(first)
        assert not log.begun
        assert (tmp_path / EVENTS_FILE).read_bytes() == before
        assert (tmp_path / RUN_FILE).exists()
        log.begin()
        log.begin()
        assert log.begun
        # Killed from here on, the run has no checksum that its log no longer has.
        assert not (tmp_path / RUN_FILE).exists()
        log.write(second)
    record = read_record(tmp_path)
    assert (list(record.events[1:]), record.damaged_lines) == ([first, second], 1)
    assert (tmp_path / EVENTS_FILE).read_bytes().startswith(before + b"\n")


def test_threads_do_not_cut_each_others_lines(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        log.write(started())

        def work() -> None:
            for n in range(200):
                log.write(notice(n))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    record = read_record(tmp_path)
    assert (len(record.events), record.damaged_lines) == (801, 0)


@pytest.mark.parametrize(("cut", "whole"), [(1, False), (20, False), (-2, False), (None, True)])
def test_a_log_whose_last_line_is_cut_is_read_up_to_it(
    tmp_path: Path, cut: int | None, whole: bool
) -> None:
    """A line that only lacks its newline is whole."""
    write_log(tmp_path, encode(started()), encode(notice(1)), encode(notice(2))[:cut], end="")
    record = read_record(tmp_path)
    assert (len(record.events), record.damaged_lines) == ((3, 0) if whole else (2, 1))


def test_what_was_cut_where_a_run_was_resumed_is_told_from_other_damage(tmp_path: Path) -> None:
    resumed = RunResumed(version="1", wall_ns=1, utc_offset_s=0, command=[], missing=[])
    log = [encode(started()), "damaged", encode(notice(1)), "damaged", '{"cut']
    write_log(tmp_path, *log, encode(resumed), "damaged", encode(notice(2)))
    record = read_record(tmp_path)
    assert (record.damaged_lines, record.cut_lines) == (4, 1)


def test_a_line_that_is_no_text_is_counted_as_damaged(tmp_path: Path) -> None:
    good = [encode(started()).encode(), encode(notice(1)).encode()]
    (tmp_path / EVENTS_FILE).write_bytes(good[0] + b"\n\xff\xfe\x00\n\n" + good[1] + b"\n")
    record = read_record(tmp_path)
    assert (len(record.events), record.damaged_lines) == (2, 1)


@pytest.mark.parametrize(
    ("version", "named", "known"),
    [(OLDEST_SCHEMA - 1, "error.schema", f"{OLDEST_SCHEMA}–{SCHEMA_VERSION}"),
     (SCHEMA_VERSION + 1, "error.newer_schema", SCHEMA_VERSION)],
)  # fmt: skip
def test_a_version_that_cannot_be_read_is_refused_by_number(
    tmp_path: Path, version: int, named: str, known: object
) -> None:
    write_log(tmp_path, encode(started(schema_version=version)))
    key, params = refusal(tmp_path)
    assert (key, params["found"], params["known"]) == (named, version, known)


def test_what_older_versions_wrote_is_read(tmp_path: Path) -> None:
    """The first format, as it was written: line by line, without what was added since."""
    lines = [
        '{"t_ns":1,"event":"run_started","schema_version":1,"version":"0.1","wall_ns":5,'
        '"utc_offset_s":0,"lang":"en","command":[],"config":{}}',
        '{"t_ns":2,"event":"arm_started","arm":"paged","pid":7}',
        '{"t_ns":3,"event":"run_finished","status":"complete"}',
    ]
    write_log(tmp_path, *lines)
    record = read_record(tmp_path)
    assert record.damaged_lines == 0
    assert record.started.schema_version == 1 < SCHEMA_VERSION
    assert [event.event for event in record.events] == [
        "run_started", "arm_started", "run_finished"
    ]  # fmt: skip
    assert main(["render", str(tmp_path), "--lang", "en"]) == ExitCode.OK
    assert (tmp_path / "report.html").exists()


def test_a_later_version_is_told_apart_even_if_its_events_are_unknown_here(tmp_path: Path) -> None:
    line = json.dumps({"event": "run_began", "schema_version": SCHEMA_VERSION + 1, "new": 1})
    write_log(tmp_path, line, encode(notice(1)))
    assert refusal(tmp_path)[0] == "error.newer_schema"


@pytest.mark.parametrize("lines", [["rubbish"], [encode(notice(1))], ["[1]", "7"]])
def test_a_file_that_is_no_log_is_no_record(tmp_path: Path, lines: list[str]) -> None:
    assert refusal(tmp_path)[0] == refusal(tmp_path / "nowhere")[0] == "error.no_record"
    write_log(tmp_path, *lines)
    assert refusal(tmp_path)[0] == "error.no_record"


@pytest.mark.parametrize("part", [0, 9, None])
def test_a_signal_in_the_middle_of_a_line_leaves_it_whole_or_not_there(
    tmp_path: Path, part: int | None
) -> None:
    """Before it is written, between two parts of it, and behind it."""

    class Interrupted:
        def write(self, line: memoryview) -> int:
            whole.write(line[:part])
            raise EndedError

        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

    with EventLog(tmp_path) as log:
        log.write(started())
        whole: Any = log._file
        log._file = Interrupted()  # type: ignore[assignment]
        with pytest.raises(EndedError):
            log.write(notice(1))
        log._file = whole
        log.write(notice(2))
        # A disk that fills up afterwards takes nothing with it of what stands.
        log._file = Interrupted()  # type: ignore[assignment]
        given, part = part, 3
        with pytest.raises(EndedError):
            log.write(notice(3))
        log._file = whole
    kept = [1, 2] if given is None else [2]
    record = read_record(tmp_path)
    assert record.damaged_lines == 0
    assert [event.text.params["load"] for event in record.of(Notice)] == kept


def test_a_summary_is_read_and_a_damaged_one_is_left_out(tmp_path: Path) -> None:
    write_log(tmp_path, encode(started()))
    write_summary(tmp_path, {"a": 1, "text": "块"})
    assert read_record(tmp_path).summary == {"a": 1, "text": "块"}
    (tmp_path / RUN_FILE).write_text('{"a": ', encoding="utf-8")
    assert read_record(tmp_path).summary == {}


def test_a_summary_with_nan_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    write_summary(tmp_path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_summary(tmp_path, {"a": float("nan")})
    assert json.loads((tmp_path / RUN_FILE).read_text(encoding="utf-8")) == {"a": 1}


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from experiment.record import log as record
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
record.write_atomic(Path(sys.argv[1]), "half")
"""
    target = tmp_path / "plots" / "a.b.svg"
    dead = subprocess.run([sys.executable, "-c", code, str(target)], cwd=ROOT, check=False)
    assert dead.returncode == -signal.SIGKILL
    assert [path.suffix for path in target.parent.iterdir()] == [PART]
    mine = tmp_path / f".report.html.{os.getpid()}.x1{PART}"
    mine.touch()
    remove_parts(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
