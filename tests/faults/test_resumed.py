"""A run that broke off goes on with what is missing, or says in one line why it cannot."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import ARMS, FIRST, ROOT, SECOND, SHM, Starter, arm_steps
from real_parts import is_gone
from sweeps import full
from texts import fixed

from experiment.analysis.conclusions import evaluate
from experiment.commands import main as cli
from experiment.events import (
    SCHEMA_VERSION,
    ArmSkipped,
    ArmStarted,
    CellStarted,
    EnvironmentProbed,
    Event,
    ModelPrepared,
    RunFinished,
    RunResumed,
    WorkloadReady,
    encode,
)
from experiment.files.locks import lock
from experiment.files.scratch import PACKAGES, OwnPackages
from experiment.machine.environment import Environment
from experiment.measure.resume import ArmKey, finished_arms, read_resumption
from experiment.process.process_tree import is_reaper
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import Message, message


@dataclass(frozen=True)
class Killed:
    """A run whose program was killed in its second arm: its directory, and what was below it."""

    out: Path
    code: int
    below: list[psutil.Process]
    others: dict[str, Any]
    had_reaper: bool


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Killed:
    """With a stopped arm below it, which cannot notice by itself, and a line half written."""
    start = Starter(tmp_path_factory.mktemp("killed"), environment.model_dump(mode="json"))
    program = start(scripts={SECOND: "start others"})
    program.wait_for(arm_steps(SECOND))
    below = psutil.Process(program.process.pid).children(recursive=True)
    others = json.loads(start.note.read_text(encoding="utf-8"))
    assert (SHM / others["shared"]).exists()
    had_reaper = any(map(is_reaper, below))
    os.kill(program.pids[-1], signal.SIGSTOP)
    program.process.send_signal(signal.SIGKILL)
    code, *_ = program.end()
    with (program.out / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.write('{"t_ns":17,"event":"rea')
    return Killed(program.out, code, below, others, had_reaper)


@pytest.fixture
def run(killed: Killed, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed.out, tmp_path / "run"))


def content(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def attempts(run: Path) -> list[ArmKey]:
    """Each arm that was begun, with its cell; as the log has it, every attempt."""
    found: list[ArmKey] = []
    cell: int | None = None
    for line in (run / EVENTS_FILE).read_text(encoding="utf-8").splitlines():
        kind = line.partition('"event":"')[2].partition('"')[0]
        if kind == "cell":
            cell = json.loads(line)["index"]
        elif kind == "arm_started":
            found.append((cell, json.loads(line)["arm"]))
    return found


def test_nothing_that_an_arm_started_outlives_a_program_that_is_killed(killed: Killed) -> None:
    """In a session of its own or not, deaf to SIGTERM, and with memory that nobody else knows."""
    assert killed.code == -signal.SIGKILL
    assert killed.had_reaper
    assert {process.pid for process in killed.below} > set(killed.others["pids"])
    assert all(is_gone(process.pid) for process in killed.below)
    assert not (SHM / killed.others["shared"]).exists()


def test_what_a_killed_program_left_can_be_drawn(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["render", str(run), "--lang", "en"]) == ExitCode.OK
    assert fixed("note.damaged_lines") in " ".join(capsys.readouterr().out.split())
    results = evaluate(read_record(run))
    assert (results.status, [arm.status for arm in results.arms]) == (
        "failed", ["finished", "failed"]
    )  # fmt: skip
    page = (run / "report.html").read_text(encoding="utf-8")
    assert fixed("failure.no_end").partition("'")[0] in page


def test_the_missing_arm_is_run_and_the_other_one_is_not(
    run: Path, start: Starter, tmp_path: Path
) -> None:
    before = (run / EVENTS_FILE).read_bytes()
    code, printed, err = start("--resume", str(run), "--yes", out=run).end()
    assert (code, err) == (ExitCode.OK, "")
    assert "arms left: 1" in " ".join(printed.split())
    assert (run / EVENTS_FILE).read_bytes().startswith(before + b"\n")  # nothing measured is lost
    assert attempts(run) == [(None, arm) for arm in (FIRST, SECOND, SECOND)]
    record = read_record(run)
    results = evaluate(record)
    assert [(arm.arm, arm.status) for arm in results.arms] == [(a, "finished") for a in ARMS]
    assert [one.equal for one in results.tokens] == [True]
    assert not [problem for arm in results.arms for problem in arm.problems]
    assert [event.missing for event in record.of(RunResumed)] == [[(None, SECOND)]]
    assert {"note.resumed", "note.damaged_lines"} <= {note.key for note in results.notes}
    assert fixed("note.resumed") in (run / "report.html").read_text(encoding="utf-8")
    assert [event.status for event in record.of(RunFinished)] == ["complete"]

    done = content(run)
    code, printed, _ = start("--resume", str(run), out=run).end()
    assert code == ExitCode.OK
    assert fixed("note.resume_complete") in " ".join(printed.split())
    gate = tmp_path / "gate.toml"
    for most, judged in ((5, ExitCode.OK), (1, ExitCode.GATE)):
        gate.write_text(f"[limits]\n'paged/steps' = {{ max = {most} }}\n", encoding="utf-8")
        assert cli.main(["--resume", str(run), "--gate", str(gate), "--lang", "en"]) == judged
    assert content(run) == done


Change = Callable[[Path], object]


def begun_with(key: str, value: object) -> Change:
    """The first line of the log says something else, as one that somebody else wrote may."""

    def change(run: Path) -> None:
        first, *rest = (run / EVENTS_FILE).read_text(encoding="utf-8").splitlines(keepends=True)
        begun = table = json.loads(first)
        *parents, last = key.split(".")
        for parent in parents:
            table = table.setdefault(parent, {})
        table[last] = value
        begun["config"]["model"]["offline"] = False
        (run / EVENTS_FILE).write_text("".join([json.dumps(begun) + "\n", *rest]), "utf-8")

    return change


def planted(name: str) -> Change:
    """The log and what processes print are the files that are not replaced but gone on with."""

    def change(run: Path) -> None:
        outside, place = run.parent / "outside", run / name
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            place.rename(outside)
        else:
            outside.touch()
        place.symlink_to(outside, target_is_directory=outside.is_dir())

    return change


CELLS = str(ROOT / "configs")
REFUSED: dict[str, tuple[Change, tuple[str, ...], str]] = {
    "other tokens": (str, ("--max-new-tokens", "7"), "workload.max_new_tokens"),
    "other blocks": (str, ("--set", "cache.block_size=8"), "cache.block_size"),
    "elsewhere": (str, ("--out", "elsewhere"), "--resume"),
    "version": (begun_with("version", "0.0.1"), (), "version was 0.0.1"),
    "format": (
        begun_with("schema_version", SCHEMA_VERSION - 1), (),
        f"schema_version was {SCHEMA_VERSION - 1}",
    ),
    **{f"link at {name}": (planted(name), (), f"{name}: a symbolic link")
       for name in (EVENTS_FILE, "logs", "logs/2/environment.log")},
}  # fmt: skip
# What a record names is named again or not used.
NAMED = {
    "workload.prompts_file": ("--prompts", str(ROOT / "pyproject.toml")),
    "model.name": ("--model", CELLS),
    "model.name of the hub": ("--model", "nobody/of-this-name"),
    "experiment.options.models": ("--set", [CELLS]),
    "experiment.options.trace": ("--set", str(ROOT / "pyproject.toml")),
}
REFUSED |= {
    name: (begun_with(f"config.{name.partition(' ')[0]}", value), (), f"add {option} ")
    for name, (option, value) in NAMED.items()
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_go_on_is_refused_by_name_and_stays_as_it_was(
    name: str, run: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    change, words, told = REFUSED[name]
    change(run)
    before = content(tmp_path)
    assert told in refused("--resume", run, *words)
    assert content(tmp_path) == before
    if name in NAMED:
        again = {name.partition(" ")[0]: NAMED[name][1]}
        assert (None, SECOND) in read_resumption(run, None, again).missing


@full
def test_another_model_is_refused_and_the_run_stays_as_it_was(run: Path, start: Starter) -> None:
    """Though the config that it was begun with is given again."""
    before = content(run)
    words = ("--arms", ",".join(ARMS), "--resume", str(run))
    code, _, err = start(*words, model={"weights_sha256": "cd" * 32}, out=run).end()
    assert (code, len(err.splitlines())) == (ExitCode.USAGE, 1)
    assert "weights_sha256 was abababababab, now cdcdcdcdcdcd" in err
    assert content(run) == before


def test_a_changed_log_is_not_gone_on_with(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["render", str(run), "--lang", "en"]) == ExitCode.OK
    with (run / EVENTS_FILE).open("ab") as file:
        file.write(b"\n")
    capsys.readouterr()
    assert cli.main(["--resume", str(run), "--lang", "en"]) == ExitCode.CHANGED
    assert EVENTS_FILE in capsys.readouterr().err


def test_a_run_that_is_being_written_is_left_alone(run: Path, refused: Callable[..., str]) -> None:
    with (run / EVENTS_FILE).open("r+b") as file:
        assert lock(file)
        assert fixed("error.run_in_use") in refused("--resume", run)


def test_whatever_figures_depend_on_is_refused_by_name(run: Path) -> None:
    """Of the machine, of the model, and of the requests."""
    found = read_resumption(run, None, {})
    model, workload = found.record.first(ModelPrepared), found.record.first(WorkloadReady)
    probed = found.record.first(EnvironmentProbed)
    assert probed
    assert model
    assert workload
    here = Environment.model_validate(probed.environment)
    found.check_machine(here)
    found.check_prepared(model, workload)

    def told(ask: Callable[..., None], *given: object) -> tuple[str, str]:
        with pytest.raises(UserError) as caught:
            ask(*given)
        return caught.value.text.key.rpartition(".")[2], caught.value.text.params["what"]

    for name, other in {
        "architecture": "llama", "parameters": 2, "dtype": "float16", "device": "cuda",
        "eos_token_id": 7, "config_sha256": "ab" * 32, "weights_sha256": "cd" * 32,
    }.items():  # fmt: skip
        changed = model.model_copy(update={name: other})
        assert told(found.check_prepared, changed, workload) == ("model", name)
    first, *rest = workload.requests
    fewer_new = first.model_copy(update={"max_new_tokens": first.max_new_tokens - 1})
    for name, value in {
        "requests": [fewer_new, *rest], "max_length": 3, "budget_bytes": 17,
        "sampling": workload.sampling.model_copy(update={"seed": 9}),
    }.items():  # fmt: skip
        asked = workload.model_copy(update={name: value})
        assert told(found.check_prepared, model, asked) == ("requests", name)
    for name, (section, key) in {
        "cpu": ("cpu", "model"), "cores": ("cpu", "usable_cores"),
        "architecture": ("system", "machine"), "python": ("python", "version"),
        "torch": ("torch", "version"), "transformers": ("transformers", "version"),
    }.items():  # fmt: skip
        data = here.model_dump(mode="json")
        data[section][key] = 99.0 if name == "cores" else "another"
        assert told(found.check_machine, Environment.model_validate(data)) == ("machine", name)
    elsewhere = here.model_copy(update={"device_name": "another"})
    assert told(found.check_machine, elsewhere) == ("machine", "device")


def test_a_path_in_a_prompt_does_not_make_it_another_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log holds it without the home and without names."""
    monkeypatch.setenv("HOME", "/home/zoe")
    found = read_resumption(run, None, {})
    model, workload = found.record.first(ModelPrepared), found.record.first(WorkloadReady)
    assert model
    assert workload

    def asks(prompt: str) -> WorkloadReady:
        first, *rest = workload.requests
        requests = [first.model_copy(update={"prompt": prompt}), *rest]
        return workload.model_copy(update={"requests": requests})

    logged = [asks("What is in ~/x?") if e is workload else e for e in found.record.events]
    again = replace(found, record=replace(found.record, events=tuple(logged)))
    again.check_prepared(model, asks("What is in /home/zoe/x?"))
    with pytest.raises(UserError) as caught:
        again.check_prepared(model, asks("What is in /home/zoe/y?"))
    assert caught.value.text.params["what"] == "requests"


