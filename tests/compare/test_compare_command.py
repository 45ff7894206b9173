"""The words of ``compare``: exit codes, files, both languages, one line for whatever is wrong."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compare_runs import events, figure, side, write

from experiment.commands.main import main
from experiment.compare.results import Comparison
from experiment.compare.sides import compare_sides
from experiment.events import RunStarted
from experiment.report.console.compare import CompareConsole
from experiment.text.errors import ExitCode

HAN = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    place = tmp_path_factory.mktemp("runs")
    wide = write(place / "wide", events(4, began=1))
    return str(wide), str(write(place / "narrow", events(2, began=2)))


def gate(tmp_path: Path, text: str) -> str:
    path = tmp_path / "gate.toml"
    path.write_text(f"[limits]\n{text}\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "config",
    [
        {"experiment": {"size": "x"}},
        {"experiment": {"margin": -1}},
        {"experiment": {"margin": "x"}},
        {"experiment": {"margin": []}},
        {"experiment": {"repeats": "x"}},
        {"sampling": {"beam_width": "x"}},
    ],
)
def test_a_config_that_no_comparison_can_use_is_refused(
    runs: tuple[str, str],
    tmp_path: Path,
    config: dict[str, Any],
    refused: Callable[..., str],
) -> None:
    begun, *others = events()
    assert isinstance(begun, RunStarted)
    bad = str(write(tmp_path / "bad", [begun.model_copy(update={"config": config}), *others]))
    for words in ([runs[0], bad], [bad, runs[0]], [runs[0], "--baseline", bad]):
        for lang in ("en", "zh"):
            refused("compare", *words, "--out", tmp_path / "out", lang=lang)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_two_runs_are_shown_and_written(
    runs: tuple[str, str], tmp_path: Path, lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["compare", *runs, "--lang", lang, "--out", str(out)]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert bool(HAN.search(printed)) == (lang == "zh")
    assert "100.0 %" in printed
    assert len(printed.splitlines()) <= 15, printed
    data = Comparison.model_validate_json((out / "compare.json").read_text(encoding="utf-8"))
    assert data.count("better") > 0
    rows = list(csv.DictReader((out / "compare.csv").open(encoding="utf-8")))
    assert [row["id"] for row in rows] == [row.id for row in data.rows]
    wasted = next(row for row in rows if row["id"] == "paged/wasted_slots")
    assert (wasted["left"], wasted["right"], wasted["verdict"]) == ("2", "0", "better")


def brief(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> str:
    """What the console says without ``--details``, on one line."""
    CompareConsole("en").show(comparison)
    return " ".join(capsys.readouterr().out.split())


def test_another_model_or_config_is_told_before_another_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = {"cpu": "two", "ram_bytes": 1, "cores": 2}
    left = side(figure("steps", 1, kind="count"), config={"seed": 41})
    other = side(machine=many, versions={"torch": "2"}, model={"name": "large"},
                 config={"seed": 42})  # fmt: skip
    text = brief(compare_sides(left, other), capsys)
    assert all(value in text for value in ("tiny", "large", "41", "42"))
    assert "two" not in text


def test_the_name_of_a_run_may_be_of_any_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stands in it need not name it."""
    run = write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff")), events())
    monkeypatch.chdir(run)
    words = ["compare", ".", ".", "--out", str(tmp_path / "out"), "--lang", "en"]
    assert main(words) == ExitCode.OK
    data = json.loads((tmp_path / "out" / "compare.json").read_text(encoding="utf-8"))
    assert data["left"]["name"] == "r\ufffd"


def test_a_gate_decides_the_exit_code(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", runs[1], "--lang", "en", "--gate"]
    assert main([*words, gate(tmp_path, '"paged/wasted_slots" = { max = 0 }')]) == ExitCode.OK
    assert main([*words, gate(tmp_path, '"paged/live_slots" = { max = 9 }')]) == ExitCode.GATE
    assert "1 of 1 limits do not hold" in capsys.readouterr().out
    assert main([*words, gate(tmp_path, '"slabs/steps" = { max = 9 }')]) == ExitCode.GATE
    assert "unknown, so not passed" in capsys.readouterr().out


def test_the_table_of_a_gate_goes_to_the_summary_of_a_job(
    runs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    limits = gate(tmp_path, '"paged/steps" = { min = 1 }\n"paged/wasted_slots" = { max = 1 }')
    assert main(["compare", runs[0], "--gate", limits, "--lang", "en"]) == ExitCode.GATE
    rows = [line for line in summary.read_text(encoding="utf-8").splitlines() if "paged/" in line]
    assert rows[0].startswith("| paged/wasted\\_slots | ")  # the broken one first
    assert rows[0].endswith(" | 1 | 2 | does not hold |")
    assert rows[1].endswith(" | holds |")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "such.md"))
    assert main(["compare", runs[0], "--gate", limits, "--lang", "en"]) == ExitCode.USAGE


def test_a_gate_takes_the_run_before_as_its_baseline(runs: tuple[str, str], tmp_path: Path) -> None:
    wide, narrow = runs
    path = gate(tmp_path, '"paged/wasted_slots" = { max = "baseline" }')
    out = ["--lang", "en", "--out", str(tmp_path), "--gate", path]
    assert main(["compare", narrow, "--baseline", wide, *out]) == ExitCode.OK
    assert main(["compare", wide, "--baseline", narrow, *out]) == ExitCode.GATE
    assert main(["compare", wide, narrow, *out]) == ExitCode.OK
    assert main(["compare", narrow, wide, *out]) == ExitCode.GATE


