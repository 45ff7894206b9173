"""The benchmark runs, counts what it simulated, and writes its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.bench import TRACES, main

FOLDER = Path(__file__).parents[3] / "shared" / "traces"


@pytest.mark.skipif(not FOLDER.exists(), reason="no ../shared/traces beside the project")
def test_a_benchmark_writes_a_row_for_each_trace(tmp_path: Path) -> None:
    out = tmp_path / "bench" / "sim.json"
    told = ["--traces", str(FOLDER), "--out", str(out), "--requests", "60", "--rounds", "1"]
    assert main([*told, "--policy", "paged"]) == 0
    data = json.loads(out.read_text(encoding="utf-8"))
    assert [row["trace"] for row in data["rows"]] == list(TRACES)
    for row in data["rows"]:
        assert (row["policy"], row["round"], row["requests"]) == ("paged", 0, 60)
        assert row["finished"] + row["refused"] == 60
        # Of two processes: on a busy machine either may take longer.
        assert min(row["seconds"], row["startup_seconds"]) > 0
        assert 10 << 20 < row["peak_rss_bytes"] < 300 << 20


def test_without_traces_it_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--traces", str(tmp_path)]) == 2
    assert "--traces" in capsys.readouterr().err


def test_a_directory_is_no_file_to_write_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path)])
    assert ended.value.code == 2
    assert str(tmp_path) in capsys.readouterr().err
