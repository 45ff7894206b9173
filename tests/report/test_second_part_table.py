"""The page on speed: equal concurrency beside more requests in the same memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from data_keys import body_of, by_id, keyed_nodes

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Results
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.replay.arm_events import arms_of
from experiment.report.facts.series import all_series
from experiment.report.page.memory_bars import hero
from experiment.report.page.page import report_html
from experiment.report.page.parts import not_measured

LOG = Path(__file__).parents[1] / "corpus" / "logs" / "quick" / EVENTS_FILE
LOAD = re.compile(r'"others_cores":[\d.]+')
SECOND = "report.checks.second_part"


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A recorded run with a second part, as on a machine without background load."""
    directory = tmp_path_factory.mktemp("quiet")
    log = LOAD.sub('"others_cores":0.0', LOG.read_text(encoding="utf-8"))
    (directory / EVENTS_FILE).write_text(log, encoding="utf-8")
    return read_record(directory)


def speed(results: Results) -> dict[str, Any]:
    """Figures of the first screen's fact on speed."""
    first = hero(results)
    assert first is not None
    found = [fact.text for fact, _ in first.facts if "throughput" in (fact.key or "")]
    assert len(found) == 1
    assert not isinstance(found[0], str)
    return found[0].params


def with_running(results: Results, arm: str, running: float) -> Results:
    arms = [
        one.model_copy(update={"mean_running": running}) if one.arm == arm else one
        for one in results.arms
    ]
    return results.model_copy(update={"arms": arms})


def test_the_first_screen_has_both_factors_and_whole_numbers_of_requests(quiet: Record) -> None:
    results = evaluate(quiet)
    figures = speed(results)
    arms = {arm.arm: arm for arm in results.arms}
    slabs, paged = arms["slabs"], arms["paged"]
    assert slabs.second_part is not None
    assert paged.second_part is not None
    assert slabs.tokens_per_s
    assert paged.tokens_per_s
    assert slabs.second_part.tokens_per_s
    assert paged.second_part.tokens_per_s
    rates = paged.second_part.tokens_per_s, slabs.second_part.tokens_per_s
    assert figures["factor"] == pytest.approx(rates[0] / rates[1])
    assert figures["same"] == pytest.approx(paged.tokens_per_s / slabs.tokens_per_s)
    counts = [figures[name] for name in ("requests", "slabs", "paged")]
    assert counts == [20, 4, 20]
    assert all(isinstance(count, int) for count in counts)


@pytest.mark.parametrize("arm", ["slabs", "paged"])
def test_a_factor_at_unequal_concurrency_is_not_paging_itself(quiet: Record, arm: str) -> None:
    figures = speed(with_running(evaluate(quiet), arm, 9.0))
    assert "same" not in figures
    assert "factor" in figures


def test_the_fold_on_speed_has_both_parts(quiet: Record) -> None:
    body = body_of(report_html(quiet, evaluate(quiet), "en"))
    (fold,) = [
        node for node in body.iter("details") if node.find("summary[@id='gains']") is not None
    ]
    keys = {node.get("data-key") for node in keyed_nodes(fold)}
    assert "results.gains[paged].factor" in keys
    assert "results.claims[throughput].text.params.factor" in keys
    names = ("finished", "running", "generate_s", "tokens_per_s")
    parts = {
        f"results.arms[{arm}].second_part.{name}" for arm in ("slabs", "paged") for name in names
    }
    assert parts <= keys


def test_what_the_second_part_does_not_record_is_listed(quiet: Record) -> None:
    results = evaluate(quiet)
    assert SECOND in [what.key for what, _ in not_measured(results)]
    alone = results.model_copy(update={"arms": [a for a in results.arms if a.arm != "slabs"]})
    assert SECOND not in [what.key for what, _ in not_measured(alone)]


def test_the_growing_cache_of_the_sliders_is_never_without_its_cost(quiet: Record) -> None:
    numbers = by_id(body_of(report_html(quiet, evaluate(quiet), "en")), "what-if-numbers")
    said = [node for node in numbers.iter("p") if "".join(node.itertext()).strip()]
    assert len(said) == 1


def test_the_time_of_the_second_part_is_not_drawn(quiet: Record) -> None:
    """Its steps are not recorded, and the cache is released after it."""
    edges = {one.arm: one.edges for one in all_series(quiet)}
    parts = [events for events in arms_of(quiet) if events.second_part is not None]
    assert [events.arm for events in parts] == ["slabs", "paged"]
    for events in parts:
        first, *_, last = edges[events.arm]
        steps = (events.steps[-1].t_ns - events.steps[0].started_ns) / 1e9
        assert last - first == pytest.approx(steps)
