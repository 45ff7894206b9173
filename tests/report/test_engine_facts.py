"""An engine on itself, and by how much tokens differ, on the page and on the console."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from sample import BLOCK, MAX_LENGTH, make_record

from experiment.analysis.arm_results import arm_results
from experiment.analysis.conclusions import evaluate, in_ulps
from experiment.events import EngineReported, EngineStep, RequestFinished, TokenMargin
from experiment.record.log import Record
from experiment.replay.arm_events import PREPARATION
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.page.page import report_html
from experiment.text.messages import message


def step(number: int, used: int, tables: int) -> EngineStep:
    return EngineStep(
        arm="paged", step=number, used_blocks=used, table_blocks=tables, running=1, waiting=0,
        preempted=number, prefix_queries=10, prefix_hits=8,
    )  # fmt: skip


def engine(tokens: int) -> EngineReported:
    return EngineReported(
        arm="paged", versions={"vllm": "0.32.0"}, arguments={"seed": 0}, variables={}, blocks=24,
        block_size=BLOCK, tokens=tokens, max_concurrency=3.0, max_length=MAX_LENGTH,
        rank_bytes=[1024, 2048], load_s=1.25, compile_s=2, cache_s=3, capture_s=4,
        first_request_s=5,
    )  # fmt: skip


def add(record: Record, *events: object) -> Record:
    return dataclasses.replace(record, events=(*record.events, *events))


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return make_record(tmp_path, arms=("contiguous.batch", "paged"))


def differing(record: Record) -> Record:
    """The second arm's request 1 takes another token at its third place."""

    def changed(event: object) -> object:
        if isinstance(event, RequestFinished) and event.arm == "paged" and event.request == 1:
            tokens = [*event.tokens]
            tokens[2] += 1
            return event.model_copy(update={"tokens": tokens})
        return event

    return dataclasses.replace(record, events=tuple(changed(event) for event in record.events))


@pytest.mark.parametrize(("lang", "foretold"), [("en", "predicted"), ("zh", "预测值")])
def test_the_engine_stands_beside_what_was_foretold(
    record: Record, lang: str, foretold: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = add(record, engine(192), step(1, 3, 3), step(2, 4, 4))
    results = evaluate(record)
    found = results.arm("paged")
    assert found is not None
    assert found.problems == []
    assert found.engine is not None
    # The sample's budget is three slabs of 64 slots, in blocks of 8.
    assert (found.engine.foretold_tokens, found.engine.foretold_concurrency) == (192, 3.0)
    assert (found.engine.preempted, found.engine.prefix_hits) == (3, 16)
    page = report_html(record, results, lang)
    ConsoleReporter(lang).show_results(results, [])
    console = capsys.readouterr().out
    for text in (page, console):
        assert foretold in text
        assert "3.00×" in text
        assert "1 KiB + 2 KiB" in text.replace("\u00a0", " ")
        assert "vllm 0.32.0" in text


def test_statistics_that_contradict_the_tables_are_a_problem(record: Record) -> None:
    record = add(record, engine(192), step(1, 3, 3), step(2, 5, 4), step(3, 6, 4))
    found = next(arm for arm in arm_results(record) if arm.arm == "paged")
    expected = message("problem.engine_blocks", n=2, step=2, reported=5, tables=4)
    assert found.problems == [expected]


def test_where_tokens_differ_the_margin_is_told(
    record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    record = differing(record)
    plain = evaluate(record).tokens[0]
    assert (plain.first_difference, plain.margin) == ((1, 2), None)
    elsewhere = TokenMargin(
        arm="paged", reference="contiguous.batch", request=1, index=1, tokens=(7, 8),
        logits=(2.5, 2.25), margin=0.25,
    )  # fmt: skip
    assert evaluate(add(record, elsewhere)).tokens[0].margin is None
    there = elsewhere.model_copy(update={"index": 2, "logits": (2.5, 2.4999990), "margin": 1e-6})
    later = elsewhere.model_copy(
        update={"request": 3, "index": 6, "logits": (64.0, 63.0), "margin": 2**-16}
    )
    record = add(record, there, later, there, later)  # resumed, it looks again
    results = evaluate(record)
    assert not results.tokens[0].equal
    assert results.tokens[0].margin is not None
    page = report_html(record, results, "en")
    ConsoleReporter("en").show_results(results, [])
    # A unit of 2.5 is 2 ** -22, one of 64 is 2 ** -17.
    many = "2 requests that differ, which part between new tokens 3 and 7"
    apart = "2 to 4.19 units in the last place (float32) apart"
    for text in (page, " ".join(capsys.readouterr().out.split())):
        assert "1e-06 apart in their logits" in text
        assert many in text
        assert apart in text


@pytest.mark.parametrize(
    ("margin", "logit", "dtype", "units"),
    [
        (0.0625, -100.0, "float16", 1), (0.5, -100.0, "bfloat16", 1), (2**-22, 2.5, "float32", 1),
        (0.25, -127.9, "float16", 4), (0.25, 128.0, "float16", 2), (0.0, 3.0, "float16", 0),
        (0.1, 0.0, "float16", None), (0.1, 1.0, "float64", None),
        (0.1, float("nan"), "float16", None),
    ],
)  # fmt: skip
def test_how_close_a_call_was_is_counted_in_units_in_the_last_place(
    margin: float, logit: float, dtype: str, units: float | None
) -> None:
    assert in_ulps(margin, logit, dtype) == units


def test_looking_at_margins_is_no_arm() -> None:
    assert "margins" in PREPARATION
