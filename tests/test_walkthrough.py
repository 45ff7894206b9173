"""The whole program, as a person runs it: real processes, a tiny model, both languages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import (
    SCHEMA_VERSION,
    ModelPrepared,
    WorkloadReady,
)
from experiment.record.log import read_record
from experiment.text.errors import ExitCode

ROOT = Path(__file__).parent.parent
DOOR = ROOT / "run_experiment.py"
QUICK = ROOT / "configs" / "quick.toml"
HAN = re.compile(r"[\u4e00-\u9fff]")
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}


def start(*words: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, str(DOOR), "--config", str(QUICK), *words],
        text=True, encoding="utf-8", errors="replace",
        **{**PIPES, **options},
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One quick run in English: its directory and what it printed."""
    directory = tmp_path_factory.mktemp("run") / "out"
    baseline, gate = (str(QUICK.with_name(n)) for n in ("baseline-quick.json", "gate-example.toml"))
    words = ("--yes", "--lang", "en", "--baseline", baseline, "--gate", gate)
    strict = {**os.environ, "PYTHONWARNINGS": "error"}
    process = start(*words, "--out", str(directory), env=strict)
    out, err = process.communicate(timeout=300)
    assert process.returncode == ExitCode.OK, err
    assert err == ""
    return directory, out


def test_every_arm_ends_well_with_equal_tokens(finished: tuple[Path, str]) -> None:
    results = evaluate(read_record(finished[0]))
    assert [arm.status for arm in results.arms] == ["finished"] * 5
    assert [comparison.equal for comparison in results.tokens] == [True] * 4
    assert not [problem for arm in results.arms for problem in arm.problems]
    logs = (finished[0] / "logs").iterdir()
    assert not [path for path in logs if "Warning" in path.read_text(encoding="utf-8")]


def test_the_figures_are_those_of_arithmetic(finished: tuple[Path, str]) -> None:
    record = read_record(finished[0])
    results = evaluate(record)
    workload, model = record.first(WorkloadReady), record.first(ModelPrepared)
    assert workload is not None
    assert model is not None
    lengths = [len(r.token_ids) + r.max_new_tokens - 1 for r in workload.requests]
    batch, paged = results.arm("contiguous.batch"), results.arm("paged")
    assert batch is not None
    assert paged is not None
    assert batch.peak is not None
    assert paged.peak is not None
    slab_bytes = workload.max_length * model.slot_bytes
    assert batch.tensor_bytes == len(lengths) * slab_bytes
    assert paged.tensor_bytes == workload.budget_bytes
    assert batch.peak.live == paged.peak.live == sum(lengths)
    blocks = sum(-(-length // workload.block_size) for length in lengths)
    assert paged.peak.allocated == blocks * workload.block_size
    assert all(arm.witnessed_steps >= arm.steps for arm in results.arms)


def test_all_promised_files_are_there(finished: tuple[Path, str]) -> None:
    directory, printed = finished
    for name in ("report.html", "run.json", "events.jsonl", "summary.csv"):
        assert (directory / name).stat().st_size > 0
    assert str(directory / "report.html") in printed
    assert list((directory / "plots").glob("*.svg"))
    summary = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    assert summary["schema_version"] == SCHEMA_VERSION
    assert summary["config"]["model"]["name"] == "tiny-gpt2"


def test_english_output_has_no_chinese_character(finished: tuple[Path, str]) -> None:
    # What a random model writes can hold any character; its lines are indented by four.
    chrome = [line for line in finished[1].splitlines() if not line.startswith("    ")]
    assert not [line for line in chrome if HAN.search(line)]


def test_an_old_run_is_drawn_again_in_another_language(
    finished: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", str(finished[0]), "--lang", "zh"]) == ExitCode.OK
    assert HAN.search(capsys.readouterr().out)
