"""Lines of mixed Chinese and Latin text."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from experiment.report.wrap import Words, wrap

TEXT = "分页缓存浪费了 10.9 %（21 KiB）。请求可用 HF_ENDPOINT 指定镜像，或用 --model 给出目录。"


@pytest.mark.parametrize("width", range(20, 80))
def test_lines_fit_and_nothing_is_lost(width: int) -> None:
    lines = wrap(TEXT, width).split("\n")
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == TEXT.replace(" ", "")


@pytest.mark.parametrize("width", range(20, 80))
def test_no_line_begins_with_a_closing_mark_and_units_stay_with_their_number(width: int) -> None:
    for line in wrap(TEXT, width).split("\n"):
        assert not line.startswith(("，", "。", "）", "%", "KiB"))


@pytest.mark.parametrize("width", range(20, 80))
def test_an_option_stays_whole(width: int) -> None:
    told = "请提高 --max-length，或用 --long-prefill-token-threshold 给出较小的值。"
    lines = wrap(told, width).split("\n")
    assert sum("--max-length" in line for line in lines) == 1
    assert not any(line.endswith("-") for line in lines)


def test_english_breaks_at_spaces() -> None:
    assert wrap("one two three", 8) == "one two\nthree"


@pytest.mark.parametrize("width", range(24, 80, 4))
def test_words_in_a_table_are_never_cut_off_and_leave_figures_whole(width: int) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", overflow="fold")
    table.add_row(Words(TEXT), Words("819,200 B"))
    out = Console(file=io.StringIO(), width=width, color_system=None)
    out.print(table)
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert "819,200 B" in shown
    assert "".join(shown.replace("819,200 B", "").split()) == TEXT.replace(" ", "")
