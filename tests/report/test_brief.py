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

from experiment.conclusions import evaluate
from experiment.events import EnvironmentProbed, Event, RunFinished
from experiment.i18n import LANGUAGES
from experiment.record import Record
from experiment.report.brief import BriefReporter
from experiment.report.console import ConsoleReporter
from experiment.report.texts import AsciiFile

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
