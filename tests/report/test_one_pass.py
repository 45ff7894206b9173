"""A report decodes each logged plan once and replays it once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from busy_run import make_run, paged_plans, slab_plans

import experiment.events
from experiment.events import Step
from experiment.record.log import read_record
from experiment.report.render import render
from kvsim.accounting.ledger import Ledger, SlotCounts
from kvsim.core.step import StepPlan


def test_a_step_is_decoded_and_replayed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, paged_plans(), slab_plans())
    steps = len(read_record(tmp_path).of(Step))
    counted: Counter[str] = Counter()
    decode, apply = experiment.events.plan_from_json, Ledger.apply

    def decoded(data: Any) -> StepPlan:
        counted["decoded"] += 1
        return decode(data)

    def applied(ledger: Ledger, plan: StepPlan) -> SlotCounts:
        counted["applied"] += 1
        return apply(ledger, plan)

    monkeypatch.setattr(experiment.events, "plan_from_json", decoded)
    monkeypatch.setattr(Ledger, "apply", applied)
    render(tmp_path, "en")
    assert counted["decoded"] == steps > 40
    assert steps <= counted["applied"] <= 1.1 * steps
