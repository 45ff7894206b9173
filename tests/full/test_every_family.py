"""Every family that Transformers registers: the part `families` of `make test-full`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers

from experiment.model.families import REASONS, families

sys.path.append(str(Path(__file__).parents[1] / "families"))
from matrix import outcome
from tiny import FAMILIES

# What the table was made with; another version may have other families.
TABLE = {row.family: row for row in families()}


@pytest.fixture(autouse=True, scope="module")
def frozen() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_runs_or_is_refused_by_name(family: str) -> None:
    row = outcome(family)
    assert row.result != "unequal"
    assert row.result != "refused" or row.detail in REASONS
    known = TABLE.get(family)
    if known is None:
        pytest.skip(f"a family of Transformers {transformers.__version__}, not of the table's")
    same = (row.result, row.detail) if row.result == "refused" else (row.result,)
    assert same == (known.result, known.detail)[: len(same)]  # 5.24 takes our attention more often