def test_a_baseline_is_made_reviewed_and_replaced(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.json"
    words = ["--write-baseline", str(path), "--lang", "en", "--out", str(tmp_path / "out")]
    assert main(["compare", runs[0], *words]) == ExitCode.OK
    assert json.loads(path.read_text(encoding="utf-8"))["figures"]["paged/wasted_slots"] == 2
    assert "better" not in capsys.readouterr().out
    assert main(["compare", runs[1], *words]) == ExitCode.OK
    assert "100.0 % better" in capsys.readouterr().out
    assert json.loads(path.read_text(encoding="utf-8"))["figures"]["paged/wasted_slots"] == 0


@pytest.mark.parametrize("change", [{"format": 0}, {"figures": {"paged/renamed": 1}}, None])
def test_a_baseline_that_cannot_be_read_is_made_again(
    runs: tuple[str, str], tmp_path: Path, change: dict[str, object] | None,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its own error says to do that. ``None``: an empty file."""
    path = tmp_path / "baseline.json"
    words = ["compare", runs[0], "--write-baseline", str(path), "--lang", "en"]
    assert main(words) == ExitCode.OK
    made = path.read_text(encoding="utf-8")
    changed = "" if change is None else json.dumps(json.loads(made) | change)
    path.write_text(changed, encoding="utf-8")
    capsys.readouterr()
    assert main(words) == ExitCode.OK
    assert path.read_text(encoding="utf-8") == made
    assert "Replaced without comparison" in capsys.readouterr().out


MERGED = "<<<<<<< ours\n{made}=======\n{made}>>>>>>> theirs\n"
DAMAGED: dict[str, Callable[[str], bytes]] = {
    "conflict": lambda made: made.replace(
        ' "figures"', '<<<<<<< ours\n "figures"\n=======\n>>>>>>> theirs\n'
    ).encode(),
    "conflict of the whole file": lambda made: MERGED.format(made=made).encode(),
    "truncated": lambda made: made[:300].encode(),
    "NaN": lambda made: json.dumps(
        json.loads(made) | {"figures": {"paged/steps": float("nan")}}
    ).encode(),
    "no text": lambda made: made.encode() + b"\xff",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_baseline_is_made_again(
    runs: tuple[str, str], tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str],
    refused: Callable[..., str],
) -> None:  # fmt: skip
    path = tmp_path / "baseline.json"
    words = ["compare", runs[0], "--write-baseline", str(path), "--lang", "en"]
    assert main(words) == ExitCode.OK
    made = path.read_text(encoding="utf-8")
    path.write_bytes(DAMAGED[damage](made))
    capsys.readouterr()
    refused("compare", runs[0], "--baseline", path)
    assert main(words) == ExitCode.OK
    assert path.read_text(encoding="utf-8") == made
    assert "Replaced without comparison" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ['{"kind": "plan", "x": NaN}', '{"a": {"kind": "pagedkv-baseline"}', "text", "[1]"]
)
def test_a_file_of_another_kind_is_no_baseline_to_replace(
    runs: tuple[str, str], tmp_path: Path, text: str, refused: Callable[..., str]
) -> None:
    path = tmp_path / "notes.json"
    path.write_text(text, encoding="utf-8")
    refused("compare", runs[0], "--write-baseline", path)
    assert path.read_text(encoding="utf-8") == text


def test_a_gate_that_is_broken_leaves_the_baseline_as_it_was(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or the same run would pass the next time."""
    path = tmp_path / "baseline.json"
    assert main(["compare", runs[1], "--write-baseline", str(path), "--lang", "en"]) == ExitCode.OK
    before = path.read_bytes()
    words = ["compare", runs[0], "--baseline", str(path), "--write-baseline", str(path)]
    words += ["--lang", "en", "--out", str(tmp_path / "out"), "--gate"]
    broken = gate(tmp_path, '"paged/wasted_slots" = { max = "baseline" }')
    assert main([*words, broken]) == ExitCode.GATE
    assert path.read_bytes() == before
    assert "is not updated" in " ".join(capsys.readouterr().out.split())
    assert main([*words, gate(tmp_path, '"paged/steps" = { max = 99 }')]) == ExitCode.OK
    assert path.read_bytes() != before


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("{run}",),
        ("{run}", "none"),
        ("none", "{run}"),
        ("{run}", "{run}", "{run}"),
        ("{run}", "{run}", "--baseline", "{run}"),
        ("{run}", "--gate", "none.toml"),
        ("{run}", "--baseline", "none.json"),
        ("{run}", "--baseline", "{gate}"),
        ("{run}", "--gate", "{gate}"),
        ("{run}", "--gaet", "{gate}"),
    ],
)
def test_wrong_words_end_in_one_line(
    runs: tuple[str, str],
    tmp_path: Path,
    words: tuple[str, ...],
    lang: str,
    refused: Callable[..., str],
) -> None:
    path = gate(tmp_path, '"paged/steps" = { max = "baseline" }')
    filled = [word.format(run=runs[0], gate=path) for word in words]
    line = refused("compare", *filled, lang=lang)
    assert bool(HAN.search(line)) == (lang == "zh")
    if len(words) == 3 and set(words) == {"{run}"}:
        assert runs[0] in line


def test_a_gate_that_cannot_be_used_is_refused_before_anything_runs(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    out = tmp_path / "out"
    path = gate(tmp_path, '"paged/generate_s" = { max = 1 }')
    words = ["--model", "tiny-gpt2", "--arms", "paged", "--max-new-tokens", "2", "--yes"]
    assert "is a time" in refused(*words, "--gate", path, "--out", out)
    assert not out.exists()
