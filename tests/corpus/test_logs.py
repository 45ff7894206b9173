"""Logs of runs are read for ever as they were read when they were written.

``expected.json`` is what the program of that time concluded. A log is a real one, with fewer
samples of memory. Names that changed since stand in ``keys.toml``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from corpus import ROOT, differences, evaluate

LOGS = Path(__file__).parent / "logs"


@pytest.mark.parametrize("case", sorted(path.name for path in LOGS.iterdir()))
def test_a_log_is_read_as_it_was(case: str, tmp_path: Path) -> None:
    place = tmp_path / "logs" / case
    place.mkdir(parents=True)
    shutil.copy(LOGS / case / "events.jsonl", place)
    expected = json.loads((LOGS / case / "expected.json").read_text(encoding="utf-8"))
    assert len(expected) > 500
    assert differences(case, expected, evaluate(tmp_path, ROOT, case)) == []
