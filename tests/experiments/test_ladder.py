"""The ladder of arms in an experiment's report: medians of all repeats, and factors of rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest
from in_process import Ran

from experiment.analysis.results import Gain, Results
from experiment.events import RepeatFinished, TurnStarted, encode
from experiment.experiments.evaluate import picture
from experiment.record.log import EVENTS_FILE, read_record
from experiment.report.page.page import report_html
from experiment.text import LANGUAGES, Translator


def told(
    ran: Ran, place: Path, slabs: Sequence[float], paged: Sequence[float], turns: bool = True
) -> Results:
    """What is drawn of the run, had its measured repeats taken so many seconds."""
    seconds = {"slabs": [9.0, *slabs], "paged": [9.0, *paged]}
    lines = []
    for event in ran.record.events:
        if isinstance(event, RepeatFinished):
            event = event.model_copy(update={"generate_s": seconds[event.arm][event.repeat]})
            if turns and not event.warm_up:
                turn = TurnStarted(cell=0, arm=event.arm, repeat=event.repeat, group=1)
                lines.append(encode(turn))
        lines.append(encode(event))
    place.mkdir()
    (place / EVENTS_FILE).write_text("\n".join([*lines, ""]), encoding="utf-8")
    return picture(read_record(place))[1]


def rungs(results: Results) -> dict[str, Gain]:
    return {gain.arm: gain for gain in results.gains}


def test_rates_are_medians_and_the_factor_is_of_rounds(two_arms: Ran, tmp_path: Path) -> None:
    """The machine is half as fast in the second round; blocks take half the time in each."""
    slabs, paged = [2.0, 4.0, 2.2], [0.8, 2.0, 1.0]
    results = told(two_arms, tmp_path / "run", slabs, paged)
    found = rungs(results)
    tokens = found["slabs"].tokens_per_s * median(slabs)
    assert found["paged"].tokens_per_s == pytest.approx(tokens / median(paged))
    rounds = sorted(a / b for a, b in zip(slabs, paged, strict=True))
    assert found["paged"].factor == pytest.approx(rounds[1])
    assert found["slabs"].factor is None
    assert "fairness.turns" in {text.key for text in results.fairness}


@pytest.mark.parametrize("turns", [True, False])
def test_where_repeats_tell_nothing_there_is_a_dash_and_the_reason(
    turns: bool, two_arms: Ran, tmp_path: Path
) -> None:
    results = told(two_arms, tmp_path / "run", [1.0, 1.0, 1.0], [0.5, 1.5, 0.9], turns)
    gain = rungs(results)["paged"]
    assert gain.factor is None
    assert gain.reason is not None
    assert gain.reason.key == "gains.not_apart"
    assert ("fairness.turns" in {text.key for text in results.fairness}) is turns
    for lang in LANGUAGES:
        t = Translator(lang)
        page = report_html(two_arms.shown, results, lang)
        assert t("gains.repeated") in page
        assert t("gains.not_apart") in page
        assert t("gains.once") not in page


def test_the_ladder_agrees_with_the_finding_beside_it(two_arms: Ran, tmp_path: Path) -> None:
    results = told(two_arms, tmp_path / "run", [3.0, 3.3, 3.1], [1.0, 1.1, 1.2])
    assert results.experiment is not None
    (finding,) = [each for each in results.experiment.findings if each.id == "throughput"]
    assert rungs(results)["paged"].factor == pytest.approx(finding.estimate)
