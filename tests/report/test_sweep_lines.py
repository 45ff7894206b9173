"""Which lines a sweep's charts have, and that they are worked out of every cell."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from data_keys import body_of
from full_tables import full_sweep

from experiment.report.pages.sweep import MAX_CELLS, setting, sweep_csv, sweep_data, sweep_html
from experiment.report.pages.sweep_lines import DRAWN, sweep_lines
from kvsim.sweep import AXES, MEASURES

AT = {"max": 10.0, "paged": 50.0}


def rows(**axes: list[Any]) -> list[dict[str, Any]]:
    """A cell for each combination; what is live follows from its settings."""
    names = ["id", *AXES, "trace_sha256", "error", "error_params", *MEASURES]
    found = []
    for number, values in enumerate(product(*axes.values())):
        row = dict.fromkeys(names) | dict(zip(axes, values, strict=True)) | {"id": f"c{number}"}
        if row["policy"] == "max":
            row["block_size"] = None
        row["live_percent"] = AT[row["policy"]] + (row["block_size"] or 0) + (row["seed"] or 0)
        found.append(row)
    return found


def drawn(**axes: list[Any]) -> dict[str, Any]:
    made = rows(**axes)
    found = sweep_lines(made, [name for name in AXES if len({row[name] for row in made}) > 1])
    assert found is not None
    return found


def test_a_point_is_the_median_over_what_the_lines_leave_out() -> None:
    found = drawn(policy=["max", "paged"], block_size=[32, 8, 16], seed=[0, 1, 4])
    assert (found["across"], found["by"], found["over"]) == ("block_size", ["policy"], ["seed"])
    assert found["points"] == [8, 16, 32]
    lines = {line["settings"]["policy"]: line["values"]["live"] for line in found["lines"]}
    assert [(p["median"], p["low"], p["high"], p["cells"]) for p in lines["paged"]] == [
        (50 + size + 1, 50 + size, 50 + size + 4, 3) for size in (8, 16, 32)
    ]
    # It knows of no blocks, so that each of its cells counts at each point.
    assert {(p["median"], p["low"], p["high"]) for p in lines["max"]} == {(11, 10, 14)}
    assert all(point is None for point in found["lines"][0]["values"]["rate"])


def test_settings_that_would_make_too_many_lines_are_left_out_but_the_policy_stays() -> None:
    found = drawn(
        policy=["paged", "max"], model=["a", "b", "c", "d"], rate=[1.0, 2.0, 4.0], seed=[0]
    )
    assert (found["across"], found["by"], found["over"]) == ("rate", ["policy"], ["model"])
    found = drawn(policy=["paged", "max"], model=["a", "b", "c"], rate=[1.0, 2.0], seed=[0])
    assert (found["by"], found["over"]) == (["policy", "model"], [])
    assert len(found["lines"]) == 6


def test_names_are_an_axis_where_there_are_no_numbers() -> None:
    found = drawn(policy=["paged", "max"], seed=[0])
    assert (found["across"], found["numbers"]) == ("policy", False)
    assert found["points"] == ["paged", "max"]
    assert [point["median"] for point in found["lines"][0]["values"]["live"]] == [50, 10]
    assert sweep_lines(rows(policy=["paged"], seed=[0]), []) is None


def test_lines_are_of_all_cells_though_the_page_lists_the_first() -> None:
    many = rows(policy=["paged"], block_size=[8, 16], seed=list(range(MAX_CELLS)))
    data = sweep_data(many)
    assert len(data["cells"]) == MAX_CELLS
    (line,) = data["lines"]["lines"]
    assert [point["cells"] for point in line["values"]["live"]] == [MAX_CELLS, MAX_CELLS]
    assert set(line["values"]) == set(DRAWN)


def test_a_refusal_is_a_sentence_on_the_page_and_a_code_in_the_table() -> None:
    data, table = sweep_data(full_sweep()), sweep_csv(full_sweep())
    assert "error_params" not in table
    assert table.count("pool_too_small") == 2
    whys = [cell["why"] for cell in data["cells"]]
    assert [why["key"] for why in whys if why] == ["sweep.refused", "sweep.refused"]
    assert whys[0]["params"]["why"]["params"] == {"budget": 1024, "needed": 2**20}


@pytest.mark.parametrize("axis", ["requests", "seed"])
def test_thousands_are_set_apart_wherever_a_setting_stands_but_in_a_name(axis: str) -> None:
    varied = [
        row | {"id": f"{row['id']}-{value}", "requests": 30_000, axis: value}
        for row in full_sweep() for value in (1000, 20_000)
    ]  # fmt: skip
    body = body_of(sweep_html(sweep_data(varied), sweep_csv(varied), "en"))
    spoken = (node for node in body.iter() if node.tag != "script")
    shown = "\n".join(each for node in spoken for each in (node.text, node.tail) if each)
    told = [setting(axis, value) for value in (1000, 20_000)]
    assert told == (["1000", "20000"] if axis == "seed" else ["1,000", "20,000"])
    for value, text in zip((1000, 20_000), told, strict=True):
        assert re.search(rf"(?<![\d,]){text}(?![\d,])", shown)
        assert axis == "seed" or str(value) not in shown
