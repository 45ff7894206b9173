"""Signals in the moments between finding something and keeping it: what took long is kept."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children, resource_tracker, util
from pathlib import Path
from typing import Any

import pytest
from event_makers import head
from real_parts import is_gone

from experiment.bench import rounds
from experiment.bench.rounds import Ground, run_round
from experiment.commands import simulate as command
from experiment.commands.main import main
from experiment.config.schema import Config
from experiment.machine.environment import Environment
from experiment.process.interrupts import EndedError, Interrupts
from experiment.report.console.simulation import SimulationConsole
from experiment.text.errors import ExitCode
from experiment.workload.prepared import Prepared
from kvsim.paper.memory import closed
from kvsim.sweep import expand
from kvsim.sweep.processes import by_processes

SIM = (
    "simulate", "--trace", "sharegpt-like", "--requests", "20", "--rate", "5", "--model", "gpt2",
    "--gpu", "a100-80gb", "--policy", "max,paged", "--lang", "en",
)  # fmt: skip
GRID = {"trace": "sharegpt-like", "policy": "paged", "model": "gpt2", "gpu": "a100-80gb"}


@pytest.fixture(autouse=True)
def _as_in_the_foreground() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def late(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and a signal before it does anything."""

    def but_first(*words: Any, **more: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return function(*words, **more)

    return but_first


def simulated(out: Path) -> list[str]:
    data = json.loads((out / "sim.json").read_text(encoding="utf-8"))
    assert not data["interrupted"]
    return [cell["policy"] for cell in data["cells"] if cell["result"]]


def test_a_simulation_that_is_whole_is_kept_though_its_display_is_just_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = SimulationConsole.progress

    @contextmanager
    def ending(self: SimulationConsole, total: int) -> Iterator[Any]:
        with progress(self, total) as bar:
            yield bar
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(SimulationConsole, "progress", ending)
    out = tmp_path / "out"
    assert main([*SIM, "--out", str(out)]) == ExitCode.OK
    assert simulated(out) == ["max", "paged"]
    assert (out / "report.html").exists()


@pytest.mark.parametrize("what", ["write_simulation", "_written"])
def test_a_simulation_is_written_down_before_anything_ends(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(command, what, late(getattr(command, what)))
        assert main([*SIM, "--out", str(out)]) == ExitCode.TERMINATED
    assert f"render {out} draws it" in " ".join(capsys.readouterr().out.split())
    assert simulated(out) == ["max", "paged"]
    assert [path.name for path in out.iterdir()] == ["sim.json"]
    assert main(["render", str(out)]) == ExitCode.OK
    assert (out / "report.html").exists()


@pytest.mark.parametrize("what", ["result_of", "_write"])
def test_claims_of_the_paper_that_were_checked_are_written_down(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiment.commands import paper as paper_command
    from kvsim.paper import parts

    monkeypatch.setattr("kvsim.paper.parts.PARTS", (lambda _: closed(),))
    where: Any = parts if what == "result_of" else paper_command
    monkeypatch.setattr(where, what, late(getattr(where, what)))
    code = main(["paper", "--seeds", "2", "--lang", "en", "--out", str(tmp_path)])
    assert code == ExitCode.TERMINATED
    data = json.loads((tmp_path / "paper.json").read_text(encoding="utf-8"))
    assert [claim["id"] for claim in data["claims"]] == [claim.id for claim in closed()]
    assert (tmp_path / "paper.html").exists()
    assert "819,200 B" in capsys.readouterr().out


def test_a_round_of_a_benchmark_is_read_to_its_end(
    tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model, workload = head()
    ground = Ground(environment, Prepared("nowhere", model, workload), print, print)  # type: ignore[arg-type]
    monkeypatch.setattr(rounds, "rows_of", late(rounds.rows_of))
    monkeypatch.setattr(rounds, "profiles_of", lambda *_: ["read"])
    with Interrupts() as interrupts:
        found = run_round(tmp_path / "A-0", ground, Config(), "A", 0, [], limits=False)
        assert interrupts.exit_code == ExitCode.TERMINATED
    assert (found.interrupted, found.profiles) == (True, ["read"])


def test_no_process_of_a_sweep_is_left_half_started(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without what it is sent at its start a process would end with a traceback."""
    resource_tracker.ensure_running()
    spawn, pids = util.spawnv_passfds, list[int]()

    def and_a_signal(*words: Any) -> int:
        pid = spawn(*words)
        pids.append(pid)
        signal.raise_signal(signal.SIGTERM)
        return pid

    monkeypatch.setattr(util, "spawnv_passfds", and_a_signal)
    cells = expand(GRID | {"requests": [20, 21, 22]})
    with Interrupts(), pytest.raises(EndedError):
        list(by_processes(cells, 2))
    assert active_children() == []
    assert pids
    assert all(is_gone(pid) for pid in pids)  # by then they have said what they say
    assert capfd.readouterr().err == ""
