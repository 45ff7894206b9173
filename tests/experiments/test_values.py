"""What may stand in experiment.values, and who is urgent in the experiment on priorities."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import run, tiny_config

from experiment import __version__
from experiment.events import CellStarted, Event, RunFinished, RunStarted, encode
from experiment.experiments.base import planned_cells
from experiment.experiments.classes import (
    PATIENT,
    URGENT,
    of_class,
    predicted_steps,
    steps_to_first,
)
from experiment.experiments.evaluate import picture
from experiment.experiments.registry import EXPERIMENTS
from experiment.measure.resume import read_resumption
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.text.messages import Message
from experiment.workload.requests import MAX_REQUESTS


@pytest.mark.parametrize("name", ["a/b", "a=b", "a b", "", "a" * 41])
def test_a_name_that_cannot_stand_in_an_id_is_refused(name: str) -> None:
    options = {name: [[9, 4]]}
    config = tiny_config("lengths", experiment__values=[name], experiment__options=options)
    text = refused(config, "lengths")
    assert text.key == "error.experiment_options"
    assert "named" in text.params["why"]


def refused(config: object, name: str) -> Message:
    with pytest.raises(UserError) as caught:
        planned_cells(EXPERIMENTS[name], config)  # type: ignore[arg-type]
    return caught.value.text


@pytest.mark.parametrize(("name", "value"), [("block-size", "16"), ("capacity", "abc")])
def test_a_number_that_is_written_as_a_text_is_refused(name: str, value: str) -> None:
    text = refused(tiny_config(name, experiment__values=[1, value]), name)
    assert (text.key, text.params["value"]) == ("error.not_a_kind", f'"{value}"')
    assert "{" not in Translator("zh").message(text)


NAMED = ("serving", "lengths", "priority", "quantised")


@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - {*NAMED}))
@pytest.mark.parametrize("value", [2.5, -1, 0])
def test_what_is_no_count_is_refused_where_counts_vary(name: str, value: float) -> None:
    """It would be cut off, or ask about nobody, and the cell be named as if it had been run."""
    text = refused(tiny_config(name, experiment__values=[4, value]), name)
    key = "error.limit_ge" if value == int(value) else "error.not_a_kind"
    assert (text.key, text.params["value"]) == (key, str(value))
    assert all(str(value) in Translator(lang).message(text) for lang in LANGUAGES)


def test_a_whole_number_with_a_point_is_one_and_rates_may_be_fractions() -> None:
    for name, axis, value in (("capacity", "requests", 4.0), ("block-size", "block_size", 16.0)):
        config = tiny_config(name, experiment__values=[value])
        assert [repr(c.values[axis]) for c in planned_cells(EXPERIMENTS[name], config)] == [
            repr(int(value))
        ]
    cells = planned_cells(EXPERIMENTS["serving"], tiny_config("serving", experiment__values=[2.5]))
    assert {cell.values["rate"] for cell in cells} == {2.5}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_true_is_neither_a_number_nor_a_name(name: str) -> None:
    with pytest.raises(UserError) as caught:
        tiny_config(name, experiment__values=[4, True])
    text = caught.value.text
    assert (text.key, text.params["config_key"]) == ("error.not_a_kind", "experiment.values")
    assert Translator("en").message(text).endswith("True is not a number or a string.")
    assert "{" not in Translator("zh").message(text)


@pytest.mark.parametrize(
    ("name", "axis"), [("block-size", "block_size"), ("capacity", "requests"), ("serving", "rate"),
                       ("concurrency", "concurrency"), ("context", "context")],
)  # fmt: skip
def test_numbers_are_run_in_ascending_order(name: str, axis: str) -> None:
    """Findings speak of the first and the last cell as of the smallest and the largest number."""
    config = tiny_config(name, experiment__values=[256, 16, 64])
    seen = [cell.values[axis] for cell in planned_cells(EXPERIMENTS[name], config)]
    assert list(dict.fromkeys(seen)) == [16, 64, 256]


def test_numbers_that_have_options_by_their_places_keep_them() -> None:
    options = {"models": ["tiny-gpt2", "tiny-qwen2"], "max_lengths": [1024, 4096], "questions": 2}
    config = tiny_config("prefix", experiment__values=[25, 5], experiment__options=options)
    cells = planned_cells(EXPERIMENTS["prefix"], config)
    models = [(cell.values["rows"], cell.overrides["model.name"]) for cell in cells]
    assert models[::2] == [(25, "tiny-gpt2"), (5, "tiny-qwen2")]


def as_given(record: Record, directory: Path, cells: int) -> Record:
    """The same run with its cells in descending order, as they were given, and so many of them."""
    head: list[Event] = []
    found: list[list[Event]] = []
    for event in record.events:
        if isinstance(event, CellStarted):
            found.append([])
        (found[-1] if found else head).append(event)
    started, end = head[0], found[-1].pop()
    assert isinstance(started, RunStarted)
    assert isinstance(end, RunFinished)
    asked = {**started.config["experiment"], "values": started.config["experiment"]["values"][::-1]}
    config = {**started.config, "experiment": asked}
    log = [started.model_copy(update={"version": __version__, "config": config}), *head[1:]]
    for index, (first, *others) in enumerate(found[::-1][:cells]):
        log += [first.model_copy(update={"index": index}), *others]
    log += [end] if cells == len(found) else []
    directory.mkdir()
    text = "".join(encode(event) + "\n" for event in log)
    (directory / EVENTS_FILE).write_text(text, encoding="utf-8")
    return read_record(directory)


def test_a_run_of_numbers_in_another_order_is_found_the_same(
    tmp_path: Path,
) -> None:
    """Versions of before ran them as they were given."""
    config = tiny_config(
        "block-size", experiment__values=[4, 16], workload__lengths=[[5, 4]],
        cache__max_length=64, cache__budget=64 * 1024, run__arms=["paged"],
    )  # fmt: skip
    ran = run(config, tmp_path / "run")
    assert ran.verdicts()["waste"] == "shown"
    _, results = picture(as_given(ran.record, tmp_path / "old", 2))
    assert results.experiment is not None
    assert [cell.values["block_size"] for cell in results.experiment.cells] == [16, 4]
    assert results.experiment.findings == ran.result.findings
    assert read_resumption(tmp_path / "old", None, {}).complete


MANY = MAX_REQUESTS + 1
DRAW = {"workload": "alpaca-like", "requests": MANY, "seed": 0, "max_length": 64}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("capacity", {"values": [4, MANY]}),
        ("holes", {"values": [MANY]}),
        ("concurrency", {"options__requests": MANY}),
        ("concurrency", {"values": [4, 10**30]}),
        ("priority", {"options__requests": MANY}),
        ("lookup", {"options__requests": MANY}),
        ("lengths", {"options__total": 2 * MANY, "options__short": [[1, 1]]}),
        ("prefix", {"options__questions": MANY}),
        ("prefix", {"values": [MANY]}),
        ("beam", {"options__draw": DRAW}),
        ("parallel-sampling", {"options__draw": DRAW}),
        ("serving", {"options__draw": DRAW}),
        ("serving", {"options__trace": __file__, "options__requests": MANY}),
    ],
)
def test_more_requests_than_a_run_holds_are_refused_before_they_are_made(
    name: str, changes: dict[str, object]
) -> None:
    """Of a billion the lists alone would fill the memory."""
    asked = {f"experiment__{key}": value for key, value in changes.items()}
    assert refused(tiny_config(name, **asked), name).key == "error.workload.too_much"


Measure = tuple[float | None, float | None]


def measured(ranks: Sequence[int]) -> Measure:
    """Request n comes at step n and has its first token three steps later."""
    made: Any = SimpleNamespace(
        workload=SimpleNamespace(
            requests=[SimpleNamespace(id=n, priority=rank) for n, rank in enumerate(ranks)]
        ),
        requests=[
            SimpleNamespace(request=n, arrival_step=n, first_token_step=n + 2 + rank)
            for n, rank in enumerate(ranks)
        ],
    )
    urgent, patient = (of_class(which, steps_to_first)(made) for which in (True, False))
    return urgent, patient


def foretold(ranks: Sequence[int]) -> Measure:
    """The same of kvsim, whose steps take a second each."""
    came = array("d", range(len(ranks)))
    first = array("d", [at + 3 + rank for at, rank in zip(came, ranks, strict=True)])
    rows = {"priority": array("d", ranks), "arrival_s": came, "first_token_s": first}
    made: Any = SimpleNamespace(rows=rows)
    urgent, patient = (predicted_steps(which)(made) for which in (True, False))
    return urgent, patient


@pytest.mark.parametrize("seen", [measured, foretold])
def test_a_class_without_anybody_has_no_mean_and_the_other_has_its_own(seen: Any) -> None:
    assert seen([URGENT, PATIENT, PATIENT]) == (3, 4)
    assert seen([PATIENT, PATIENT]) == (None, 4)
    assert seen([URGENT, URGENT]) == (3, None)


@pytest.mark.parametrize(("every", "urgent"), [(2, 4), (3, 2), (8, 1)])
def test_somebody_of_either_class_comes(every: int, urgent: int) -> None:
    for cell in planned_cells(EXPERIMENTS["priority"], asked(every)):
        ranks = cell.overrides["workload.priorities"]
        assert (ranks.count(URGENT), ranks.count(PATIENT)) == (urgent, 8 - urgent)


@pytest.mark.parametrize("every", [9, 100, 2.5, 4.0, 1, 0, -3, True, "4", None, [2]])
def test_what_leaves_a_class_empty_or_is_no_whole_number_is_refused(every: object) -> None:
    with pytest.raises(UserError) as caught:
        planned_cells(EXPERIMENTS["priority"], asked(every))
    text = caught.value.text
    assert (text.key, text.params["requests"]) == ("error.experiment_urgent", 8)
    for lang in LANGUAGES:
        assert str(every) in Translator(lang).message(text)


def asked(every: object) -> Any:
    options = {"requests": 8, "every": 1, "urgent_every": every, "lengths": [[6, 8]]}
    return tiny_config("priority", experiment__options=options)
