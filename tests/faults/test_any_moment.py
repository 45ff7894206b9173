"""A run that breaks off behind any of its events: it is evaluated, drawn, and says what is missing.

Whatever ended it, a log is whole up to some line. Here it ends at each line of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from event_makers import record
from programs import Starter
from texts import fixed

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import (
    ArmFinished,
    ArmStarted,
    Event,
    RequestFinished,
    RunFinished,
    StageEntered,
    Usage,
    encode,
)
from experiment.machine.environment import Environment
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import ExitCode


@pytest.fixture(scope="module")
def whole(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """Every event of a run of two arms, with its readings and stages; the wall clock jumps."""
    place = tmp_path_factory.mktemp("whole")
    program = Starter(place, environment.model_dump(mode="json"))("--yes", clock_jumps=True)
    assert program.end()[::2] == (ExitCode.OK, "")
    return list(read_record(program.out).events)


def test_a_wall_clock_that_jumps_changes_no_duration(whole: list[Event]) -> None:
    moments = [event.t_ns for event in whole if not hasattr(event, "plan")]
    assert max(moments) - min(moments) < 120 * 10**9
    for arm in evaluate(record(whole)).arms:
        assert arm.status == "finished"
        assert 0 <= (arm.watch.waited_s or 0) < 60
        assert 0 < (arm.watch.watched_s or 0) < 60


def moments(events: list[Event]) -> Iterator[int]:
    """How many events stand where a kind of event, or a stage, is there anew.

    Behind the first arm there are few new ones: where it ends, and where the other one begins.
    """
    seen = set()
    for number, event in enumerate(events, 1):
        kind = (event.event, event.stage if isinstance(event, StageEntered) else None)
        if kind not in seen or isinstance(event, ArmStarted):
            yield number
        seen.add(kind)


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_that_breaks_off_anywhere_is_drawn_with_what_it_has(
    ended: bool, whole: list[Event], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed, and interrupted: then the log has an end."""
    tried = list(moments(whole[:-1]))
    # Usage is sampled by time, so a fast run may have none; every other kind is in each run.
    assert sum(not isinstance(whole[number - 1], Usage) for number in tried) >= 17
    for number in tried[ended::2]:  # each of them once, in one of the two ways
        events = [*whole[:number], *([RunFinished(status="interrupted")] if ended else [])]
        run = tmp_path / str(number)
        run.mkdir()
        text = "".join(encode(event) + "\n" for event in events)
        (run / EVENTS_FILE).write_text(text, encoding="utf-8")
        last = events[number - 1].event
        assert main(["render", str(run), "--lang", "en"]) == ExitCode.OK, last
        assert "Traceback" not in capsys.readouterr().err
        results = evaluate(read_record(run))
        assert results.status == ("interrupted" if ended else "failed")
        done = {event.arm for event in events if isinstance(event, ArmFinished)}
        assert {arm.arm: arm.status for arm in results.arms}.items() >= {
            event.arm: "finished" if event.arm in done else "failed"
            for event in events if isinstance(event, ArmStarted)
        }.items(), last  # fmt: skip
        requests = sum(isinstance(event, RequestFinished) for event in events)
        assert sum(len(arm.requests) for arm in results.arms) == requests, last
        page = (run / "report.html").read_text(encoding="utf-8")
        assert ("This run was interrupted" if ended else "This run failed") in page, last


@pytest.mark.parametrize("line", ["", '{"t_ns":0,"event":"run_st'])
def test_a_log_without_a_whole_line_is_refused(
    line: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    """The program was killed before its first line, or in it."""
    (tmp_path / EVENTS_FILE).write_text(line, encoding="utf-8")
    for command in (["render", tmp_path], ["--resume", tmp_path], ["compare", tmp_path, tmp_path]):
        said = refused(*command)
        assert fixed("error.record_empty") in said
        assert str(tmp_path) in said
    assert (tmp_path / EVENTS_FILE).read_text(encoding="utf-8") == line
