"""The claims: judged by what an experiment found, and by nothing else."""

from __future__ import annotations

import argparse
import json
from html import unescape
from pathlib import Path
from shutil import copytree

import pytest
from in_process import Ran, run, tiny_config

from experiment.commands.claims import _judge_all, _write
from experiment.config.schema import Config
from experiment.experiments.claim_runs import (
    Reader,
    find_place,
    read_found,
)
from experiment.experiments.claims import CLAIMS, judge, needed
from experiment.experiments.registry import EXPERIMENTS
from experiment.record.log import EVENTS_FILE, RUN_FILE
from experiment.report.console.claims import ClaimsConsole
from experiment.text import Translator
from experiment.text.messages import message

SLOT = 1024


def test_every_claim_has_an_experiment_that_there_is() -> None:
    assert set(needed()) <= set(EXPERIMENTS)
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


@pytest.fixture(autouse=True)
def same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the version that ran them were this one."""
    monkeypatch.setattr("experiment.experiments.claim_runs.__version__", "test")


@pytest.fixture(scope="module")
def capacity(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    config = tiny_config(
        "capacity",
        experiment__values=[2, 12],
        experiment__options={"lengths": [[5, 4], [9, 5]]},
        cache__max_length=64,
        cache__block_size=4,
        cache__budget=2 * 64 * SLOT,
        run__arms=["contiguous.growing", "slabs", "paged"],
    )
    return run(config, tmp_path_factory.mktemp("claims") / "capacity")


def test_claims_of_a_real_capacity_run(capacity: Ran, tmp_path: Path) -> None:
    places = {"capacity": capacity.record.directory, "context": tmp_path / "context"}
    found, unsound = read_found(places, Reader())
    assert not unsound
    judged = {one.claim.name: one for one in judge(found)}
    values = {name: one.seen.value for name, one in judged.items() if one.seen is not None}
    few, many = capacity.result.cells
    means = [capacity.figure(many, arm, "running_mean").value or 0 for arm in ("paged", "slabs")]
    assert values["at_once"] == means[0] / means[1] > 3
    assert judged["at_once"].verdict == "shown"
    slabs, paged = (capacity.figure(few, arm, "waste").value or 0 for arm in ("slabs", "paged"))
    assert values["saved"] == pytest.approx(1 - (1 - slabs) / (1 - paged))
    assert judged["saved"].verdict == "shown"
    assert judged["wasted"].verdict == "shown"
    # Two slabs of 64; requests of 8 and 13 slots at their ends.
    long = message("claims.why.lengths", slots=64, mean=10.5)
    assert [judged[name].reason for name in ("at_once", "saved", "wasted")] == [long] * 3
    assert judged["used"].verdict == "not_shown"  # blocks of 4 for requests of 8 and 13 slots
    growing, reserved, blocks = judged["steadier"].seen.parts  # type: ignore[union-attr]
    assert growing.value > 0.5
    assert reserved.value == blocks.value == 0
    # Either is reserved at the beginning: what differs from the growing cache is not paging's.
    assert judged["steadier"].verdict == "not_shown"
    assert judged["steadier"].reason == message("claims.why.reserved")
    others = {name for name, one in judged.items() if one.verdict == "untested"}
    assert others == set(judged) - {"at_once", "saved", "wasted", "used", "steadier"}
    found, notes = list(judged.values()), [message("claims.quick")]
    data, page = _write(tmp_path, found, places, notes, Translator("en"))
    rows = json.loads(data.read_text(encoding="utf-8"))["claims"]
    assert [row["claim"] for row in rows] == [claim.name for claim in CLAIMS]
    beams = next(row for row in rows if row["claim"] == "beams")
    assert beams["value"] is None
    assert beams["reason"]["key"] == "claims.why.not_run"
    # Units are not broken off, words are told as they are.
    shown = unescape(page.read_text(encoding="utf-8")).replace("\u00a0", " ")
    t = Translator("en")
    assert all(t(f"claims.{claim.name}") in shown for claim in CLAIMS)


def cut(run_directory: Path, out: Path, kind: str) -> Path:
    """The run once more, as if it had ended otherwise."""
    copytree(run_directory, out)
    log = out / EVENTS_FILE
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    if kind == "interrupted":
        lines[-1]["status"] = "interrupted"
    elif kind == "killed":
        del lines[-1]
    elif kind == "version":
        lines[0]["version"] = "0.0.1"
    elif kind == "format":
        lines[0]["schema_version"] -= 1
    elif kind == "contradicted":
        last = max(i for i, e in enumerate(lines) if e["event"] == "request")
        lines[last]["tokens"] = [*lines[last]["tokens"][:-1], 7]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return out


def placed(config: Config, directory: Path) -> tuple[str, bool, list[str]]:
    """Where a run of capacity is found or put, whether it is used, and why others are not."""
    place, there, unused = find_place(directory, "capacity", config, Reader())
    whys = [
        f"{why.key.rpartition('.')[2]} {why.params.get('detail', '')}" for why in unused.values()
    ]
    return place.name, there, [why.strip() for why in whys]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("interrupted", "broken_off"),
        ("killed", "broken_off"),
        ("contradicted", "contradicts"),
        ("version", "version"),
        ("format", "format"),
    ],
)
def test_a_run_that_cannot_be_believed_is_run_again_beside_it(
    capacity: Ran, tmp_path: Path, kind: str, key: str
) -> None:
    path = cut(capacity.record.directory, tmp_path / "capacity", kind)
    assert placed(capacity.config, tmp_path) == ("capacity-2", False, [key])
    found, unsound = read_found({"capacity": path}, Reader())
    assert not found
    assert {judged.reason.key for judged in judge(found, unsound)  # type: ignore[union-attr]
            if judged.claim.experiment == "capacity"} == {f"claims.why.{key}"}  # fmt: skip


def test_a_run_in_another_size_is_not_used_and_the_same_one_is(
    capacity: Ran, tmp_path: Path
) -> None:
    cut(capacity.record.directory, tmp_path / "capacity", "as it is")
    assert placed(capacity.config, tmp_path) == ("capacity", True, [])
    experiment = capacity.config.experiment.model_copy(update={"size": "full"})
    other = capacity.config.model_copy(update={"experiment": experiment})
    assert placed(other, tmp_path) == ("capacity-2", False, ["settings"])
    (tmp_path / "capacity-2").mkdir()
    assert placed(other, tmp_path) == ("capacity-2", False, ["settings"])


@pytest.mark.parametrize("planted", ["", EVENTS_FILE, RUN_FILE])
@pytest.mark.parametrize("there", ["a whole run", "an empty place"])
def test_nothing_is_read_or_run_where_a_link_leads(
    capacity: Ran, tmp_path: Path, planted: str, there: str
) -> None:
    """A link in place of the directory, of its log or of its summary."""
    outside, out = tmp_path / "outside", tmp_path / "out"
    if there == "a whole run":
        cut(capacity.record.directory, outside, "as it is")
    else:
        outside.mkdir()
    path = out / "capacity" / planted
    path.parent.mkdir(parents=True)
    path.symlink_to(outside / planted)
    assert placed(capacity.config, out) == ("capacity-2", False, ["link"])


def test_a_file_where_a_run_would_lie_is_left_alone(capacity: Ran, tmp_path: Path) -> None:
    (tmp_path / "capacity").write_text("kept", encoding="utf-8")
    assert placed(capacity.config, tmp_path) == ("capacity-2", False, ["no_run"])


@pytest.mark.parametrize(
    ("event", "changes", "said"),
    [
        ("repeat", {"repeat": -3}, "IndexError"),
        ("workload", {"requests": []}, "ValueError"),
        ("cell", {"values": {}}, "StopIteration"),
        ("run_started", {"config": {}}, "unknown"),
    ],
)
def test_a_log_that_does_not_fit_together_costs_its_own_claims_alone(
    capacity: Ran, tmp_path: Path, event: str, changes: dict[str, object], said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    path = cut(capacity.record.directory, tmp_path / "capacity", "as it is")
    log = path / EVENTS_FILE
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    told = [line | changes if line["event"] == event else line for line in lines]
    assert told != lines
    log.write_text("".join(json.dumps(line) + "\n" for line in told), encoding="utf-8")
    name, used, (why,) = placed(capacity.config, tmp_path)
    assert (name, used, said in why) == ("capacity-2", False, True)
    places = {"context": path, "capacity": capacity.record.directory}
    found, unsound = read_found(places, Reader())
    assert (list(found), list(unsound)) == (["capacity"], ["context"])
    assert str(tmp_path) not in str(unsound)  # this is written into claims.json


@pytest.mark.parametrize(
    ("codes", "code", "ran"),
    [
        ((0, 0, 0), 0, 3),
        ((2, 0, 0), 2, 3),
        ((3, 2, 0), 3, 3),
        ((2, 3, 2), 3, 3),
        ((3, 5, 2), 5, 3),
        ((3, 130, 0), 130, 2),  # whoever interrupts it is done
    ],
)
def test_the_gravest_failure_is_the_one_that_is_told(
    codes: tuple[int, ...], code: int, ran: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Path] = []

    def ended(_: object, place: Path, *__: object) -> int:
        places.append(place)
        return codes[len(places) - 1]

    monkeypatch.setattr("experiment.commands.claims._run", ended)
    configs = {name: tiny_config(name) for name in needed()[: len(codes)]}
    console = ClaimsConsole("en", ascii_only=False)
    assert _judge_all(configs, tmp_path, argparse.Namespace(yes=True), console) == code
    assert len(places) == ran
    assert (tmp_path / "claims.json").exists() == (ran == len(codes))


def test_a_run_that_it_has_just_made_is_judged_whatever_reading_takes(
    capacity: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(_: object, place: Path, *__: object) -> int:
        cut(capacity.record.directory, place, "as it is")
        monkeypatch.setattr("experiment.files.parse_memory._CHECK_BYTES", 1)
        monkeypatch.setenv("PAGEDKV_MEMORY", "1B")
        return 0

    monkeypatch.setattr("experiment.commands.claims._run", ended)
    console, configs = ClaimsConsole("en", ascii_only=False), {"capacity": capacity.config}
    assert _judge_all(configs, tmp_path, argparse.Namespace(yes=True), console) == 0
    rows = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))["claims"]
    told = {row["claim"]: row["verdict"] for row in rows}
    assert told["at_once"] == told["saved"] == "shown"
