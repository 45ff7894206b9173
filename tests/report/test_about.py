"""How a run was made, at the end of its page: the resolved config, the command, the data inside."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from keyed_page import body_of
from sample import BUDGET, PROMPTS, make_record

from experiment.conclusions import evaluate
from experiment.drawing import _summary
from experiment.record import Record
from experiment.report.html import report_html

ASKED: dict[str, Any] = {
    "model": {"dtype": "auto"}, "cache": {"budget": "auto"}, "run": {"device": "auto"},
}  # fmt: skip
LONG = "W" * 1_000_000


def drawn(record: Record) -> Any:
    """The body of the page of a run."""
    return body_of(report_html(record, evaluate(record), "en"))


def code(body: Any, key: str) -> str:
    """What stands in the block with this key."""
    (found,) = [node for node in body.iter("pre") if node.get("data-key") == key]
    return "".join(found.itertext())


def inside(body: Any) -> dict[str, Any]:
    """The data that the page carries."""
    script = next(node for node in body.iter("script") if node.get("id") == "run-data")
    return dict(json.loads(script.text))


def test_the_config_on_the_page_is_that_of_run_json_without_what_was_left_open(
    tmp_path: Path,
) -> None:
    record = make_record(tmp_path, config=ASKED)
    shown = json.loads(code(drawn(record), "config"))
    assert shown == _summary(evaluate(record), record)["config"]
    assert shown["model"]["dtype"] == "float32"
    assert shown["run"]["device"] == "cpu"
    assert shown["cache"]["budget"] == BUDGET
    assert shown["workload"]["prompts"] == list(PROMPTS)


def test_the_data_inside_a_page_has_the_fields_of_run_json(tmp_path: Path) -> None:
    record = make_record(tmp_path, config=ASKED)
    held, written = inside(drawn(record)), _summary(evaluate(record), record)
    assert {name: held[name] for name in written} == written
    assert held["left_out"] == ["workload.requests.*.token_ids"]


def test_long_prompts_of_a_config_and_a_command_are_cut_and_the_page_says_so(
    tmp_path: Path,
) -> None:
    record = make_record(tmp_path, prompts=(LONG, *PROMPTS[1:]))
    started = record.started.model_copy(update={"command": ["--prompt", LONG, "--yes"]})
    record = replace(record, events=(started, *record.events[1:]))
    page = report_html(record, evaluate(record), "en")
    assert len(page) < 600_000
    assert LONG[:3000] not in page
    body = body_of(page)
    (first, *others) = json.loads(code(body, "config"))["workload"]["prompts"]
    assert first == LONG[:1000] + "…"
    assert others == list(PROMPTS[1:])
    assert code(body, "run.command").endswith(LONG[:1000] + "…' --yes")
    said = ["command", "config", "workload.requests.*.token_ids", "workload.requests.*.prompt"]
    assert inside(body)["left_out"] == said
    assert ", ".join(said) in ["".join(node.itertext()) for node in body.iter("code")]


@pytest.mark.parametrize("sign", ["\u202e", "\u2066", "\x85", "\u2029", "\ufdd0"])
def test_no_sign_of_a_prompt_changes_how_the_config_around_it_reads(
    tmp_path: Path, sign: str
) -> None:
    hostile = f"</pre>{sign}\x00"
    record = make_record(tmp_path, prompts=(hostile, *PROMPTS[1:]))
    shown = code(drawn(record), "config")
    assert sign not in shown
    assert json.loads(shown)["workload"]["prompts"][0] == hostile
