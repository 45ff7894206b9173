"""The console of a benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest
from full_tables import full_bench

from experiment.bench.data import read_data, write_data
from experiment.report.facts.bench_tables import all_tables
from experiment.report.facts.texts import arm_name
from experiment.text import DASH, Translator
from experiment.text.errors import UserError


def test_who_has_no_blocks_has_a_dash_for_what_only_blocks_can_suffer() -> None:
    t, data = Translator("en"), full_bench()
    ours = next(row for row in data.rows if (row.workload, row.arm) == ("A", "paged"))
    data.rows.append(ours.model_copy(update={"arm": "contiguous.batch", "preemptions": 0}))
    tables = [cells for cells in all_tables(t, data) if t("metric.preemptions") in cells.header]
    told = [{row[0]: row[-2:] for row in cells.rows} for cells in tables]
    assert told[0][arm_name(t, "contiguous.batch")] == [DASH, DASH]
    assert told[0][arm_name(t, "paged")] == ["0", "0"]
    assert [t("bench.note_preempted") in cells.notes for cells in tables] == [True, False]


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = write_data(tmp_path, full_bench())
    assert read_data(path).schema_version == 1
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"schema_version": 1', '"schema_version": 99'), encoding="utf-8")
    with pytest.raises(UserError) as refused:
        read_data(path)
    assert refused.value.text.key == "error.bench.bad_file"
