"""Limits: what holds, what does not, and what services read of it; nothing unknown ever passes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from compare_runs import events, figure, side, write

from experiment.commands import walkthrough
from experiment.commands.checks import gate_code
from experiment.commands.main import main
from experiment.compare.facts import read_side
from experiment.compare.gate import GateResult, judge, read_gate
from experiment.compare.results import Side
from experiment.events import encode
from experiment.experiments.figures import FIGURES
from experiment.record.log import EVENTS_FILE
from experiment.report.files.ci_benchmark import benchmark_json
from experiment.text.errors import ExitCode, UserError

STEPS = "steps"


def gate(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gate.toml"
    path.write_text(f"[limits]\n{text}\n", encoding="utf-8")
    return path


def judged(tmp_path: Path, text: str, run: Side, baseline: Side | None = None) -> list[GateResult]:
    return judge(read_gate(gate(tmp_path, text)), run, baseline)


def counted(value: float | None, **changes: object) -> Side:
    values = () if value is None else (value,)
    return side(figure(STEPS, *values, kind="count", unit="count"), **changes)


NO_END = {"status": "incomplete"}
TEN = counted(10)
JUDGED: list[tuple[str, Side, Side | None, str, str | None]] = [
    ("max = 10", TEN, None, "passed", None),
    ("max = 9", TEN, None, "failed", None),
    ("min = 10", TEN, None, "passed", None),
    ("min = 11", TEN, None, "failed", None),
    ("equal = 10", TEN, None, "passed", None),
    ("equal = 11", TEN, None, "failed", None),
    ("equal = 9", TEN, None, "failed", None),
    ("min = 9, max = 11", TEN, None, "passed", None),
    ("min = 9, max = 9.5", TEN, None, "failed", None),
    *((limit, counted(value), counted(20), "passed" if holds else "failed", None)
      for limit, value, holds in (
          ('max = "baseline"', 20, True), ('max = "baseline"', 21, False),
          ('max = "baseline + 5 %"', 21, True), ('max = "baseline+5%"', 22, False),
          ('min = "baseline - 2"', 18, True), ('min = "baseline - 2"', 17, False),
          ('min = "baseline - 10 %"', 18, True), ('min = "baseline - 10 %"', 17, False),
          ('equal = "baseline"', 20, True), ('equal = "baseline"', 19, False),
      )),
    # What is unknown does not pass.
    ('max = "baseline"', TEN, None, "unknown", "no_baseline"),
    ('max = "baseline"', TEN, side(), "unknown", "not_in_baseline"),
    ('max = "baseline"', TEN, counted(10, requests={"": "other"}), "unknown", "requests"),
    ('max = "baseline"', counted(None), TEN, "unknown", "not_had"),
    # Nothing passes by a run that is not whole.
    ("max = 10", counted(10, **NO_END), TEN, "unknown", "not_whole"),
    ("max = 10", counted(10, damaged_lines=1), TEN, "unknown", "not_whole"),
    ("max = 9", counted(10, **NO_END), TEN, "failed", None),
    ('max = "baseline"', TEN, counted(10, **NO_END), "unknown", "not_whole"),
    ("max = 10", TEN, counted(10, **NO_END), "passed", None),
    ("max = 10", TEN, TEN, "passed", None),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "run", "before", "verdict", "reason"), JUDGED)
def test_a_limit_is_a_number_or_stands_on_the_baseline(
    tmp_path: Path, limit: str, run: Side, before: Side | None, verdict: str, reason: str | None
) -> None:
    found = judged(tmp_path, f'"a/steps" = {{ {limit} }}', run, before)
    worst = max(found, key=lambda one: ("passed", "failed", "unknown").index(one.verdict))
    key = worst.reason.key.rpartition(".")[2] if worst.reason else None
    assert (worst.verdict, key) == (verdict, reason)
    assert gate_code(found) == (ExitCode.OK if verdict == "passed" else ExitCode.GATE)


def test_a_figure_that_is_not_there_fails_and_the_nearest_is_named(tmp_path: Path) -> None:
    (found,) = judged(tmp_path, '"b/steps" = { max = 99 }', counted(1))
    assert found.verdict == "unknown"
    assert found.reason is not None
    assert found.reason.params == {"near": "a/steps"}
    assert gate_code([found]) == ExitCode.GATE


def test_a_star_stands_for_every_arm_and_all_must_hold(tmp_path: Path) -> None:
    both = side(
        figure(STEPS, 1, kind="count"),
        figure(STEPS, 5, kind="count", id="b/steps", arm="b"),
        figure(STEPS, kind="count", id="c/steps", arm="c"),
    )
    found = judged(tmp_path, '"*/steps" = { max = 4 }', both)
    assert [(one.id, one.verdict) for one in found] == [
        ("a/steps", "passed"), ("b/steps", "failed"), ("c/steps", "unknown"),
    ]  # fmt: skip


def test_an_arm_of_the_baseline_that_did_not_run_is_noticed_by_a_star(tmp_path: Path) -> None:
    before = side(figure(STEPS, 1, kind="count", id="b/steps", arm="b"))
    found = judged(tmp_path, '"*/steps" = { max = 4 }', counted(1), before)
    assert [(one.id, one.verdict) for one in found] == [
        ("a/steps", "passed"),
        ("b/steps", "unknown"),
    ]


def test_a_star_does_not_reach_into_cells(tmp_path: Path) -> None:
    cell = figure(STEPS, 1, kind="count", id="capacity/requests=8/a/steps")
    (found,) = judged(tmp_path, '"*/steps" = { max = 4 }', side(cell))
    assert found.verdict == "unknown"
    (found,) = judged(tmp_path, '"capacity/*/a/steps" = { max = 4 }', side(cell))
    assert found.verdict == "passed"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "error.gate.no_limits"),
        ('"paged/generate_s" = { max = 1 }', "error.gate.time"),
        ('"capacity/requests=8/paged/tokens_per_s" = { min = 1 }', "error.gate.time"),
        ('"paged/process_peak" = { max = 1 }', "error.gate.measured"),
        ('"paged/wasted_slot" = { max = 1 }', "error.unknown_near"),
        ('"paged/xyzzy" = { max = 1 }', "error.unknown"),
        ('"steps" = { max = 1 }', "error.compare.id"),
        ('"a/b/steps" = { max = 1 }', "error.compare.id"),
        ('"paged/steps" = 5', "error.gate.no_table"),
        ('"paged/steps" = {}', "error.gate.no_table"),
        ('"paged/steps" = { maxx = 5 }', "error.unknown_near"),
        ('"paged/steps" = { max = nan }', "error.gate.value"),
        ('"paged/steps" = { max = inf }', "error.gate.value"),
        ('"paged/steps" = { max = true }', "error.gate.value"),
        ('"paged/steps" = { max = 1%s }' % ("0" * 400), "error.gate.value"),
        ('"paged/steps" = { max = "baseline + 1%s" }' % ("0" * 400), "error.gate.value"),
        ('"paged/steps" = { max = "many" }', "error.gate.value"),
        ('"paged/steps" = { max = "baseline * 2" }', "error.gate.value"),
    ],
)
def test_a_gate_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(UserError) as caught:
        read_gate(gate(tmp_path, text))
    assert caught.value.text.key == key
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_gate_has_few_limits_with_short_names(tmp_path: Path) -> None:
    many = "\n".join(f'"a{n}/steps" = {{ max = 1 }}' for n in range(201))
    for text, limit in ((many, 200), (f'"{"*a" * 151}/steps" = {{ max = 1 }}', 300)):
        with pytest.raises(UserError) as caught:
            read_gate(gate(tmp_path, text))
        assert caught.value.text.params["limit"] == limit


def test_judging_a_run_of_thousands_of_figures_is_quick(tmp_path: Path) -> None:
    names = [f"{'x' * 50}{n:05}" for n in range(10_000)]
    many = [figure(STEPS, 1, id=f"{n}/{STEPS}", arm=n, kind="count", unit="count") for n in names]
    text = "\n".join(f'"{"x" * 50}y{n:04}*/steps" = {{ max = 1 }}' for n in range(200))
    limits, run = read_gate(gate(tmp_path, text)), side(*many)
    begun = time.process_time()
    found = judge(limits, run, None)
    assert time.process_time() - begun < 10
    assert {one.verdict for one in found} == {"unknown"}


@pytest.mark.parametrize(("most", "code"), [(8, ExitCode.OK), (1, ExitCode.GATE)])
def test_a_gate_is_judged_by_the_run_of_this_process_whatever_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, code: int
) -> None:
    """For a run of someone else there is a limit, which a log in full size may exceed."""
    out, gate = tmp_path / "out", tmp_path / "gate.toml"
    gate.write_text(f'[limits]\n"paged/blocks" = {{ max = {most} }}\n', encoding="utf-8")

    def measure(*_: object) -> int:
        text = "".join(encode(event) + "\n" for event in events())
        (out / EVENTS_FILE).write_text(text, encoding="utf-8")
        monkeypatch.setattr("experiment.files.parse_memory._CHECK_BYTES", 1)
        monkeypatch.setenv("PAGEDKV_MEMORY", "1B")
        return ExitCode.OK

    monkeypatch.setattr(walkthrough, "measure", measure)
    drawn = SimpleNamespace(experiment=None)
    monkeypatch.setattr(walkthrough, "render_ended", lambda *_: drawn)  # tested elsewhere
    words = ["--yes", "--model", "tiny-gpt2", "--gate", str(gate), "--out", str(out)]
    assert main([*words, "--lang", "en"]) == code


def test_benchmark_actions_see_memory_grow_and_units_that_can_be_read(tmp_path: Path) -> None:
    """What is handed out has no better direction in a comparison; who guards it wants it less."""
    figures = read_side(write(tmp_path / "run", events(4))).figures.values()
    less = {entry["name"]: entry for entry in json.loads(benchmark_json(figures, "less"))}
    more = {entry["name"]: entry for entry in json.loads(benchmark_json(figures, "more"))}
    memory = ("reserved_bytes", "allocated_bytes", "allocated_slots", "wasted_bytes")
    assert {f"paged/{name}" for name in memory} <= less.keys()
    units = {name: less[f"paged/{name}"]["unit"] for name in ("allocated_bytes", "steps")}
    assert units == {"allocated_bytes": "bytes", "steps": "count"}
    assert less["paged/generate_s"]["unit"] == "s"
    assert more["paged/tokens_per_s"]["unit"] == "tokens/s"
    assert more["paged/live_share"]["unit"] == "share of 1"


def test_blocks_and_tables_that_grow_raise_an_alert() -> None:
    """Of neither is less better in a comparison: both grow with the requests at a time."""
    names = ("held_slots", "unshared_slots", "table_entries")
    seen = [figure(name, 2.0, unit="mean", better=FIGURES[name].about.better) for name in names]
    listed = [entry["name"] for entry in json.loads(benchmark_json(seen, "less"))]
    assert listed == [each.id for each in seen]
