"""Lines of mixed Chinese and Latin text."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from experiment.report.console.wrap import wrap

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


def test_a_word_is_broken_only_where_it_fits_no_line_and_no_line_begins_with_its_mark() -> None:
    assert wrap("路径 /data/runs，见下", 9) == "路径\n/data/run\ns，见下"
    assert wrap("a /12345678/x", 12) == "a\n/12345678/x"


def test_both_ends_of_a_range_stay_together() -> None:
    assert wrap("rate 1.25 GiB … 2.50 GiB here", 22) == "rate\n1.25 GiB … 2.50 GiB\nhere"
