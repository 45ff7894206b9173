"""Cells with figures that somebody made up, and what an experiment finds in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from experiment.analysis.experiment_results import (
    CellArm,
    CellResult,
    Compared,
    FigureValue,
    Finding,
    Number,
)
from experiment.analysis.finding_text import answer, whole
from experiment.config.reading import load_config
from experiment.events import CellStarted, Notice
from experiment.experiments.claims import Judged, judge
from experiment.experiments.figures import FIGURES
from experiment.experiments.found import Found
from experiment.experiments.registry import find_experiment
from experiment.files.shipped import CONFIGS
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import Message, arm_message, message

Figures = Mapping[str, Number | Sequence[Number]]


def value(seen: Number | Sequence[Number]) -> FigureValue:
    """A count, or the repeats of a time."""
    if isinstance(seen, int | float):
        return FigureValue(value=seen)
    return FigureValue(value=median(seen), values=list(seen))


def cell(index: int, values: dict[str, int | float | str], **arms: Figures) -> CellResult:
    """A cell; two underscores in an arm's name are a dot."""
    made = [
        CellArm(
            arm=name.replace("__", "."), status="finished", reason=None, repeats=3,
            figures={figure: value(seen) for figure, seen in figures.items()},
        )
        for name, figures in arms.items()
    ]  # fmt: skip
    return CellResult(
        index=index, values=values, requests=4, max_length=64, block_size=4, budget_bytes=1024,
        arms=made,
    )  # fmt: skip


def begun_busy(one: CellResult, *arms: str) -> CellResult:
    """The same cell, other programs having kept cores busy as these arms of it began."""
    assert set(arms) <= {arm.arm for arm in one.arms}
    made = [
        arm.model_copy(update={"others_cores": 1.25}) if arm.arm in arms else arm
        for arm in one.arms
    ]
    return one.model_copy(update={"arms": made})


def with_outputs(one: CellResult, outputs: list[str]) -> CellResult:
    """The same cell, all arms having put out these digests."""
    arms = [arm.model_copy(update={"outputs": outputs}) for arm in one.arms]
    return one.model_copy(update={"arms": arms})


def found_of(name: str, *cells: CellResult, margin: float | None = 0) -> Found:
    """``margin``: what two processes may differ by; by default repeats decide alone."""
    asked = {"experiment.margin": margin}
    return Found(load_config(CONFIGS / f"{name}.toml", asked), list(cells))


def findings(name: str, *cells: CellResult, margin: float | None = 0) -> dict[str, Finding]:
    made = find_experiment(name).findings(found_of(name, *cells, margin=margin))
    for finding in made:
        assert_told(finding)
    return {finding.id: finding for finding in made}


def claimed(name: str, found: Found) -> Judged:
    """What is made of a claim by what one experiment found."""
    judged = judge({found.config.experiment.name or "": found})
    return next(one for one in judged if one.claim.name == name)


def told(claim: Judged) -> tuple[str, Number | None, str | None]:
    """Verdict and figure of a claim, and the code of its reason."""
    key = claim.reason.key.rpartition(".")[2] if claim.reason else None
    return claim.verdict, claim.seen.value if claim.seen else None, key


def assert_told(finding: Finding) -> None:
    """Every text can be written with what it was given, and the first is one sentence."""
    for lang in LANGUAGES:
        t = Translator(lang)
        assert "{" not in t.message(whole(finding))
        text = t.message(answer(finding))
        assert not re.search(r"[.!?] |。.", text), text
        assert text[-1] in ".。", text


def why(finding: Compared) -> str | None:
    """The code of its reason."""
    return finding.reason.key.rpartition(".")[2] if finding.reason else None


def notes(finding: Finding) -> dict[str, dict[str, Any]]:
    """What stands below a finding in words: what each text was given, by its code."""
    return {note.key.rpartition(".")[2]: note.params for note in finding.notes}


def beside(finding: Finding) -> dict[str, Compared]:
    """Its further comparisons, by the codes of what they compare."""
    return {name_of(row): row for row in finding.beside}


def name_of(row: Compared) -> str:
    """Of counts of an arm the arm; of a ratio the figure."""
    names = codes(row.figure) if row.figure else codes(row.at)[1:2]
    figure = next((name for name in names if name in FIGURES), names[-1])
    return figure if row.kind == "ratio" else " ".join(names)


def sides(row: Compared) -> dict[str, Number | None]:
    """Its values by the codes of their labels."""
    return {codes(side.label)[-1]: side.value for side in row.sides}


def codes(text: object) -> list[str]:
    """Last parts of a message's key and of those within it; names are as they are.

    The label of a figure is that figure's name.
    """
    data = text.model_dump() if isinstance(text, Message) else text
    if not isinstance(data, dict):
        return [str(data)]
    labels = ((name, one.about.label.model_dump()) for name, one in FIGURES.items())
    if name := next((name for name, label in labels if label == data), None):
        return [name]
    inner = [code for value in data["params"].values() for code in codes(value)]
    return [data["key"].rpartition(".")[2], *inner]


def budget(mean: float, rates: Sequence[float], peak: int = 4, preemptions: int = 0) -> Figures:
    return {
        "running_mean": mean, "running_peak": peak, "fits": 4, "preemptions": preemptions,
        "tokens_per_s": rates,
    }  # fmt: skip


def rate(index: int, rate: float, **arms: tuple[float, float]) -> CellResult:
    """A rate by the wall clock: of each arm, who ended of those who came, and how much later."""
    figures: dict[str, Figures] = {
        arm: {"kept_up": [kept] * 3, "later_tokens": [later] * 3, "latency_s": [1.0, 1.1, 1.2]}
        for arm, (kept, later) in arms.items()
    }
    return cell(index, {"rate": rate, "clock": "wall"}, **figures)


SLABS = budget(4.0, [100, 101, 102])


def busy_notice(cell: CellStarted, arm: str, cores: float) -> Notice:
    """What older logs hold before an arm that began while others kept cores busy."""
    told = {"cell": cell.index + 1, "arm": arm_message(arm).model_dump(), "cores": cores}
    return Notice(arm=arm, text=message("experiments.note.busy_arm", **told))
