"""The page of an experiment says where each of its numbers came from, too."""

from __future__ import annotations

from pathlib import Path

from in_process import run, tiny_config
from keyed_page import assert_keys_hold, body_of, facts_of, numbers_without_key

from experiment.record import write_summary
from experiment.report.html import report_html


def test_every_number_of_an_experiment_is_what_the_record_says(tmp_path: Path) -> None:
    config = tiny_config(
        "block-size",
        experiment__values=[1, 16],
        experiment__repeats=2,
        workload__lengths=[[5, 4], [17, 6], [30, 3]],
        cache__max_length=64,
    )
    ran = run(config, tmp_path / "run")
    results = ran.results.model_dump(mode="json")
    write_summary(ran.record.directory, {"results": results})
    body = body_of(report_html(ran.shown, ran.results, "en"))
    facts = facts_of(ran.shown)
    assert_keys_hold(body, facts, ran.shown)
    assert not numbers_without_key(body)
    keys = [node.get("data-key") for node in body.iter() if node.get("data-key")]
    assert sum(key.startswith("results.experiment.cells.1.") for key in keys) > 10
