"""The exit codes of the program are the documented ones, and the tests that a page names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiment.text import Translator
from experiment.text.errors import ExitCode

ROOT = Path(__file__).parent.parent.parent
CODES = {value for name, value in vars(ExitCode).items() if name.isupper() and name != "ENDED"}
ROW = re.compile(r"^\| (\d[\d, 、]*) \|", re.M)


@pytest.mark.parametrize("page", ["docs/commands.md", "docs/commands.zh.md"])
def test_a_page_has_every_exit_code_and_no_other(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    start = re.search(r"^\| (exit code|退出码) \|.*\n", text, re.M)
    assert start is not None
    table = text[start.end() :].partition("\n\n")[0]
    assert {int(code) for row in ROW.findall(table) for code in re.findall(r"\d+", row)} == CODES


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_help_has_every_exit_code(lang: str) -> None:
    found = {int(number) for number in re.findall(r"\d+", Translator(lang)("help.epilog"))}
    assert found == CODES


def test_the_tests_that_the_page_names_are_there() -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:tests/[\w/]+/)?test_\w+\.py|tests/[\w/]+(?:\.py)?)`", text))
    assert {"tests/fuzz/campaign.py", "tests/leaks", "test_resumed.py"} <= named
    places = [ROOT, Path(__file__).parent]
    assert not [name for name in named if not any((place / name).exists() for place in places)]
