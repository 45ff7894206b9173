"""Figures of one name that mean different things: another limit, another model, too few repeats."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_runs import MACHINE, figure, head, side, write

from experiment.compare.facts import read_side
from experiment.compare.results import Figure, Side
from experiment.compare.sides import compare_sides
from experiment.events import (
    CellStarted,
    EnvironmentProbed,
    Event,
    ModelPrepared,
    RunFinished,
    RunStarted,
)
from experiment.report.facts.compare import counted
from experiment.text import LANGUAGES, Translator

PLACE = "prefix/rows=30,prefix_cache=on"


def placed(place: str, *values: float) -> Figure:
    return figure("generate_s", *values, id=f"{place}/a/generate_s", cell={"rows": 30})


def test_a_cell_is_compared_by_its_own_model() -> None:
    """Where the second cell has another model, the first one's says nothing of it."""

    def one(other: str, *values: float) -> Side:
        places = (PLACE, "prefix/rows=25,prefix_cache=on")
        return side(
            *(placed(place, *values) for place in places),
            requests=dict.fromkeys(places, "same"),
            models={PLACE: {"name": other}},
        )

    seen = compare_sides(one("qwen", 4, 5, 6), one("llama", 1, 2, 3))
    assert {row.id: row.verdict for row in seen.rows} == {
        f"{PLACE}/a/generate_s": "not_comparable",
        "prefix/rows=25,prefix_cache=on/a/generate_s": "better",
    }
    (row,) = (row for row in seen.rows if row.reason is not None)
    assert row.reason is not None
    assert row.reason.key == "compare.reason.model"
    told = [(d.group, d.name, d.left, d.right) for d in seen.differences]
    assert told == [("model", f"{PLACE} name", "qwen", "llama")]
    alike = compare_sides(one("qwen", 4, 5, 6), one("qwen", 1, 2, 3))
    assert {row.verdict for row in alike.rows} == {"better"}


def test_the_model_of_each_cell_is_read_from_the_log(tmp_path: Path) -> None:
    started, *others = head()
    assert isinstance(started, RunStarted)
    config = {"experiment": {"name": "prefix", "values": [25, 30], "options": {"questions": 1}}}
    model = next(event for event in others if isinstance(event, ModelPrepared))
    log: list[Event] = [started.model_copy(update={"config": config})]
    log.append(EnvironmentProbed(environment=MACHINE))
    for index, name in enumerate(("first", "second")):
        values = {"rows": 25 + 5 * index, "prefix_cache": "off"}
        log.append(CellStarted(index=index, of=2, values=values, overrides={}, arms=["paged"]))
        log += [
            event.model_copy(update={"name": name}) if event is model else event
            for event in others
            if not isinstance(event, EnvironmentProbed)
        ]
    found = read_side(write(tmp_path / "run", [*log, RunFinished(status="complete")]))
    assert found.model["name"] == "first"
    assert {place: one["name"] for place, one in found.models.items()} == {
        "prefix/rows=30,prefix_cache=off": "second"
    }


@pytest.mark.parametrize("repeats", [1, 2, 3])
@pytest.mark.parametrize("place", [PLACE, ""])
def test_too_few_repeats_are_not_called_none(repeats: int, place: str) -> None:
    """Two are repeats as well; and what an experiment lacks is no matter of ordinary runs."""

    def one(value: float) -> Side:
        told = placed(place, *[value] * repeats) if place else figure("generate_s", value)
        return side(told, requests={place: "same"})

    found = compare_sides(one(4.0), one(2.0))
    few = repeats < 3 or not place
    assert [row.verdict for row in found.rows] == ["single" if few else "better"]
    keys = [note.key for note in found.notes]
    note = "compare.note.few_repeats" if place else "compare.note.single"
    assert keys == (["compare.note.same_run"] + [note] * few)
    for lang in LANGUAGES:
        t = Translator(lang)
        text = t.message(counted(found))
        assert (t("compare.verdict.single") in text) is few
        assert "{" not in text
