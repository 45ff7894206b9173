"""run.json, its schema and docs/record.md say the same; and so does the file of a real run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from event_makers import whole_run
from guide_pages import ROOT, read
from pydantic import VERSION, BaseModel

from experiment.analysis.experiment_results import CellArm
from experiment.analysis.percentiles import is_enough, percentile
from experiment.analysis.results import ArmResult, Claim, Gain, RequestResult, TokenComparison
from experiment.analysis.schema import RunResults, RunSummary, schema
from experiment.commands import main as cli
from experiment.events import encode
from experiment.replay.step_rows import StepRow
from experiment.text.errors import ExitCode

PAGE = "docs/record.md"
TABLES: dict[str, tuple[type[BaseModel], ...]] = {
    "The whole file": (RunSummary,),
    "results": (RunResults,),
    "results.arms[]": (ArmResult,),
    "results.arms[].peak and .mean": (StepRow,),
    "results.arms[].requests[]": (RequestResult,),
    "results.tokens[]": (TokenComparison,),
    "results.claims[] and results.gains[]": (Claim, Gain),
    "results.experiment.cells[].arms[]": (CellArm,),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file that the program writes for a log of two arms."""
    place = tmp_path_factory.mktemp("run")
    log = "".join(encode(event) + "\n" for event in whole_run())
    (place / "events.jsonl").write_text(log, encoding="utf-8")
    assert cli.main(["render", str(place), "--lang", "en"]) == ExitCode.OK
    return read_json(place / "run.json")


def read_json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def as_described(found: dict[str, Any]) -> dict[str, Any]:
    """What the described fields take from a file; the same again where they take everything."""
    return RunSummary.model_validate(found).model_dump(mode="json", exclude_unset=True)


def test_every_field_that_is_written_is_described(written: dict[str, Any]) -> None:
    assert as_described(written) == written


def test_the_program_on_the_page_reads_a_run(
    written: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "reports/quick").mkdir(parents=True)
    (tmp_path / "reports/quick/run.json").write_text(json.dumps(written), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"^```python\n(.*?)^```", read(PAGE), re.MULTILINE | re.DOTALL)
    exec(compile(program, PAGE, "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [arm["arm"] for arm in written["results"]["arms"]]
    assert all(line.endswith("slots wasted") for line in lines)


@pytest.mark.skipif(
    f"pydantic=={VERSION}" not in read("constraints.txt").split(),
    reason="each version of pydantic writes a schema in its own way",
)
def test_the_committed_schema_is_that_of_the_classes() -> None:
    committed = read_json(ROOT / "docs/run.schema.json")
    assert committed == json.loads(json.dumps(schema())), "it is old: make schema"


@pytest.mark.parametrize("title", TABLES)
def test_the_page_explains_every_field_and_no_other(title: str) -> None:
    section = read(PAGE).split(f"\n## {title}\n")[1].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    explained = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(explained) == len(set(explained))
    fields = [{*each.model_fields, *each.model_computed_fields} for each in TABLES[title]]
    assert set(explained) == set().union(*fields)


@pytest.mark.parametrize(("percent", "least"), [(50, 2), (90, 10), (95, 20), (99, 100), (100, 1)])
def test_of_too_few_values_none_is_given(percent: int, least: int) -> None:
    assert is_enough(least, percent)
    assert not is_enough(least - 1, percent)
    assert percentile(range(1, least), percent) is None


def test_one_value_lies_above_it() -> None:
    """In any order: 19 of 20 do not exceed the 95th percentile."""
    assert percentile(range(20, 0, -1), 95) == 19
    assert percentile(range(10, 0, -1), 90) == 9
    assert percentile([3.0, 1.0, 2.0], 100) == 3.0
    assert percentile([], 100) is None
