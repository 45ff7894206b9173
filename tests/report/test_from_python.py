"""The example of docs/commands.md that calls what the commands call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sample import make_record

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_example_does_what_the_commands_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## From Python")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        make_record(Path("reports") / name)
    found: dict[str, Any] = {}
    exec(code, found)
    assert {arm.arm for arm in found["results"].arms} >= {"contiguous.batch", "paged"}
    assert Path("reports/first/report.html").exists()
    assert found["comparison"].rows
    assert found["comparison"].count("same") == len(found["comparison"].rows)
    reserved, paged = (cell["result"] for cell in found["simulated"]["cells"])
    assert paged["requests_per_s"] > reserved["requests_per_s"] > 0
    assert float(capsys.readouterr().out) > 1  # requests that run at once
