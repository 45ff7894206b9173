"""A run that broke off goes on with what is missing, or says in one line why it cannot."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from programs import ARMS, Starter, arm_steps
from texts import fixed

from experiment.analysis.conclusions import evaluate
from experiment.commands import main as cli
from experiment.events import (
    SCHEMA_VERSION,
    EnvironmentProbed,
    ModelPrepared,
    RunFinished,
    RunResumed,
    WorkloadReady,
)
from experiment.files.locks import lock
from experiment.files.scratch import PACKAGES, OwnPackages
from experiment.machine.environment import Environment
from experiment.measure.resume import read_resumption
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import ExitCode, UserError

ROOT = Path(__file__).parent.parent.parent
FIRST, SECOND = ARMS


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    """A run whose program was killed in its second arm, with a line half written."""
    place = tmp_path_factory.mktemp("broken")
    program = Starter(place, environment.model_dump(mode="json"))(pause_s=0.2)
    program.wait_for(arm_steps(SECOND))
    program.process.send_signal(signal.SIGKILL)
    program.end()
    with (program.out / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.write('{"t_ns":17,"event":"rea')
    return program.out


@pytest.fixture
def run(broken: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(broken, tmp_path / "run"))


def content(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file()}


def in_log(run: Path, event: str) -> list[dict[str, object]]:
    """Events of a type as they stand in the log, every attempt of every arm."""
    lines = (run / EVENTS_FILE).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if f'"event":"{event}"' in line]


def test_the_missing_arm_is_run_and_the_other_one_is_not(
    run: Path, start: Starter, tmp_path: Path
) -> None:
    before = (run / EVENTS_FILE).read_bytes()
    code, printed, err = start("--resume", str(run), "--yes", out=run).end()
    assert (code, err) == (ExitCode.OK, "")
    assert "arms left: 1" in " ".join(printed.split())
    assert (run / EVENTS_FILE).read_bytes().startswith(before + b"\n")  # nothing measured is lost
    assert [e["arm"] for e in in_log(run, "arm_started")] == [FIRST, SECOND, SECOND]
    record = read_record(run)
    results = evaluate(record)
    assert [(arm.arm, arm.status) for arm in results.arms] == [(a, "finished") for a in ARMS]
    assert [one.equal for one in results.tokens] == [True]
    assert not [problem for arm in results.arms for problem in arm.problems]
    (resumed,) = record.of(RunResumed)
    assert resumed.missing == [(None, SECOND)]
    assert {"note.resumed", "note.damaged_lines"} <= {note.key for note in results.notes}
    page = (run / "report.html").read_text(encoding="utf-8")
    assert fixed("note.resumed") in page
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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--max-new-tokens", "7"), "workload.max_new_tokens"),
        (("--set", "cache.block_size=8"), "cache.block_size"),
        (("--out", "elsewhere"), fixed("error.resume.out")),
    ],
)
def test_another_config_is_refused_by_name(
    run: Path, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(run)
    assert cli.main(["--resume", str(run), "--lang", "en", *words]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert content(run) == before


@pytest.mark.parametrize(
    ("key", "option", "name"),
    [
        ("workload.prompts_file", "--prompts", "prompts.jsonl"),
        ("model.name", "--model", "model"),
        ("model.name", "--model", "nobody/of-this-name"),
        ("experiment.options.models", "--set", "model"),
        ("experiment.options.trace", "--set", "trace.csv"),
    ],
)
def test_what_a_record_names_is_named_again_or_not_used(
    key: str, option: str, name: str, run: Path, start: Starter, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of a log that somebody else wrote, and from which checksums were left out."""
    named = Path(name) if "/" in name else tmp_path / name
    if "/" in name:  # a model of the hub
        pass
    elif name == "model":
        named.mkdir()
    else:
        named.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n", encoding="utf-8")
        named.chmod(0o755)
    first, *rest = (run / EVENTS_FILE).read_text(encoding="utf-8").splitlines(keepends=True)
    begun = json.loads(first)
    begun["config"]["model"]["offline"] = False
    *parents, last = key.split(".")
    table = begun["config"]
    for parent in parents:
        table = table.setdefault(parent, {})
    table[last] = [str(named)] if last == "models" else str(named)
    (run / EVENTS_FILE).write_text("".join([json.dumps(begun) + "\n", *rest]), encoding="utf-8")
    before = content(run)
    assert cli.main(["--resume", str(run), "--lang", "en"]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert f"add {option} " in line
    assert content(run) == before
    assert not (tmp_path / "ran").exists()
    again = {key: str(named)}
    assert (None, SECOND) in read_resumption(run, None, again).missing


def test_another_model_is_refused_and_the_run_stays_as_it_was(run: Path, start: Starter) -> None:
    """Though the config that it was begun with is given again."""
    before = content(run)
    words = ("--arms", ",".join(ARMS), "--resume", str(run))
    code, _, err = start(*words, model={"weights_sha256": "cd" * 32}, out=run).end()
    assert code == ExitCode.USAGE
    (line,) = err.splitlines()
    assert "weights_sha256 was abababababab, now cdcdcdcdcdcd" in line
    assert content(run) == before


def test_a_changed_log_is_not_gone_on_with(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["render", str(run), "--lang", "en"]) == ExitCode.OK
    with (run / EVENTS_FILE).open("ab") as file:
        file.write(b"\n")
    capsys.readouterr()
    assert cli.main(["--resume", str(run), "--lang", "en"]) == ExitCode.CHANGED
    assert EVENTS_FILE in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"version": "0.0.1"}, "version 0.0.1"),
        ({"schema_version": SCHEMA_VERSION - 1}, f"format {SCHEMA_VERSION - 1}"),
    ],
)
def test_another_version_or_format_is_refused(
    changes: dict[str, object], told: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (run / EVENTS_FILE).read_text(encoding="utf-8")
    head, _, rest = text.partition("\n")
    started = {**json.loads(head), **changes}
    (run / EVENTS_FILE).write_text(json.dumps(started) + "\n" + rest, encoding="utf-8")
    assert cli.main(["--resume", str(run), "--lang", "en"]) == ExitCode.USAGE
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("what", ["nothing", "an empty directory", "a simulation"])
def test_what_is_no_run_is_refused(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    if what != "nothing":
        place.mkdir()
    if what == "a simulation":
        (place / "sim.json").write_text("{}", encoding="utf-8")
    assert cli.main(["--resume", str(place), "--lang", "en"]) == ExitCode.USAGE
    assert fixed("error.no_record") in capsys.readouterr().err


def test_a_run_that_is_being_written_is_left_alone(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run / EVENTS_FILE).open("r+b") as file:
        assert lock(file)
        assert cli.main(["--resume", str(run), "--lang", "en"]) == ExitCode.USAGE
    assert fixed("error.run_in_use") in capsys.readouterr().err


def refusal(ask: Callable[..., None], *given: object) -> dict[str, Any]:
    with pytest.raises(UserError) as caught:
        ask(*given)
    return {"key": caught.value.text.key, **caught.value.text.params}


def test_whatever_a_model_or_its_requests_differ_in_is_refused_by_name(run: Path) -> None:
    found = read_resumption(run, None, {})
    model, workload = found.record.first(ModelPrepared), found.record.first(WorkloadReady)
    assert model
    assert workload
    found.check_prepared(model, workload)
    for name, other in {
        "architecture": "llama", "parameters": 2, "dtype": "float16", "device": "cuda",
        "eos_token_id": 7, "config_sha256": "ab" * 32, "weights_sha256": "cd" * 32,
    }.items():  # fmt: skip
        told = refusal(found.check_prepared, model.model_copy(update={name: other}), workload)
        assert (told["key"], told["what"]) == ("error.resume.model", name)
    first, *rest = workload.requests
    fewer_new = first.model_copy(update={"max_new_tokens": first.max_new_tokens - 1})
    for name, value in {
        "requests": [fewer_new, *rest], "max_length": 3, "budget_bytes": 17,
        "sampling": workload.sampling.model_copy(update={"seed": 9}),
    }.items():  # fmt: skip
        told = refusal(found.check_prepared, model, workload.model_copy(update={name: value}))
        assert (told["key"], told["what"]) == ("error.resume.requests", name)


def test_whatever_a_machine_differs_in_is_refused_by_name(run: Path) -> None:
    found = read_resumption(run, None, {})
    probed = found.record.first(EnvironmentProbed)
    assert probed
    here = Environment.model_validate(probed.environment)
    found.check_machine(here)
    for place, name in {
        "device": ("device_name",), "cpu": ("cpu", "model"), "cores": ("cpu", "usable_cores"),
        "architecture": ("system", "machine"), "python": ("python", "version"),
        "torch": ("torch", "version"), "transformers": ("transformers", "version"),
    }.items():  # fmt: skip
        data = here.model_dump(mode="json")
        inner = data
        for step in name[:-1]:
            inner = inner[step]
        inner[name[-1]] = 99.0 if place == "cores" else "another"
        told = refusal(found.check_machine, Environment.model_validate(data))
        assert (told["key"], told["what"]) == ("error.resume.machine", place)


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
    told = refusal(again.check_prepared, model, asks("What is in /home/zoe/y?"))
    assert told["what"] == "requests"


@pytest.mark.parametrize("name", [EVENTS_FILE, "logs", "logs/2/environment.log"])
def test_nothing_is_appended_where_a_planted_link_leads(
    run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log and what processes print are the files that are not replaced but gone on with."""
    outside, planted = tmp_path / "outside", run / name
    planted.parent.mkdir(exist_ok=True)
    if planted.exists():
        planted.rename(outside)
    elif planted.suffix:
        outside.write_text("kept", encoding="utf-8")
    else:
        outside.mkdir()
    planted.symlink_to(outside, target_is_directory=outside.is_dir())
    before = content(tmp_path)
    assert cli.main(["--resume", str(run), "--lang", "en"]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert str(planted) in line
    assert "symbolic link" in line
    assert content(tmp_path) == before


def test_links_that_a_killed_run_left_are_made_anew(
    run: Path, start: Starter, tmp_path: Path
) -> None:
    """Another interpreter imports from them, so where they lead is not left to who made them."""
    evil = tmp_path / "evil"
    evil.mkdir()
    packages = run / "logs" / PACKAGES
    packages.mkdir()
    (packages / "kvsim").symlink_to(evil)
    made = OwnPackages(run / "logs")
    assert (packages / "kvsim").resolve() == ROOT / "kvsim"
    assert sorted(path.name for path in packages.iterdir()) == ["experiment", "kvsim"]
    code, _, err = start("--resume", str(run), "--yes", out=run).end()
    assert (code, err) == (ExitCode.OK, "")
    made.remove()
    assert not packages.exists()
