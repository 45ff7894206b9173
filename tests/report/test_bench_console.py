"""Tables of a benchmark on a narrow terminal: parts of a table, and no figure cut off."""

from __future__ import annotations

from pathlib import Path

import pytest
from full_tables import full_bench

from experiment.bench.data import read_data, write_data
from experiment.i18n import DASH, LANGUAGES, Translator
from experiment.messages import UserError
from experiment.report.bench import BenchConsole, in_parts
from experiment.report.bench_tables import Cells, all_tables
from experiment.report.texts import arm_name

WIDE = Cells("t", ["arm", *"abcd"], [["one", *(f"{n}.5 (1.25 … 2.75)" for n in range(4))]] * 2)


def test_columns_without_room_go_on_beside_the_first_one_again() -> None:
    narrow, parts = in_parts(WIDE, 50)
    assert parts == [[0, 1, 2], [0, 3, 4]]
    assert narrow.rows[0][2] == "1.5\n(1.25 … 2.75)"
    assert in_parts(WIDE, 200) == (WIDE, [[0, 1, 2, 3, 4]])


def test_a_column_that_fits_nowhere_stands_alone_beside_the_first() -> None:
    assert in_parts(WIDE, 1)[1] == [[0, 1], [0, 2], [0, 3], [0, 4]]


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_figure_is_printed_whole(
    lang: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    data = full_bench()
    BenchConsole(lang).show(data)
    printed = capsys.readouterr().out
    for cells in all_tables(Translator(lang), data):
        narrow, _ = in_parts(cells, width)
        for row in narrow.rows:
            figures = [cell for n, cell in enumerate(row) if n and n not in cells.left]
            for line in (line for cell in figures for line in cell.split("\n")):
                assert line in printed, (cells.title, line)


def test_who_has_no_blocks_has_a_dash_for_what_only_blocks_can_suffer() -> None:
    t, data = Translator("en"), full_bench()
    ours = next(row for row in data.rows if (row.workload, row.arm) == ("A", "paged"))
    data.rows.append(ours.model_copy(update={"arm": "contiguous.batch", "preemptions": 0}))
    tables = [cells for cells in all_tables(t, data) if t("bench.column.preempted") in cells.header]
    told = [{row[0]: row[-2:] for row in cells.rows} for cells in tables]
    assert told[0][arm_name(t, "contiguous.batch")] == [DASH, DASH]
    assert told[0][arm_name(t, "paged")] == ["0", "0"]
    assert [t("bench.note_preempted") in cells.notes for cells in tables] == [True, False]


def test_what_would_steer_a_terminal_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    data = full_bench()
    data.rows[0] = data.rows[0].model_copy(update={"arm": "\x1b[31mred"})
    BenchConsole("en").show(data)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[31mred" in printed


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = write_data(tmp_path, full_bench())
    assert read_data(path).schema_version == 1
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"schema_version": 1', '"schema_version": 99'), encoding="utf-8")
    with pytest.raises(UserError) as refused:
        read_data(path)
    assert refused.value.text.key == "error.bench.bad_file"
