"""An arm looks the same in every chart, and stands at the same place in every table."""

from __future__ import annotations

import random
import re
from importlib import resources
from xml.etree import ElementTree

import pytest

from experiment.analysis.experiment_results import (
    CellArm,
    CellResult,
    ExperimentResult,
    FigureInfo,
    FigureValue,
)
from experiment.config.arms import ARMS, in_order
from experiment.report.facts.arm_series import SERIES, arm_series
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.experiment import ARENAS
from experiment.report.page.experiment import experiment_charts

CSS = (resources.files("experiment.report") / "templates/report.css").read_text("utf-8")
# Of graphics beside what they lie on, as WCAG 2.2 (1.4.11) asks.
LEAST_CONTRAST = 3.0
LADDER = tuple(ARMS)


@pytest.mark.parametrize("known", [LADDER, ("slabs", "paged")])
def test_arms_of_ones_own_get_what_is_left(known: tuple[str, ...]) -> None:
    names = [*known, *(f"own.{n}" for n in range(SERIES - len(known)))]
    found = arm_series(names)
    assert sorted(found.values()) == list(range(SERIES))
    assert all(arm_series([arm])[arm] == found[arm] for arm in known)
    # More than there are colours share one, and none of them with an arm of the ladder here.
    more = arm_series([*names, "own.last"])
    assert known == LADDER or more["own.last"] not in {more[arm] for arm in known}


def _light(colour: str) -> float:
    """Relative luminance of ``#rrggbb``."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_line_is_seen_in_either_theme() -> None:
    themes = re.findall(r"\{\s*color-scheme: \w+;(.*?)\}", CSS, re.DOTALL)
    assert len(themes) == 3
    for theme in themes:
        named = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", theme))
        paper = _light(named["paper"])
        colours = [named[f"line-{number}"] for number in range(SERIES)]
        assert len(set(colours)) == SERIES
        for colour in colours:
            ends = sorted((_light(colour), paper))
            assert (ends[1] + 0.05) / (ends[0] + 0.05) >= LEAST_CONTRAST, colour


def _result(*arms: str) -> ExperimentResult:
    """Two cells; the second has the arms the other way round."""

    def cell(index: int, names: tuple[str, ...]) -> CellResult:
        made = [
            CellArm(arm=name, status="finished", reason=None, repeats=3,
                    figures={"steps": FigureValue(value=index + 1)})
            for name in names
        ]  # fmt: skip
        return CellResult(
            index=index, values={"requests": index + 1}, requests=4, max_length=64, block_size=4,
            budget_bytes=1024, arms=made,
        )  # fmt: skip

    info = FigureInfo(figure="steps", unit="count", kind="count", better="less")
    return ExperimentResult(
        name="capacity", size="full", repeats=3, cells_planned=2, focus=1, figures=[info],
        charts=["steps"], cells=[cell(0, arms), cell(1, arms[::-1])], findings=[], problems=[],
        notes=[], without=[],
    )  # fmt: skip


def _legend(*arms: str) -> dict[str, int]:
    """Name and number of every line, in the order of the legend."""
    (chart,) = experiment_charts(Bilingual("en"), _result(*arms)).values()
    figure = ElementTree.fromstring(chart)
    number = re.compile(r"series (?:over )?s(\d)")
    legend = {
        "".join(item.find("bdi/*[@lang='en']").itertext()):  # type: ignore[union-attr]
            int(number.findall(" ".join(node.get("class") or "" for node in item.iter()))[0])
        for item in figure.iter("li")
    }  # fmt: skip
    drawn = {
        int(found)
        for chart in figure.findall("svg")
        for node in chart.iter()
        for found in number.findall(node.get("class") or "")
    }
    assert drawn == set(legend.values())
    return legend


def test_in_whatever_order_arms_ran_they_are_drawn_and_written_alike() -> None:
    arms = [arm for arm in LADDER if arm != "vllm"]
    seen = _legend(*arms)
    for seed in range(3):
        mixed = random.Random(seed).sample(arms, len(arms))
        assert _result(*mixed).arms == arms
        assert list(_legend(*mixed).items()) == list(seen.items())
    assert _legend("paged", "slabs").items() <= seen.items()
    assert in_order(("own", "paged", "slabs")) == ["slabs", "paged", "own"]


def test_arenas_look_like_no_arm() -> None:
    found = arm_series([*LADDER, *ARENAS])
    assert not {found[arena] for arena in ARENAS} & {found[arm] for arm in LADDER}
