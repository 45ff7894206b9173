"""The page of an experiment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from axe_check import needs_axe, violations
from chart_checks import charts_of, untold
from data_keys import assert_keys_lead, body_of, keyed_nodes
from in_process import Ran, run, tiny_config
from pages import Opened, until

from experiment.analysis.experiment_results import (
    Side,
    Verdict,
)
from experiment.analysis.finding_text import answer
from experiment.events import Stage, StageEntered
from experiment.experiments.labels import axis_label, figure_label, side_label
from experiment.report.facts import experiment as words
from experiment.report.facts.series import all_series
from experiment.report.facts.texts import KeyedText
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


def test_the_page_opens_with_the_answer_its_chart_and_the_findings_and_folds_the_rest(
    ran: Ran,
) -> None:
    body = body_of(report_html(ran.shown, ran.results, "en"))
    named = [node.get("aria-labelledby") for node in body.iter("section")]
    assert named == ["verdict", "more", "player", "time", "requests", "checks", "about"]
    verdict, more, *_ = body.iter("section")
    said = "".join(verdict.itertext()).replace("\u00a0", " ")
    for finding in ran.result.findings:
        assert Translator("en").message(answer(finding)) in said
    names = [f"experiment-{figure.replace('_', '-')}" for figure in ran.result.charts]
    both = [f"{name}-{width}" for name in names for width in ("wide", "narrow")]
    assert [chart.get("id") for chart in charts_of(verdict)] == both[:2]
    assert not list(verdict.iter("details"))
    folded = {id(node) for fold in more.iter("details") for node in fold.iter()}
    assert {id(chart) for chart in charts_of(more)} | {id(t) for t in more.iter("table")} <= folded
    drawn = [chart.get("id") for chart in charts_of(more)]
    assert set(both[2:]) <= set(drawn)
    every = [node.get("id") for node in body.iter() if node.get("id")]
    assert len(every) == len(set(every))
    # What a single run is asked is not asked of one repeat of one cell.
    assert Translator("en")("report.claims.title") not in "".join(body.itertext())


@pytest.mark.parametrize(
    ("verdict", "kind", "estimate", "path"),
    [
        ("shown", "ratio", 3.65, "estimate"), ("shown", "ratio", 1.01, "verdict"),
        ("not_shown", "ratio", 3.65, "verdict"), ("untested", "ratio", None, "verdict"),
        (None, "ratio", 3.65, "estimate"),
        ("shown", "of", 3.65, "estimate"), ("not_shown", "of", 3.65, "verdict"),
    ],
)  # fmt: skip
def test_a_finding_in_doubt_puts_no_factor_into_the_headline(
    ran: Ran, verdict: Verdict | None, kind: Any, estimate: float | None, path: str
) -> None:
    first = ran.result.findings[0].model_copy(
        update={"verdict": verdict, "kind": kind, "estimate": estimate}
    )
    result = ran.result.model_copy(update={"findings": [first]})
    headline = words.headline(Translator("en"), result)
    assert isinstance(headline, KeyedText)
    assert headline.key == f"results.experiment.findings.0.{path}"
    assert ("3.65" in headline) == (path == "estimate")


def test_of_several_observed_values_the_headline_has_the_largest(ran: Ran) -> None:
    sides = [
        Side(label=side_label("requests", at), value=value, unit="count")
        for at, value in ((4, 241), (12, 977), (24, 563))
    ]
    seen = {"figure": figure_label("steps"), "at": axis_label("requests"), "sides": sides}
    first = ran.result.findings[0].model_copy(
        update={"verdict": None, "kind": None, "estimate": None, **seen}
    )
    result = ran.result.model_copy(update={"findings": [first]})
    headline = words.headline(Translator("en"), result)
    assert re.findall(r"\d+", headline) == ["12", "977"]


def test_the_panels_show_the_repeat_without_the_readings_of_its_warm_up(ran: Ran) -> None:
    series = all_series(ran.shown)
    done = [s for s in ran.shown.of(StageEntered) if s.stage is Stage.REQUEST_DONE]
    for one in series:
        begun, ended = one.rows[0].started_ns, one.rows[-1].t_ns
        assert any(stage.arm == one.arm and stage.t_ns < begun for stage in done)
        assert one.marks == ()
        assert (one.edges[0], one.end) == (0, pytest.approx((ended - begun) / 1e9))


def test_the_player_of_the_cell_is_drawn_when_its_fold_is_opened(
    browser: Any, ran: Ran, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html(ran.shown, ran.results, "en"), encoding="utf-8")
    one = Opened(browser, file, viewport={"width": 1280, "height": 900})
    canvas = one.page.locator(".side canvas").first
    assert not canvas.is_visible()
    one.page.click("#player")
    until(one.page, "document.querySelector('.side canvas').width > 300")
    assert canvas.is_visible()
    assert one.complaints == []
    one.context.close()


@needs_axe
def test_axe_finds_no_serious_violation(browser: Any, ran: Ran, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html(ran.shown, ran.results, "en"), encoding="utf-8")
    assert not violations(browser, file)
