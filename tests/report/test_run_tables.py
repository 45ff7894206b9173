"""The tables of a run, on its page and on the console: each figure, or a dash with its reason."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from data_keys import body_of, by_id, english
from rich.console import Console
from sample import BLOCK, MAX_LENGTH, make_record

from experiment.analysis.arm_results import arm_results
from experiment.analysis.conclusions import evaluate, in_ulps
from experiment.analysis.metrics import METRICS
from experiment.analysis.results import ArmResult, Results
from experiment.events import EngineReported, EngineStep, RequestFinished, TokenMargin
from experiment.record.log import Record
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.console.results import show_results
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.texts import Keyed, arm_name
from experiment.report.files.markdown import markdown
from experiment.report.page.environment import environment_rows
from experiment.report.page.latency import curves, latency_rows
from experiment.report.page.memory import costly
from experiment.report.page.page import report_html
from experiment.report.page.parts import Cell, readings
from experiment.text import LANGUAGES, Translator, catalogue
from experiment.text.messages import message


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


def cost(share: float | None) -> dict[str, float | None]:
    """What watching cost in ten seconds, of two cores."""
    spent = None if share is None else 20 * share
    return {"sampler_cpu_s": spent, "watched_s": 10.0, "usable_cores": 2.0}


@pytest.mark.parametrize(("share", "said"), [(0.005, False), (0.014, True), (None, False)])
def test_measuring_that_took_too_much_is_said_before_the_tables(
    made: tuple[Record, Results], share: float | None, said: bool
) -> None:
    record, results = made
    arms = [
        arm.model_copy(update={"watch": arm.watch.model_copy(update=cost(share))})
        for arm in results.arms
    ]
    changed = results.model_copy(update={"arms": arms})
    found = costly(changed)
    assert (found is not None) == said
    if found:
        assert found.params == {"n": len(arms), "most": pytest.approx(share), "limit": 0.01}
        assert Translator("en").message(found) in english(
            body_of(report_html(record, changed, "en"))
        )


def row_of(made: tuple[Record, Results], metric: str, count: int) -> Cell:
    results = with_requests(made[1], count)
    (found,) = (row for row in latency_rows(results) if row.label == METRICS[metric].label)
    return found.cells[0]


@pytest.mark.parametrize("name", ["wait", "first_token", "latency"])
def test_few_requests_have_no_95th_percentile_but_a_longest(
    made: tuple[Record, Results], name: str
) -> None:
    few = row_of(made, f"{name}_p95_s", 19)
    assert few.main is None
    assert few.reason is not None
    assert few.reason.key == "experiments.reason.few_requests"
    assert row_of(made, f"{name}_p95_s", 20).main is not None
    longest = {"wait": "2.38 s", "first_token": "4.75 s", "latency": "9.50 s"}[name]
    assert row_of(made, f"{name}_max_s", 19).main == longest


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


PARTS = ("term.unwritten.name", "report.bars.later", "report.bars.never")


def test_what_is_unwritten_is_split_by_what_the_log_says_of_later(busy: Record) -> None:
    body = body_of((busy.directory / "report.html").read_text(encoding="utf-8"))
    head, *rows = by_id(body, "peak-data").iter("tr")
    heads = [english(cell) for cell in head]
    places = [heads.index(catalogue("en")[part]) for part in PARTS]
    peaks = [arm.peak for arm in evaluate(busy).arms if arm.peak]
    assert len(rows) == len(peaks) == 2
    shown = [[int(english(list(row)[place]).replace(",", "")) for place in places] for row in rows]
    assert shown == [
        [peak.unwritten, peak.unwritten - peak.never_written, peak.never_written] for peak in peaks
    ]
    assert any(later and never for _, later, never in shown)


def test_an_arm_without_a_peak_keeps_its_row_with_a_dash_and_the_reason(
    tmp_path: Path,
) -> None:
    record = make_record(tmp_path)
    results = evaluate(record)
    head, *rows = by_id(body_of(report_html(record, results, "en")), "peak-data").iter("tr")
    t = Translator("en")
    assert [english(row.find("th")) for row in rows] == [
        arm_name(t, arm.arm) for arm in results.arms
    ]
    without = [(row, arm) for row, arm in zip(rows, results.arms, strict=True) if not arm.peak]
    assert {arm.status for _, arm in without} == {"failed", "skipped"}
    for row, arm in without:
        (cell,) = row.iter("td")
        assert int(cell.get("colspan")) == len(list(head)) - 1
        assert arm.reason is not None
        assert english(cell.find("span")) == "—"
        assert english(cell.find("small")) == t.message(arm.reason)


def test_of_a_stage_that_was_read_twice_one_reading_is_shown(tmp_path: Path) -> None:
    """Logs of older runs have readings of a repeat that was measured, too."""
    record = make_record(tmp_path)
    results = evaluate(record)
    (arm,) = (one for one in results.arms if one.arm == "paged")
    row = next(one for one in arm.memory if one.bytes is not None and one.stage != "maximum")
    again = row.model_copy(update={"t_ns": row.t_ns + 10**9, "bytes": (row.bytes or 0) + 2**20})
    twice = arm.model_copy(update={"memory": [row, again]})
    ((_, clock, cells),) = readings(record.started, twice).rows
    assert isinstance(clock, Keyed)
    assert clock.key == "results.arms[paged].memory.0.t_ns"
    main = cells[0].main
    assert isinstance(main, Keyed)
    assert main.key == "results.arms[paged].memory.0.bytes"


ARMS = ("contiguous.batch", "paged")


def run(directory: Path, arms: Sequence[str] = ARMS, **counts: int) -> tuple[Record, Results]:
    """A run whose paged arm counted so many."""
    record = make_record(directory, arms=arms)
    results = evaluate(record)
    found = [arm.model_copy(update=counts) if arm.arm == "paged" else arm for arm in results.arms]
    return record, results.model_copy(update={"arms": found})


def row(body: Any, label: str) -> list[str]:
    """The cells behind a label of a table, in English."""
    heads = [node for node in body.iter("tr") if english(node.find("th")) == label]
    return [english(cell) for cell in heads[0].iter("td")]


def test_only_an_arm_with_blocks_has_a_count_of_what_happens_to_them(tmp_path: Path) -> None:
    record, results = run(tmp_path, preemptions=3, copied_blocks=0)
    body = body_of(report_html(record, results, "en"))
    assert row(body, "Preemptions") == ["— has no blocks", "3"]
    assert "Blocks copied on write" not in [english(node) for node in body.iter("th")]
    record, results = run(tmp_path / "b", (*ARMS, "failed", "skipped"), copied_blocks=2)
    cells = row(body_of(report_html(record, results, "en")), "Blocks copied on write")
    # By the ladder of arms, however late they came.
    assert cells == ["— the arm failed first", "— has no blocks", "— the arm was skipped", "2"]


def test_a_request_without_blocks_was_preempted_not_even_never(tmp_path: Path) -> None:
    body = body_of(report_html(*run(tmp_path), "en"))
    table = by_id(body, "life-data")
    lines = [[english(cell) for cell in line.iter("td")] for line in table.iter("tr")]
    last = [cells[-1] for cells in lines if cells]
    assert last == ["—"] * 3 + ["0"] * 3
    said = Translator("en")("report.no_blocks")
    assert said in english(table)
    alone = body_of(report_html(*run(tmp_path / "b", ("paged",)), "en"))
    assert said not in english(alone)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(("arms", "cells"), [(ARMS, ["—", "3"]), (("paged",), ["3"])])
def test_a_summary_says_why_a_count_is_missing(
    tmp_path: Path, lang: str, arms: tuple[str, ...], cells: list[str]
) -> None:
    t = Translator(lang)
    _, results = run(tmp_path, arms, preemptions=3)
    said = markdown(results, lang)
    line = next(each for each in said.splitlines() if t("metric.preemptions") in each)
    assert re.findall(r"—|\d+", line) == cells
    assert (t("report.no_blocks") in said) == ("—" in cells)
    out, text = ConsoleReporter(lang, False), io.StringIO()
    out.console = Console(file=text, width=200)
    show_results(out, results, [])
    shown = text.getvalue()
    line = next(each for each in shown.splitlines() if t("metric.preemptions") in each)
    assert re.findall(r"—|\d+", line) == cells
    assert (t("report.no_blocks") in shown) == ("—" in cells)


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


@pytest.mark.parametrize(("lang", "foretold"), [("en", "predicted"), ("zh", "预测")])
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
    where, apart = "new tokens 3 to 7", "2 to 4.19 ulp"
    for text in (page, " ".join(capsys.readouterr().out.split())):
        assert "1e-06 apart" in text
        assert where in text
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


def test_a_control_group_without_a_limit_says_so() -> None:
    cgroup = {"version": 2, "memory_bytes": None, "cpus": 2.5}
    found = environment_rows({"system": {"cgroup": cgroup}, "ram": {"total_bytes": 2**34}})
    assert found["cgroup_memory"] == message("console.no_limit")
    assert (found["cgroup_cpus"], found["ram"], found["gpu"]) == ("2.50", "16 GiB", None)
