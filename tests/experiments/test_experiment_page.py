"""The page of an experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from axe_check import WAYS, needs_axe, violations
from chart_checks import charts_of, untold
from data_keys import assert_keys_lead, body_of, keyed_nodes
from in_process import Ran, run, tiny_config

from experiment.analysis.finding_text import answer
from experiment.events import Stage, StageEntered
from experiment.report.facts.series import all_series
from experiment.report.page.page import report_html
from experiment.report.render import _summary
from experiment.text import Translator


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Blocks of two sizes, each measured twice."""
    config = tiny_config(
        "block-size",
        experiment__values=[1, 16],
        experiment__repeats=2,
        workload__lengths=[[5, 4], [17, 6], [30, 3]],
        cache__max_length=64,
    )
    return run(config, tmp_path_factory.mktemp("experiment") / "run")


def test_every_key_of_an_experiment_is_a_path_to_a_value_of_run_json(ran: Ran) -> None:
    body = body_of(report_html(ran.shown, ran.results, "en"))
    assert_keys_lead(body, json.loads(json.dumps(_summary(ran.results, ran.shown))), least=100)
    keys = [node.get("data-key") for node in keyed_nodes(body)]
    assert sum(key.startswith("results.experiment.cells.1.") for key in keys) > 4
    assert untold(body) == []
    drawn = {chart.get("id") for chart in charts_of(body)}
    assert ran.results.experiment is not None
    for figure in ran.results.experiment.charts:
        assert f"experiment-{figure.replace('_', '-')}-wide" in drawn


def test_the_sections_keep_their_order_and_the_verdict_holds_the_finding_and_its_chart(
    ran: Ran,
) -> None:
    body = body_of(report_html(ran.shown, ran.results, "en"))
    named = [node.get("aria-labelledby") for node in body.iter("section")]
    assert named == [
        "verdict", "experiment", "player", "compare", "time", "requests", "checks", "about",
    ]  # fmt: skip
    contents = [a.get("href") for a in next(body.iter("nav")).iter("a")]
    assert contents == [f"#{name}" for name in named[1:]]
    said = "".join(next(body.iter("h1")).itertext()).replace("\u00a0", " ")
    assert Translator("en").message(answer(ran.results.experiment.findings[0])) in said
    verdict, told, *_ = body.iter("section")
    drawn = [[chart.get("id") for chart in charts_of(one)] for one in (verdict, told)]
    names = [f"experiment-{figure.replace('_', '-')}" for figure in ran.results.experiment.charts]
    both = [f"{name}-{width}" for name in names for width in ("wide", "narrow")]
    assert drawn[0] == both[:2]
    assert drawn[1][: len(both) - 2] == both[2:]
    every = [node.get("id") for node in body.iter() if node.get("id")]
    assert len(every) == len(set(every))
    ids = {node.get("id") for node in told.iter()}
    links = {a.get("href")[1:] for a in verdict.iter("a")}
    assert {f"finding-{one.id}" for one in ran.results.experiment.findings} < links <= ids
    # What a single run is asked is not asked of one repeat of one cell.
    assert Translator("en")("report.claims.title") not in "".join(body.itertext())


def test_the_panels_show_the_repeat_without_the_readings_of_its_warm_up(ran: Ran) -> None:
    series = all_series(ran.shown)
    done = [s for s in ran.shown.of(StageEntered) if s.stage is Stage.REQUEST_DONE]
    for one in series:
        begun, ended = one.rows[0].started_ns, one.rows[-1].t_ns
        assert any(stage.arm == one.arm and stage.t_ns < begun for stage in done)
        assert one.marks == ()
        assert (one.edges[0], one.end) == (0, pytest.approx((ended - begun) / 1e9))


@needs_axe
@pytest.mark.parametrize(("scheme", "lang", "width"), WAYS)
def test_axe_finds_no_serious_violation(
    browser: Any, ran: Ran, tmp_path: Path, scheme: str, lang: str, width: int
) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html(ran.shown, ran.results, "en"), encoding="utf-8")
    assert not violations(browser, file, scheme, lang, width)
