"""``bench``: a real one with a tiny model, what it writes and shows, and what it refuses."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiment.bench.data import read_data
from experiment.commands.main import main
from experiment.record.log import read_record
from experiment.report.files.markdown import BENCH
from experiment.report.files.markup import marks
from experiment.text import LANGUAGES, catalogue
from experiment.text.errors import ExitCode, UserError

ASKED = ("slabs", "paged")
BEGIN, END = marks(BENCH)
HAN = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Path:
    out = tmp_path_factory.mktemp("bench")
    words = ["--quick", "--workloads", "A", "--arms", ",".join(ASKED), "--rounds", "1"]
    assert main(["bench", *words, "--threads", "1", "--out", str(out), "--lang", "en"]) == 0
    return out


@pytest.fixture
def data(measured: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((measured / "engine.json").read_text(encoding="utf-8"))
    return found


def test_there_is_a_row_for_each_workload_arm_and_round(data: dict[str, Any]) -> None:
    assert data["status"] == "complete"
    rows = data["rows"]
    assert [(r["workload"], r["arm"], r["round"]) for r in rows] == [("A", a, 0) for a in ASKED]
    for row in rows:
        assert row["status"] == "finished", row["reason"]
        assert row["problems"] == []
        assert row["useful_tokens"] == 4 * 6
        assert row["useful_tokens_per_s"] == pytest.approx(24 / row["generate_s"])
        assert row["peak_kv_bytes"] == 4 * 64 * 2 * 2 * 64 * 4  # four slabs of 64 slots
        assert 0 < row["prefill_share"] < 1
        assert 0 < row["decode_share"] < 1
        assert row["equal_requests"] == row["requests"] == 4
        assert row["reference"] == "slabs"  # nothing of Transformers was run
        assert row["variables"]["OMP_NUM_THREADS"] == "1"
        assert row["cores"]
        assert row["packing"]["layers"] > 0 or row["packing"]["reason"]
        assert row["process_peak_bytes"] > 0
        assert row["loading_peak_bytes"] > 0
    slabs, paged = rows
    assert slabs["tokens_sha256"] == paged["tokens_sha256"]
    assert paged["peak_allocated_bytes"] < slabs["peak_allocated_bytes"]


def test_rows_are_those_of_the_record_that_is_kept(measured: Path, data: dict[str, Any]) -> None:
    from experiment.bench.rows import rows_of

    directory = measured / data["rounds"][0]["directory"]
    again = rows_of(read_record(directory), "A", 0)
    assert [row.useful_tokens_per_s for row in again] == [
        row["useful_tokens_per_s"] for row in data["rows"]
    ]
    assert data["rounds"][0]["limits"]["threads"] == 1
    log = directory / "events.jsonl"
    events = [json.loads(line)["event"] for line in log.read_text(encoding="utf-8").splitlines()]
    told = [event for event in events if event in ("limits", "arm_started")]
    assert told[0] == told[-1] == "limits"  # before the arms and behind them


def test_some_steps_were_profiled_beside_the_rows(measured: Path, data: dict[str, Any]) -> None:
    (profile,) = data["profiles"]
    assert (profile["arm"], profile["requests"], profile["steps"]) == ("paged", 4, 2)
    parts = [profile[f"{name}_ms"] for name in ("matrix", "attention", "other", "rest")]
    assert all(part > 0 for part in parts)
    # Medians of the parts need not sum to the median of the whole.
    assert sum(parts) == pytest.approx(profile["step_ms"], rel=0.5)
    assert profile["plain_step_ms"] > 0
    assert profile["plain_steps"] > 0
    directory = measured / data["rounds"][0]["directory"]
    trace = directory.with_name(directory.name + "-profile") / "logs" / profile["trace"]
    with gzip.open(trace, "rb") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"pagedkv::step", "pagedkv::attention"} <= names


@pytest.mark.parametrize("lang", LANGUAGES)
def test_an_old_file_is_shown_in_either_language(
    data: dict[str, Any], tmp_path: Path, lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = [{"id": "b_vllm", "values": [1.2], "verdict": "met"}]
    old = data | {"targets": targets, "front_door": {"help_s": [0.2]}, "waiting": []}
    (tmp_path / "engine.json").write_text(json.dumps(old), encoding="utf-8")
    assert main(["bench", "--show", str(tmp_path), "--lang", lang]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert catalogue(lang)["bench.title"] in printed
    assert catalogue(lang)["arm_name.paged"] in printed
    if lang == "en":
        assert not HAN.search(printed)


def test_tables_go_between_the_marks_of_a_page(measured: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nbehind\n", encoding="utf-8")
    words = ["bench", "--out", str(measured), "--markdown", str(page), "--lang", "en"]
    assert main(words) == ExitCode.OK
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Title\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nbehind\n")
    assert "old" not in text
    rate = read_data(measured).rows[1].useful_tokens_per_s
    assert f"| {rate:,.1f} |" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    widths = {line.count("|") for line in rows}
    assert widths <= {6, 7, 8, 9}
    once = text
    assert main(words) == ExitCode.OK
    assert page.read_text(encoding="utf-8") == once


def test_a_page_without_marks_is_left_alone(measured: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("mine\n", encoding="utf-8")
    words = ["bench", "--out", str(measured), "--markdown", str(page), "--lang", "en"]
    assert main(words) == ExitCode.USAGE
    assert page.read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--rounds", "0"],
        ["--rounds", "x"],
        ["--minutes", "-1"],
        ["--threads", "many"],
        ["--workloads", "A,E"],
        ["--workloads", ","],
        ["--arms", "pagedd"],
        ["--dtype", "int3"],
        ["--show", "none.json"],
        ["--markdown", "page.md", "--show", "none.json"],
    ],
    ids=" ".join,
)
def test_wrong_words_end_in_one_line(
    words: list[str], refused: Callable[..., str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    refused("bench", *words)
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_there_leaves_an_older_file_alone(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "engine.json").write_text("old", encoding="utf-8")
    assert "./none" in refused("bench", "--model", "./none", "--out", tmp_path)
    assert (tmp_path / "engine.json").read_text(encoding="utf-8") == "old"
    assert not list((tmp_path / "runs").iterdir())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text('{"rows": 3}', encoding="utf-8")
    with pytest.raises(UserError) as refused:
        read_data(tmp_path)
    assert refused.value.text.key == "error.bench.bad_file"
