"""What may stand in experiment.values: numbers in any order, and names of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import run, tiny_config
from markupsafe import escape

from experiment import __version__
from experiment.analysis.finding_text import whole
from experiment.events import CellStarted, Event, RunFinished, RunStarted, encode
from experiment.experiments.base import planned_cells
from experiment.experiments.evaluate import picture
from experiment.experiments.registry import EXPERIMENTS
from experiment.measure.resume import read_resumption
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.report.console.experiment import show_experiment
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.facts import experiment as words
from experiment.report.files.markdown import markdown
from experiment.report.page.page import report_html
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.text.messages import Message
from experiment.workload.requests import MAX_REQUESTS

OWN = {"total": 96, "chat": [[9, 4], [5, 6]], "steps": [[20, 12]]}
SMALL = {"cache__max_length": 32, "cache__budget": 4 * 32 * 1024, "run__arms": ["slabs", "paged"]}


def test_shapes_of_ones_own_are_shown_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them is called as a clock of another experiment is."""
    config = tiny_config(
        "lengths", experiment__values=["chat", "steps"], experiment__options=OWN, **SMALL
    )
    ran = run(config, tmp_path / "run")
    assert not ran.result.problems
    assert [words.cell_label(cell.values) for cell in ran.result.cells] == ["chat", "steps"]
    assert [finding.id for finding in ran.result.findings] == ["shapes", "own", "own"]
    page = report_html(ran.shown, ran.results, "en")
    for lang in LANGUAGES:
        t = Translator(lang)
        texts = [t.message(whole(finding)) for finding in ran.result.findings]
        assert all("chat" in text for text in texts[:2])
        assert "steps" in texts[2]
        show_experiment(ConsoleReporter(lang), ran.results, ran.result, [])
        printed, listed = capsys.readouterr().out, markdown(ran.results, lang)
        for shape in ("chat", "steps"):
            title = t("experiments.lengths.gain", shape=shape)
            assert title in printed
            assert title in listed
            assert page.count(str(escape(title))) == 1
        assert "{" not in listed


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


RATES, NAMED = ("serving",), ("lengths", "priority", "quantised")


@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - {*RATES, *NAMED}))
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


def test_a_run_of_numbers_in_another_order_is_found_the_same_and_not_gone_on_with(
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

    as_given(ran.record, tmp_path / "half", 1)
    with pytest.raises(UserError) as caught:
        read_resumption(tmp_path / "half", None, {})
    text = caught.value.text
    assert text.key == "error.resume.cells"
    assert (text.params["before"], text.params["now"]) == ("block_size=16", "block_size=4")
    assert all("{" not in Translator(lang).message(text) for lang in LANGUAGES)


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
    ],
)
def test_more_requests_than_a_run_holds_are_refused_before_they_are_made(
    name: str, changes: dict[str, object]
) -> None:
    """Of a billion the lists alone would fill the memory."""
    asked = {f"experiment__{key}": value for key, value in changes.items()}
    assert refused(tiny_config(name, **asked), name).key == "error.workload.too_much"


def test_a_trace_is_not_read_for_more_requests_than_a_run_holds(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("", encoding="utf-8")
    config = tiny_config(
        "serving", experiment__options__trace=str(trace), experiment__options__requests=MANY
    )
    assert refused(config, "serving").key == "error.workload.too_much"
