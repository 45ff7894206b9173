"""The claims: judged by what an experiment found, and by nothing else."""

from __future__ import annotations

import io
import json
from html import unescape
from pathlib import Path

import pytest
from in_process import run, tiny_config
from rich.console import Console

from experiment.claims_command import _write, read_found
from experiment.experiments.claims import CLAIMS, judge, needed
from experiment.experiments.registry import EXPERIMENTS
from experiment.i18n import Translator
from experiment.report.claims import ClaimsConsole

SLOT = 1024


def test_every_claim_has_an_experiment_that_there_is() -> None:
    assert set(needed()) <= set(EXPERIMENTS)
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


def test_claims_of_a_real_capacity_run(tmp_path: Path) -> None:
    config = tiny_config(
        "capacity",
        experiment__values=[2, 12],
        experiment__options={"lengths": [[5, 4], [9, 5]]},
        cache__max_length=64,
        cache__block_size=4,
        cache__budget=2 * 64 * SLOT,
        run__arms=["slabs", "paged"],
    )
    ran = run(config, tmp_path / "capacity")
    (tmp_path / "capacity" / "run.json").write_text("{}")
    judged = {one.claim.name: one for one in judge(read_found(tmp_path, needed()))}
    few, many = ran.result.cells
    peaks = [ran.figure(many, arm, "running_peak").value for arm in ("paged", "slabs")]
    assert peaks == [12, 2]
    assert judged["at_once"].value == 6
    assert judged["at_once"].verdict == "shown"
    slabs, paged = (ran.figure(few, arm, "waste").value or 0 for arm in ("slabs", "paged"))
    assert judged["saved"].value == pytest.approx(1 - (1 - slabs) / (1 - paged))
    assert judged["saved"].verdict == "shown"
    assert judged["wasted"].verdict == "shown"
    assert judged["used"].verdict == "not_shown"  # blocks of 4 for requests of 8 and 13 slots
    others = {name for name, one in judged.items() if one.verdict == "untested"}
    assert others == set(judged) - {"at_once", "saved", "wasted", "used"}
    data, page = _write(tmp_path, list(judged.values()), {"capacity": "quick"}, "en")
    rows = json.loads(data.read_text())["claims"]
    assert [row["claim"] for row in rows] == [claim.name for claim in CLAIMS]
    assert next(row for row in rows if row["claim"] == "beams")["value"] is None
    shown = page.read_text(encoding="utf-8")
    assert all(Translator("en")(f"claims.{claim.name}") in unescape(shown) for claim in CLAIMS)
    assert "3 are shown here, 1 are not shown" in shown


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_table_names_every_claim(lang: str) -> None:
    console = ClaimsConsole(lang, ascii_only=False)
    out = io.StringIO()
    console._out.console = Console(file=out, width=200)
    console.show(judge({}), {})
    said = [console._out.t(f"claims.{claim.name}")[:12] for claim in CLAIMS]
    assert all(text in out.getvalue() for text in said)
