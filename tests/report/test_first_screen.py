"""The first screen of a run: bars on one scale of bytes, and the factor between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import OpenPage
from sample import make_record, write_page

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import ArmResult, PeakBytes, Results
from experiment.report.page.memory_bars import hero

# Widths in pixels of the outline, and of each piece by its paint, of each bar.
_WIDTHS = """bars => bars.map(bar => Object.fromEntries([...bar.children].map(
  piece => [piece.getAttribute('fill') || 'pool', piece.getBoundingClientRect().width])))"""


def bars(page: Any, where: str) -> list[dict[str, float]]:
    found: list[dict[str, float]] = page.eval_on_selector_all(f"{where} svg.bytes", _WIDTHS)
    return found


def peak(arm: ArmResult) -> PeakBytes:
    assert arm.peak_bytes is not None
    return arm.peak_bytes


@pytest.mark.parametrize("width", [1280, 390])
def test_bars_of_all_arms_are_on_one_scale_of_bytes(
    open_page: OpenPage, tmp_path: Path, width: int
) -> None:
    record = make_record(tmp_path, arms=("contiguous.batch", "paged"))
    results = evaluate(record)
    opened = open_page(write_page(record, results), viewport={"width": width, "height": 800})
    two = [arm for arm in results.arms if arm.arm in ("contiguous.batch", "paged")]
    opened.page.evaluate("document.getElementById('arms').open = true")
    for where, arms in ((".hero", two), ("#arms", results.arms)):
        seen = bars(opened.page, where)
        scale = seen[0]["pool"] / peak(arms[0]).reserved
        assert len(seen) == len(arms)
        for bar, arm in zip(seen, arms, strict=True):
            assert bar.pop("pool") == pytest.approx(peak(arm).reserved * scale, abs=1)
            assert bar.pop("var(--live)") == pytest.approx(peak(arm).live * scale, abs=1)
            assert sum(bar.values()) == pytest.approx(peak(arm).wasted * scale, abs=1.5)


@pytest.mark.parametrize("other", [False, True])
def test_the_title_claims_equal_tokens_only_if_they_are(tmp_path: Path, other: bool) -> None:
    results = evaluate(make_record(tmp_path, arms=("contiguous.batch", "paged")))
    (one,) = results.tokens
    equal = 0 if other else one.requests
    changed: Results = results.model_copy(
        update={"tokens": [one.model_copy(update={"equal_requests": equal})]}
    )
    found = hero(changed)
    assert found is not None
    assert not isinstance(found.title.text, str)
    contiguous, paged = (peak(arm) for arm in results.arms)
    assert found.title.text.params["factor"] == contiguous.allocated / paged.allocated
    assert ("same" in found.title.text.key) is not other
