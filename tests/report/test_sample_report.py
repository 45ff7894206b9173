"""Report and pictures that lie in the repository: real, small, and silent on the machine."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_keys import body_of, embedded
from sample import make_record
from sample_report import WITHHELD, without_host

from experiment.config.reading import load_config
from experiment.events import EnvironmentProbed, RunStarted
from experiment.text import DASH

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "docs/sample/report.html"
README = {"en": ROOT / "README.md", "zh": ROOT / "README.zh.md"}
HOME = re.compile(r"/(home|root|tmp|Users|work|mnt)/")


def sample_data() -> dict[str, Any]:
    """The data that the page carries."""
    data: dict[str, Any] = embedded(body_of(SAMPLE.read_text(encoding="utf-8")))
    return data


def test_the_sample_is_a_whole_default_run_in_both_languages() -> None:
    page = SAMPLE.read_text(encoding="utf-8")
    assert len(page.encode()) < 1_500_000
    assert page.count('lang="zh"') > 200
    data = sample_data()
    results = data["results"]
    assert results["status"] == "complete"
    arms = {arm["arm"]: arm for arm in results["arms"]}
    assert {"contiguous.batch", "slabs", "paged"} <= arms.keys()
    length = load_config(None, {}).cache.max_length
    counted = {name: (arm["peak"]["allocated"], arm["peak"]["live"]) for name, arm in arms.items()}
    assert counted["contiguous.batch"] == (4 * length, 323)
    assert counted["paged"] == (352, 323)


def test_the_sample_names_no_machine_and_no_place() -> None:
    page = SAMPLE.read_text(encoding="utf-8")
    assert not HOME.search(page)
    results = sample_data()["results"]
    machine = results["environment"]
    assert machine["cpu"]["model"] in (None, DASH)
    assert not re.search(r"\d", machine["system"]["kernel"] or "")


def test_what_names_a_machine_is_left_out_of_a_sample(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    facts = {
        "system": {"kernel": "6.1-secret", "os": "Linux"}, "device": "cpu",
        "cpu": {"model": "secret", "usable_cores": 3}, "device_name": "secret",
    }  # fmt: skip
    start = record.started.model_copy(update={"command": ["--out", "/secret", "--yes"]})
    probed = EnvironmentProbed(environment=facts)
    shown = without_host(replace(record, events=(start, probed, *record.events[2:])))
    assert "secret" not in str(shown.events[:2])
    probed_as = shown.first(EnvironmentProbed)
    assert probed_as is not None
    assert probed_as.environment["device_name"] == "CPU"  # the same in each language
    assert all(probed_as.environment[section][name] == DASH for section, name in WITHHELD)
    assert shown.first(RunStarted) == start.model_copy(update={"command": ["--yes"]})
    assert len(shown.events) == len(record.events)


@pytest.mark.parametrize("lang", README)
def test_a_readme_shows_the_picture_in_its_language_before_anything_else_is_said(lang: str) -> None:
    text = README[lang].read_text(encoding="utf-8")
    shown = re.search(r"!\[[^\]]+\]\((docs/pictures/[^)]+)\)\]\((docs/sample/[^)]+)\)", text)
    assert shown is not None
    assert text[: shown.start()].count("\n") < 20
    assert ROOT / shown[2] == SAMPLE
    assert_picture(shown[1], lang)


@pytest.mark.parametrize("lang", README)
def test_a_readme_shows_the_picture_of_one_budget_in_its_language(lang: str) -> None:
    text = README[lang].read_text(encoding="utf-8")
    shown = re.search(r"!\[[^\]]+\]\((docs/pictures/capacity[^)]+)\)", text)
    assert shown is not None
    assert_picture(shown[1], lang)


def assert_picture(path: str, lang: str) -> None:
    """A picture of a page in this language, small enough for a repository."""
    picture = (ROOT / path).read_bytes()
    assert f"-{lang}." in path
    assert len(picture) < 300_000
    width, height = struct.unpack(">II", picture[16:24])
    assert picture[:4] == b"\x89PNG"
    assert 800 < width < 1400
    assert 300 < height <= 900
