"""What a person sees of an experiment while it runs; the list, the menu, and the whole door."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import CONFIGS

from experiment.commands import main as cli
from experiment.commands import walkthrough
from experiment.commands.main import main
from experiment.commands.menu import choose
from experiment.events import (
    CellStarted,
    RepeatFinished,
    TurnStarted,
    WorkloadReady,
)
from experiment.experiments.measured import cells_of
from experiment.experiments.registry import EXPERIMENTS
from experiment.record.log import Record, cell_at, read_record
from experiment.text import Translator, catalogue
from experiment.text.errors import ExitCode

DOOR = CONFIGS.parent / "run_experiment.py"


def test_the_list_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-experiments", "--lang", "en"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(EXPERIMENTS)
    assert "--quick" in lines[-1]


def wide(text: str) -> str:
    """As an input method for Chinese types it: signs as wide as Chinese ones."""
    return "".join(chr(ord(sign) + 0xFEE0) for sign in text)


def number(name: str) -> str:
    """Of an experiment in the menu."""
    return str(1 + list(EXPERIMENTS).index(name))


def words(command: str) -> tuple[str, ...]:
    return tuple(shlex.split(command))


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        (["q"], None),
        ([""], ()),
        (["0"], ()),
        ([number("capacity"), ""], ("capacity", "--quick")),
        ([number("capacity"), "f"], ("capacity",)),
        (["99", "two", "2", "q"], None),
        (["99", number("lengths"), "f"], ("lengths",)),
        (["-1", "00", " Prefix ", "fast", "full"], ("prefix",)),
        ([wide("2"), "2", "quick"], (list(EXPERIMENTS)[1], "--quick")),
        ([wide("q")], None),
        ([wide("Lengths"), wide("F")], ("lengths",)),
        ([wide("lengths"), wide("quick")], ("lengths", "--quick")),
        (["quit"], None),
        (["holes", "quit"], None),
        ([EOFError()], None),
        (["holes", EOFError()], None),
        (
            ["f", "Qwen3-32", "Qwen3-32B", "h100x2", "h100", "2", "8q", "2000", ""],
            words(
                "plan --model Qwen3-32B --gpu h100 --gpus 2 --prompt-tokens 2000 --new-tokens 300"
            ),
        ),
        (
            ["t", "Your Trace.csv", "My Trace.csv", "", "", ""],
            words(
                "simulate --trace 'My Trace.csv' --model llama-3.1-8b --gpu rtx-4090 --gpus 1"
                " --policy all"
            ),
        ),
        (
            ["T", "", "opt-13b", "h100", ""],
            words(
                "simulate --trace sharegpt-like --model opt-13b --gpu h100 --gpus 1 --policy all"
                " --rate 10"
            ),
        ),
        (["f", "q"], None),
        (["t", "", EOFError()], None),
    ],
)
def test_the_menu_takes_a_number_and_a_size(
    answers: list[str | EOFError], chosen: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("My Trace.csv").touch()
    said = iter(answers)

    def read() -> str:
        one = next(said)
        if isinstance(one, EOFError):
            raise one
        return one

    monkeypatch.setattr("builtins.input", read)
    assert choose(Translator("en")) == chosen
    assert not list(said)


@pytest.mark.parametrize(("size", "words"), [("", ["--quick"]), ("f", [])])
def test_what_the_menu_starts_is_told_as_a_command(
    size: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record has it, too: who reads the report can type it."""
    said = iter(["lookup", size])
    seen = []
    monkeypatch.setattr("builtins.input", lambda: next(said))
    monkeypatch.setattr(cli, "_needs_menu", lambda words: "--config" not in words)
    monkeypatch.setattr(sys, "argv", ["run_experiment.py", "--lang", "en"])
    monkeypatch.setattr(
        walkthrough, "run_walkthrough", lambda config, how: seen.append((config, how)) or 0
    )
    assert main(["--lang", "en"]) == ExitCode.OK
    [(config, how)] = seen
    assert how.command == ("lookup", *words, "--lang", "en")
    assert (config.experiment.name, config.experiment.size) == (
        "lookup", "quick" if words else "full",
    )  # fmt: skip
    assert " ".join(how.command) in capsys.readouterr().out


def behind_turns(record: Record) -> list[tuple[RepeatFinished, int | None]]:
    """Every repeat in the order of the log, and the cell that the log was at."""
    here: int | None = None
    found = []
    for event in record.events:
        here = cell_at(event, here)
        if isinstance(event, RepeatFinished):
            found.append((event, here))
    return found


