"""Baselines: what is kept of a run, and which files are taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compare_runs import events, figure, side, write

from experiment.compare.baseline import read_any, read_baseline, write_baseline
from experiment.compare.facts import read_side
from experiment.compare.gate import Limit, judge
from experiment.compare.results import Side
from experiment.compare.sides import compare_sides
from experiment.text.errors import UserError


def test_a_baseline_holds_the_counts_of_its_run_and_nothing_that_scatters(tmp_path: Path) -> None:
    run = read_side(write(tmp_path / "run", events(4)))
    path = tmp_path / "baseline.json"
    assert write_baseline(path, run) > 0
    found = read_baseline(path)
    counts = {
        n: f.value for n, f in run.figures.items() if f.kind == "count" and f.value is not None
    }
    assert {name: f.value for name, f in found.figures.items()} == counts
    assert counts["paged/wasted_slots"] == 2
    assert not [name for name in found.figures if name.endswith("_s")]
    assert (found.kind, found.requests, found.wall_ns) == ("baseline", run.requests, run.wall_ns)
    assert read_any(path) == found


def test_a_run_equals_its_own_baseline_and_another_does_not(tmp_path: Path) -> None:
    run = read_side(write(tmp_path / "run", events(4)))
    write_baseline(tmp_path / "baseline.json", run)
    before = read_baseline(tmp_path / "baseline.json")
    judged = compare_sides(before, run).rows
    assert len(judged) == len(before.figures)
    assert {r.verdict for r in judged} == {"same"}
    other = compare_sides(before, read_side(write(tmp_path / "other", events(2))))
    assert {r.verdict for r in other.rows if r.id == "paged/wasted_slots"} == {"better"}


@pytest.mark.parametrize("changes", [{"status": "incomplete"}, {"damaged_lines": 1}])
def test_half_a_run_is_no_baseline(tmp_path: Path, changes: dict[str, object]) -> None:
    run = side(figure("steps", 5, kind="count"), **changes)
    with pytest.raises(UserError) as caught:
        write_baseline(tmp_path / "baseline.json", run)
    assert caught.value.text.key == "error.compare.baseline_incomplete"
    assert not (tmp_path / "baseline.json").exists()


def began(data: dict[str, Any], **changes: int) -> dict[str, Any]:
    return {**data, "from": {**data["from"], **changes}}


def made_with(data: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    return {**data, "config": {**data["config"], key: value}}


@pytest.mark.parametrize(
    ("change", "key", "where"),
    [
        (lambda d: "not json", "error.compare.no_baseline", None),
        (lambda d: [], "error.compare.no_baseline", None),
        (lambda d: {**d, "kind": "other"}, "error.compare.no_baseline", None),
        (lambda d: {**d, "format": 2}, "error.schema", None),
        (
            lambda d: {k: v for k, v in d.items() if k != "from"},
            "error.compare.bad_baseline",
            "from",
        ),
        (
            lambda d: {**d, "figures": {"paged/steps": "5"}},
            "error.compare.bad_baseline",
            "figures.paged/steps",
        ),
        (
            lambda d: {**d, "figures": {"paged/steps": float("nan")}},
            "error.compare.bad_baseline",
            None,
        ),
        (lambda d: {**d, "figures": {"paged/steps": 10**400}}, "error.compare.bad_baseline", None),
        (lambda d: {**d, "machine": {"cores": float("nan")}}, "error.compare.bad_baseline", None),
        (lambda d: began(d, utc_offset_s=10**6), "error.compare.bad_baseline", None),
        (lambda d: began(d, wall_ns=10**40), "error.compare.bad_baseline", "from.wall_ns"),
        (lambda d: made_with(d, "experiment.size", "zz"), "error.compare.bad_baseline", None),
        (lambda d: made_with(d, "experiment.margin", -5), "error.compare.bad_baseline", None),
        (lambda d: made_with(d, "sampling.beam_width", "x"), "error.compare.bad_baseline", None),
        (lambda d: made_with(d, "run.threads", float("nan")), "error.compare.bad_baseline", None),
        (lambda d: {**d, "figures": {"paged/step": 5}}, "error.unknown_near", None),
        (lambda d: {**d, "figures": {"steps": 5}}, "error.compare.id", None),
    ],
)
def test_what_is_no_baseline_is_refused_by_the_place_in_its_file(
    tmp_path: Path, change: object, key: str, where: str | None
) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(path, read_side(write(tmp_path / "run", events())))
    changed = change(json.loads(path.read_text(encoding="utf-8")))  # type: ignore[operator]
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_baseline(path)
    assert caught.value.text.key == key
    assert where is None or caught.value.text.params["where"] == where


PLACE = "prefix/rows=30,prefix_cache=on"
MODEL = {"name": "tiny", "weights_sha256": "one"}
OWN = {"name": "qwen", "weights_sha256": "two"}


def scored(own: dict[str, str]) -> Side:
    """A count that the model's scores decide, in a cell that has a model of its own."""
    name = f"{PLACE}/paged/steps"
    return side(
        figure("steps", 5, id=name, arm="paged", kind="count", unit="count", better=None),
        requests={PLACE: "same"}, model=MODEL, models={PLACE: own},
        config={"workload.ignore_eos": False},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("own", "older", "verdict"),
    [(OWN, False, "same"), ({**OWN, "weights_sha256": "three"}, False, "not_comparable"),
     (OWN, True, "same")],
)  # fmt: skip
def test_a_baseline_keeps_the_model_of_each_cell(
    own: dict[str, str], older: bool, verdict: str, tmp_path: Path
) -> None:
    """``older``: one that was made before models of cells were kept does not tell them."""
    path = tmp_path / "baseline.json"
    write_baseline(path, scored(OWN))
    data = json.loads(path.read_text(encoding="utf-8"))
    assert data["models"] == {PLACE: OWN}
    if older:
        del data["models"]
        path.write_text(json.dumps(data), encoding="utf-8")
    before = read_baseline(path)
    assert before.models == (None if older else {PLACE: OWN})
    found = compare_sides(before, scored(own))
    assert [row.verdict for row in found.rows] == [verdict]
    limit = Limit(f"{PLACE}/paged/steps", "max", 0, relative=True)
    (judged,) = judge([limit], scored(own), before)
    assert judged.verdict == ("passed" if verdict == "same" else "unknown")
