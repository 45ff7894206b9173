"""Memory by stage: the time of a row is that at which its bytes were read."""

from __future__ import annotations

from pathlib import Path

from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.report.facts.data_key import Keyed
from experiment.report.page.parts import readings


def test_of_a_stage_that_was_read_twice_one_reading_is_shown(tmp_path: Path) -> None:
    """Logs of older runs have readings of a repeat that was measured, too."""
    record = make_record(tmp_path)
    results = evaluate(record)
    (arm,) = (one for one in results.arms if one.arm == "paged")
    row = next(one for one in arm.memory if one.bytes is not None and one.stage != "maximum")
    again = row.model_copy(update={"t_ns": row.t_ns + 10**9, "bytes": (row.bytes or 0) + 2**20})
    twice = arm.model_copy(update={"memory": [row, again]})
    ((_, clock, cells),) = readings(record.started, twice).rows
    assert isinstance(clock, Keyed)
    assert clock.key == "results.arms[paged].memory.0.t_ns"
    main = cells[0].main
    assert isinstance(main, Keyed)
    assert main.key == "results.arms[paged].memory.0.bytes"