def test_links_that_a_killed_run_left_are_made_anew(tmp_path: Path) -> None:
    """Another interpreter imports from them, so where they lead is not left to who made them."""
    packages = tmp_path / "logs" / PACKAGES
    packages.mkdir(parents=True)
    (packages / "kvsim").symlink_to(tmp_path)
    made = OwnPackages(tmp_path / "logs")
    assert (packages / "kvsim").resolve() == ROOT / "kvsim"
    assert sorted(path.name for path in packages.iterdir()) == ["experiment", "kvsim"]
    made.remove()
    assert not packages.exists()


# An experiment that was killed in the middle goes on with the arms and cells that are missing.

COMPARED = ("slabs", "paged")
# Of the first cell one arm has ended when it is killed; the second cell was never begun.
VALUES = [2, 12]
SMALL: dict[str, Any] = {
    "experiment.values": VALUES, "experiment.repeats": 1, "cache.max_length": 64,
    "experiment.options.lengths": [[5, 4], [9, 5]], "cache.block_size": 4,
    "cache.budget": 2 * 64 * 1024, "run.threads": 1, "run.device": "cpu", "model.offline": True,
    "run.arms": list(COMPARED), "experiment.turns": False,
}  # fmt: skip
ALL = [(cell, arm) for cell in range(len(VALUES)) for arm in COMPARED]
SETTINGS = [
    word for key, value in SMALL.items() for word in ("--set", f"{key}={json.dumps(value)}")
]


