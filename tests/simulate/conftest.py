"""Two simulations that all tests of reports look at, and plans through the front door."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sim_runs import MODEL, SMALL, Planned, hashed_trace, simulated

from experiment.commands.main import main
from experiment.text.errors import ExitCode


@pytest.fixture
def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Planned]:
    """Run ``plan``, which must end with ``code``."""

    def run(*words: str, code: int = ExitCode.OK, lang: str = "en") -> Planned:
        out = tmp_path / "planned.json"
        capsys.readouterr()
        assert main(["plan", *words, "--out", str(out), "--lang", lang]) == code
        return Planned(json.loads(out.read_bytes()), capsys.readouterr().out.splitlines())

    return run


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every policy under a drawn trace, with all sweeps that such a trace allows."""
    out = tmp_path_factory.mktemp("drawn")
    sweeps = ("--block-sizes", "1,16,64", "--budgets", "6GiB,12GiB", "--sample-counts", "2,4")
    simulated(out, *SMALL, "--policy", "all", *sweeps)
    return out


@pytest.fixture(scope="session")
def hashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace with hash ids, in Chinese afterwards; bad rows are skipped."""
    folder = tmp_path_factory.mktemp("hashed")
    trace = hashed_trace(folder / "trace.jsonl")
    with trace.open("a", encoding="utf-8") as file:
        file.write('{"timestamp": 1, "input_length": 5, "output_length": 3}\n')
    words = ("--trace", str(trace), "--unit", "ms", "--skip-bad-rows", *MODEL)
    simulated(folder / "out", *words, "--policy", "paged,paged+prefix,oracle")
    return folder / "out"
