"""How a run was made, at the end of its page: the resolved config, the command, the data inside."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_keys import body_of
from sample import BUDGET, PROMPTS, make_record

from experiment.analysis.conclusions import evaluate
from experiment.events import EnvironmentProbed
from experiment.record.log import Record
from experiment.report.page.page import report_html
from experiment.report.render import _summary
from experiment.text import LANGUAGES, Translator

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
    assert code(body, "command").endswith(LONG[:1000] + "…' --yes")
    said = ["command", "config", "workload.requests.*.token_ids", "workload.requests.*.prompt"]
    assert inside(body)["left_out"] == said
    assert ", ".join(said) in ["".join(node.itertext()) for node in body.iter("code")]


@pytest.mark.parametrize("sign", ["\u202e", "\u2066", "\u061c", "\x85", "\u2029", "\ufdd0"])
def test_no_sign_of_a_prompt_changes_how_the_config_around_it_reads(
    tmp_path: Path, sign: str
) -> None:
    hostile = f"</pre>{sign}\x00"
    record = make_record(tmp_path, prompts=(hostile, *PROMPTS[1:]))
    shown = code(drawn(record), "config")
    assert sign not in shown
    assert json.loads(shown)["workload"]["prompts"][0] == hostile


@pytest.mark.parametrize(
    "word",
    [
        "\u202ecod\u202c",
        "a\u200bb",
        "\u061c",
        "\x1b[2J\r",
        "\U000e0041 it's",
        "\\\u2066\n",
        "\udcff1",
    ],
)
def test_a_command_is_pasted_as_it_is_read(tmp_path: Path, word: str) -> None:
    record = make_record(tmp_path)
    given = ["--prompt", word, "it's\nplain", "--yes"]
    started = record.started.model_copy(update={"command": given})
    shown = code(drawn(replace(record, events=(started, *record.events[1:]))), "command")
    assert all(sign.isprintable() or sign == "\n" for sign in shown)
    words = shown[shown.index(" --prompt ") :]
    done = subprocess.run(
        ["bash", "-c", "printf '%s\\0'" + words],
        env={"LC_ALL": "C.UTF-8"}, capture_output=True, check=True,
    )  # fmt: skip
    assert [os.fsdecode(each) for each in done.stdout.split(b"\0")[:-1]] == given


@pytest.mark.parametrize(("word", "said"), [("中文 $'plain'", 0), ("\u2067", 1)])
def test_numbers_in_a_command_are_explained_where_there_are_any(
    tmp_path: Path, word: str, said: int
) -> None:
    record = make_record(tmp_path)
    started = record.started.model_copy(update={"command": ["--prompt", word]})
    body = drawn(replace(record, events=(started, *record.events[1:])))
    paragraphs = ["".join(node.itertext()) for node in body.iter("p")]
    for lang in LANGUAGES:
        text = Translator(lang)("report.about.numbered")
        assert sum(text in each for each in paragraphs) == said


def test_what_was_withheld_from_a_copy_is_not_said_to_be_missing(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    machine = {"system": {"os": "Linux", "kernel": None, "machine": "x86_64"}, "cpu": {}}
    rows = {}
    for withheld in ([], ["cpu.model", "system.kernel"]):
        probed = EnvironmentProbed(environment=machine | {"withheld": withheld})
        copy = replace(record, events=(record.events[0], probed, *record.events[2:]))
        texts = ("".join(node.itertext()) for node in drawn(copy).iter("dl"))
        rows[len(withheld)] = " ".join(" ".join(texts).split())
    assert "Processor处理器— not found未找到" in rows[0]
    assert "Linux x86_64Python" in rows[0]
    whole, part = (
        "".join(Translator(lang)(f"report.environment.{name}") for lang in ("en", "zh"))
        for name in ("withheld", "partly_withheld")
    )
    assert f"Processor处理器— {whole}" in rows[2]
    assert f"Linux x86_64 {part}Python" in rows[2]
    assert "GPU driverGPU 驱动— not found未找到" in rows[2]