def begun_in(run: Path) -> ArmKey:
    """The arm that was begun last, with its cell."""
    starts = ((cell, e.arm) for cell, e in read_record(run).by_cell() if isinstance(e, ArmStarted))
    return next(reversed(list(starts)), (None, ""))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    """Killed in the first cell's second arm, and resumed, with arms that take no seconds."""
    place = tmp_path_factory.mktemp("experiment")
    start, out = Starter(place, environment.model_dump(mode="json")), place / "out"
    config = str(ROOT / "configs" / "capacity.toml")
    words = ("run", "--config", config, "--quick", *SETTINGS, "--yes", "--out", str(out))
    program = start(*words, pause_s=0.2, out=out)
    program.wait_for(lambda events: bool(events) and begun_in(out) == (0, COMPARED[1]))
    program.process.send_signal(signal.SIGKILL)
    program.end()
    assert finished_arms(read_record(out)) == {(0, COMPARED[0])}
    code, printed, _ = start("--resume", str(out), "--yes", out=out).end()
    assert code in (ExitCode.OK, ExitCode.INCOMPLETE)  # they do not run what the cells ask for
    assert f"arms left: {len(ALL) - 1}" in " ".join(printed.split())
    return out


def test_what_had_ended_is_not_run_again_and_the_rest_is(experiment: Path) -> None:
    begun = Counter(key for key in attempts(experiment) if key in ALL)
    assert begun == {key: 2 if key == (0, COMPARED[1]) else 1 for key in ALL}
    record = read_record(experiment)
    (resumed,) = record.of(RunResumed)
    assert [tuple(key) for key in resumed.missing] == ALL[1:]
    assert finished_arms(record) == set(ALL)
    assert [event.index for event in record.of(CellStarted)] == [0, 1]
    assert fixed("note.resumed") in (experiment / "report.html").read_text(encoding="utf-8")


