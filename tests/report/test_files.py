"""The files of a report, plots too: what each holds, and what happens where one is not written."""

from __future__ import annotations

import csv
import re
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from sample import BLOCK, LENGTHS, MAX_LENGTH, NEW, SLOT_BYTES, make_record

from experiment.analysis.conclusions import evaluate
from experiment.analysis.metrics import METRICS
from experiment.files.os_errors import FilesError
from experiment.record.log import read_record
from experiment.report.facts.series import all_series
from experiment.report.facts.tables import summary_csv, timeline_csv
from experiment.report.files import plots as fonts
from experiment.report.files import write as files
from experiment.report.files.plots import PAINT, draw_plots
from experiment.report.files.write import run_reports, write_files
from experiment.text import Translator
from kvsim.accounting.ledger import SlotState

NAMES = {
    "benchmark-bigger-is-better.json",
    "benchmark-smaller-is-better.json",
    "report.html",
    "summary.csv",
    "timeline.csv",
    "readings.csv",
    "plots/slots-over-time.svg",
    "plots/slots-over-time.png",
    "plots/slots-at-peak.svg",
    "plots/slots-at-peak.png",
}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_file_is_written_and_nothing_is_left_over(report: Path) -> None:
    found = {str(p.relative_to(report)) for p in report.rglob("*") if p.is_file()}
    assert found == NAMES | {"events.jsonl"}
    assert all((report / name).stat().st_size > 100 for name in NAMES)


def test_summary_counts_what_the_plans_say(report: Path) -> None:
    table = {row["arm"]: row for row in rows(report / "summary.csv")}
    live = sum(length + NEW - 1 for length in LENGTHS)
    for arm in ("contiguous.batch", "paged"):
        assert int(table[arm]["peak_live_slots"]) == live
        assert int(table[arm]["peak_live_bytes"]) == live * SLOT_BYTES
    assert int(table["contiguous.batch"]["peak_allocated_slots"]) == len(LENGTHS) * MAX_LENGTH
    blocks = sum(-(-(length + NEW - 1) // BLOCK) for length in LENGTHS)
    assert int(table["paged"]["peak_allocated_slots"]) == blocks * BLOCK


def test_what_holds_is_1(report: Path) -> None:
    results = evaluate(read_record(report))
    arms = [
        arm.model_copy(update={"watch": arm.watch.model_copy(update={"settled": True})})
        for arm in results.arms
    ]
    text = summary_csv(results.model_copy(update={"arms": arms}))
    assert {row["device_settled_before"] for row in csv.DictReader(text.splitlines())} == {"1"}


def test_unknown_is_an_empty_cell(report: Path) -> None:
    table = {row["arm"]: row for row in rows(report / "summary.csv")}
    failed = table["contiguous.sequential"]
    assert failed["status"] == "failed"
    assert failed["peak_live_slots"] == ""
    assert failed["kv_tensor_bytes"] == ""
    assert failed["generate_s"] == ""
    unread = [r for r in rows(report / "readings.csv") if r["channel"] == "torch.allocated"]
    assert unread
    assert {r["value_bytes"] for r in unread} == {""}
    assert {r["unknown_because"] for r in unread} == {"memory.torch_cpu"}


def test_timeline_has_each_step_and_states_that_sum_to_the_pool(report: Path) -> None:
    table = rows(report / "timeline.csv")
    assert sum(row["arm"] == "contiguous.batch" for row in table) == NEW + 1
    states = ("live", "cached", "padding", "finished", "unwritten", "rounding", "hole", "engine",
              "watermark", "free")  # fmt: skip
    for row in table:
        assert sum(int(row[f"{s}_slots"]) for s in states) == int(row["reserved_slots"])


def test_columns_name_their_units(report: Path) -> None:
    plain = {
        "arm", "status", "reason", "problems", "step", "stage", "request", "channel", "scope",
        "unknown_because", "wall_clock", "witnessed_steps", "threads", "device_name",
        "requests_that_fit_in_budget", "tokens", "running", "waiting", "preempted", "kv_dtype",
        "process_variation_channel", "kv_channels_agree", "kv_channels_judged",
            "shared_blocks_peak",
            "process_peak_channel", "device_settled_before", "device_channel", "cpu_cores_busy",
            "cpu_cores_of_others", "cpu_cores_usable",
            "gpu_processes_of_others_before", "gpu_processes_of_others_after",
            "watching_share_of_usable_cores",
    }  # fmt: skip
    plain |= {name for name, each in METRICS.items() if each.unit in ("count", "mean")}
    for name in ("summary.csv", "timeline.csv", "readings.csv"):
        for column in rows(report / name)[0]:
            assert column in plain or column.endswith(("_slots", "_bytes", "_s", "_ns", "_share"))


def test_wall_clock_follows_the_offset_of_the_run(report: Path) -> None:
    first = rows(report / "readings.csv")[0]
    assert first["wall_clock"].endswith("+01:00")


def test_one_failure_does_not_take_the_other_files_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError

    record = make_record(tmp_path)
    results = evaluate(record)
    monkeypatch.setattr(files, "summary_csv", broken)
    with pytest.raises(FilesError) as caught:
        write_files(tmp_path, run_reports(record, results, "en"))
    assert [name for name, _ in caught.value.failures] == ["summary.csv"]
    written = {str(path.relative_to(tmp_path)) for path in caught.value.written}
    assert written == NAMES - {"summary.csv"}
    assert not (tmp_path / "summary.csv").exists()


def test_a_run_without_arms_still_has_a_report(tmp_path: Path) -> None:
    record = make_record(tmp_path, arms=())
    assert len(write_files(tmp_path, run_reports(record, evaluate(record), "zh"))) == len(NAMES)
    assert timeline_csv(record, all_series(record)).strip() == ""


def test_reports_are_the_same_every_time(report: Path, tmp_path: Path) -> None:
    record = make_record(tmp_path)
    write_files(tmp_path, run_reports(record, evaluate(record), "en"))
    for name in NAMES:
        assert (tmp_path / name).read_bytes() == (report / name).read_bytes(), name


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
    faces = [each for each in caplog.records if each.name.startswith("matplotlib")]
    assert not faces  # nor a complaint about a missing face
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
    assert Translator("en")("plot.no_chinese_font") in shown