def test_a_whole_experiment_through_the_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real processes, one for each cell's arm; all files; drawn again in Chinese.

    Of several arms of a cell: tests/test_turns.py and, as processes, tests/test_walkthrough.py.
    """
    out = tmp_path / "out"
    words = [
        "--config", str(CONFIGS / "lengths.toml"), "--quick", "--yes", "--lang", "en",
        "--out", str(out), "--arms", "paged", "--threads", "1",
        "--set", "experiment.values=['short', 'mixed']", "--set", "experiment.repeats=2",
        "--set", "experiment.options.total=64", "--set", "engine.packed_weights=false",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(DOOR), *words],
        capture_output=True, text=True, encoding="utf-8", timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.OK, done.stderr + done.stdout
    assert len(done.stdout.splitlines()) <= 25, done.stdout
    exact = re.search(r"(\d+) of (\d+) counts equal kvsim's prediction", done.stdout)
    assert exact is not None
    assert exact[1] == exact[2]
    for name in ("report.html", "run.json", "events.jsonl", "experiment.csv", "summary.csv"):
        assert (out / name).stat().st_size > 0
    record = read_record(out)
    assert len(record.of(CellStarted)) == 2
    cells = cells_of(record)
    # An arm of a cell has a file of its own: that of another cell is there at the same time.
    logs = {path.relative_to(out / "logs").as_posix() for path in out.glob("logs/*/*.log")}
    assert logs == {"cell-1/paged.log", "cell-2/paged.log"}
    for each in cells:
        repeats = [e.repeat for e in each.events if isinstance(e, RepeatFinished)]
        assert sorted(repeats) == [0, 1, 2]
        assert each.group("paged") is not None
    order = [(e.cell, e.arm) for e in record.of(TurnStarted)]
    assert order == [(cell, "paged") for cell in (0, 1, 1, 0)]
    assert order == [(cell, event.arm) for event, cell in behind_turns(record) if not event.warm_up]
    cell, workload = record.of(CellStarted)[0], record.of(WorkloadReady)[0]
    assert cell.t_ns <= workload.t_ns
    assert main(["render", str(out), "--lang", "zh"]) == ExitCode.OK
    t = Translator("zh")
    assert t("experiments.value.short") in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--quick"], "needs_flag"),
        (["--config", "capacity.toml", "--set", "experiment.values=[]"], "empty"),
        (["--config", "capacity.toml", "--set", "experiment.options={}"], "experiment_options"),
        (
            ["--config", "serving.toml", "--set", "experiment.options.time_limt_s=5"],
            "experiment_option_near",
        ),
        (
            ["--config", "beam.toml", "--set", "experiment.options.draw.sed=1"],
            "experiment_option_near",
        ),
        (
            ["--config", "capacity.toml", "--set", "experiment.options.draw.seed=1"],
            "experiment_option",
        ),
        (
            ["--config", "block-size.toml", "--set", "experiment.options.requests=5"],
            "experiment_option_none",
        ),
        (["--config", "serving.toml", "--set", "experiment.values=[8, 8.0]"], "experiment_twice"),
        (["--config", "serving.toml", "--set", "experiment.values=[0]"], "experiment_options"),
        *(
            (
                ["--config", "serving.toml", "--set", f"experiment.options.time_limit_s={limit}"],
                "experiment_options",
            )
            for limit in ("10s", "true", "0", "-1", "[10]")
        ),
        (["--config", "prefix.toml", "--set", "experiment.values=[9, 8, 7]"], "experiment_options"),
        (["--config", "capacity.toml", "--set", "experiment.values=[4, 0]"], "limit_ge"),
        (["--config", "prefix.toml", "--set", "experiment.values=[2.5, 9]"], "not_a_kind"),
        (["--config", "capacity.toml", "--set", "experiment.values=[true]"], "not_a_kind"),
        (
            ["--config", "lengths.toml", "--set", "experiment.options.total=100"],
            "experiment_empty",
        ),
        (
            ["--config", "lengths.toml", "--set", "experiment.options.short=[[0, 0]]"],
            "experiment_options",
        ),
        *(
            (
                ["--config", "priority.toml", "--set", f"experiment.options.urgent_every={each}"],
                "experiment_urgent",
            )
            for each in ("33", "2.5", "1", "0", "-3", "true", "'4'")
        ),
        (["--config", "beam.toml", "--set", "sampling.n=2"], "either_flag"),
        (["--config", "capacity.toml", "--set", "experiment.name='x'"], "unknown"),
    ],
)
def test_what_cannot_be_run_is_one_clear_line(
    words: list[str], key: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    words = [str(CONFIGS / word) if word.endswith(".toml") else word for word in words]
    said = re.sub(r"\\{[\w:]+\\}", ".+", re.escape(catalogue("en")[f"error.{key}"]))
    assert re.search(said, refused(*words, "--yes", "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