def skipped(out: Path, why: Message) -> list[Event]:
    """The log of a whole run, but for an arm that is said to have been skipped in its last cell."""
    kept: list[Event] = []
    for cell, event in read_record(out).by_cell():
        if (cell, getattr(event, "arm", None)) != (1, "slabs"):
            kept.append(event)
        elif isinstance(event, ArmStarted):
            kept.append(ArmSkipped(arm=event.arm, reason=why))
    return kept


@pytest.mark.parametrize(
    ("why", "vllm", "missing"),
    [
        (message("experiments.serving.saturated", rate=2), True, ()),
        (message("skip.no_stops"), True, ()),
        (message("vllm.missing"), False, ()),
        (message("vllm.missing"), True, ((1, "slabs"),)),
    ],
)
def test_what_was_left_out_is_left_to_run_only_where_it_can_run_now(
    experiment: Path, why: Message, vllm: bool, missing: tuple[ArmKey, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    text = "".join(encode(event) + "\n" for event in skipped(experiment, why))
    (tmp_path / EVENTS_FILE).write_text(text, encoding="utf-8")
    there = "python" if vllm else message("vllm.missing")
    monkeypatch.setattr("experiment.measure.resume.find_vllm", lambda device: there)
    found = read_resumption(tmp_path, None, {})
    assert found.missing == missing
    assert found.complete is (not missing)
