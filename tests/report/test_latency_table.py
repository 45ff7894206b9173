"""How long requests took: percentiles of too few are dashes with the reason, not the longest."""

from __future__ import annotations

import pytest
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.analysis.metrics import METRICS
from experiment.analysis.results import ArmResult, Results
from experiment.record.log import Record
from experiment.report.facts.bilingual import Bilingual
from experiment.report.page.latency import curves, latency_rows
from experiment.report.page.parts import Cell
from experiment.text.messages import Message


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Results]:
    record = make_record(tmp_path_factory.mktemp("run"))
    return record, evaluate(record)


def with_requests(results: Results, count: int) -> Results:
    """The paged arm with so many requests, the n-th of n seconds."""
    (arm,) = (one for one in results.arms if one.arm == "paged")
    like = arm.requests[0]
    requests = [
        like.model_copy(
            update={"request": n, "wait_s": n / 8, "first_token_s": n / 4, "latency_s": n / 2}
        )
        for n in range(1, count + 1)
    ]
    return results.model_copy(update={"arms": [arm.model_copy(update={"requests": requests})]})


def row_of(made: tuple[Record, Results], label: Message, count: int) -> Cell:
    results = with_requests(made[1], count)
    (found,) = (row for row in latency_rows(results) if row.label == label)
    return found.cells[0]


@pytest.mark.parametrize("name", ["wait", "first_token", "latency"])
def test_few_requests_have_no_95th_percentile_but_a_longest(
    made: tuple[Record, Results], name: str
) -> None:
    p95 = METRICS[f"{name}_p95_s"].label
    few = row_of(made, p95, 19)
    assert few.main is None
    assert few.reason is not None
    assert few.reason.key == "experiments.reason.few_requests"
    assert row_of(made, p95, 20).main is not None
    longest = {"wait": "2.38 s", "first_token": "4.75 s", "latency": "9.50 s"}[name]
    assert row_of(made, METRICS[f"{name}_max_s"].label, 19).main == longest


def test_the_table_of_the_curve_keeps_the_same_rule(made: tuple[Record, Results]) -> None:
    results = with_requests(made[1], 9)
    for curve in curves(Bilingual("en"), results):
        shown = {share: cells[0] for share, cells in curve.rows}
        for share in ("90 %", "95 %"):
            assert shown[share].main is None
            assert shown[share].reason is not None
        for share in ("10 %", "50 %", "75 %", "100 %"):
            assert shown[share].main is not None


def test_an_arm_that_did_not_run_says_so_and_not_that_it_had_few(
    made: tuple[Record, Results],
) -> None:
    _, results = made
    arms: list[ArmResult] = results.arms
    for row in latency_rows(results):
        for arm, cell in zip(arms, row.cells, strict=True):
            if not arm.requests:
                assert cell.reason is not None
                assert cell.reason.key == f"report.unknown.{arm.status}"
