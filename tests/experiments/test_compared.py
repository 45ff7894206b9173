"""Two runs of an experiment side by side: figures of each cell, on the console and as a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import run, tiny_config

from experiment.commands.main import main
from experiment.compare.results import Comparison
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The same requests in blocks of eight and of four."""
    place = tmp_path_factory.mktemp("compared")
    small = {
        "experiment__values": ["short"],
        "experiment__options": {"total": 64, "short": [[9, 4]]},
        "experiment__repeats": 3,
        "cache__max_length": 32,
        "cache__budget": 4 * 32 * 1024,
        "run__arms": ["paged"],
    }
    for name, size in (("wide", 8), ("narrow", 4)):
        run(tiny_config("lengths", cache__block_size=size, **small), place / name)
    return [str(place / name) for name in ("wide", "narrow")]


def read(out: Path) -> Comparison:
    return Comparison.model_validate_json((out / "compare.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("lang", LANGUAGES)
def test_two_runs_of_an_experiment_are_compared_cell_by_cell(
    runs: list[str],
    tmp_path: Path,
    lang: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no name is broken between lines
    words = ["compare", *runs, "--lang", lang, "--details", "--out", str(tmp_path)]
    assert main(words) == ExitCode.OK
    printed, t = " ".join(capsys.readouterr().out.split()), Translator(lang)
    assert t("experiments.axis.shape") in printed
    assert t("metric.waste") in printed
    assert "{" not in printed
    rows = {row.id.rpartition("/")[2]: row for row in read(tmp_path).rows}
    assert rows["waste"].id == "lengths/shape=short/paged/waste"
    assert rows["waste"].verdict == "better"
    assert rows["waste"].left is not None
    assert rows["waste"].left.value
    assert rows["steps"].verdict == "same"
    # Run without its processes, nothing names the machine, so that times say nothing.
    assert rows["tokens_per_s"].verdict == "not_comparable"
    told = [(d.name, d.left, d.right) for d in read(tmp_path).differences]
    assert told == [("cache.block_size", 8, 4)]
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    assert Translator("en")("metric.waste") in page
    assert Translator("zh")("metric.waste") in page
