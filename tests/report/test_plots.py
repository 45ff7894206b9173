"""The plots: one for each language, drawn from the record, with the right sizes and no warnings."""

from __future__ import annotations

import re
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.report.facts.series import all_series
from experiment.report.files import fonts
from experiment.report.files.plots import PAINT, draw_plots
from kvsim.accounting.ledger import SlotState

HAN = re.compile(r"[\u4e00-\u9fff]")


def plots(directory: Path, lang: str) -> dict[str, bytes]:
    record = make_record(directory)
    made = draw_plots(lambda: all_series(record), evaluate(record), lang)
    return {name: draw() for name, draw in made}


def words(svg: bytes) -> str:
    return " ".join("".join(node.itertext()) for node in ET.fromstring(svg).iter() if node.text)


def test_text_stays_text_and_names_every_arm_with_steps(report: Path) -> None:
    for name in ("slots-over-time", "slots-at-peak"):
        svg = (report / f"plots/{name}.svg").read_bytes()
        assert "Transformers (padded batch)" in words(svg)
        assert "Paged engine" in words(svg)
        assert b"<dc:date>" not in svg
    assert (report / "plots/slots-at-peak.png").read_bytes().startswith(b"\x89PNG")


def test_every_state_has_a_colour_and_waste_has_hatches_of_its_own() -> None:
    assert set(PAINT) == {state.value for state in SlotState}
    hatched = [PAINT[s][1] for s in ("padding", "finished", "unwritten", "rounding")]
    assert len(set(hatched)) == len(hatched)
    assert all(hatched)


def test_chinese_where_a_font_can_write_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if fonts.chinese_font() is None:
        pytest.skip("no Chinese font is installed")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of every glyph that a font lacks
        drawn = plots(tmp_path, "zh")
    assert not caplog.records  # nor a complaint about a missing face
    assert "分页引擎" in words(drawn["slots-at-peak.svg"])


def test_english_with_a_note_where_no_font_writes_chinese(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "CHINESE", ("No Such Font",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = plots(tmp_path, "zh")
    shown = words(drawn["slots-over-time.svg"])
    assert not HAN.search(shown)
    assert "No Chinese font is installed" in shown
