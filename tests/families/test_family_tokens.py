"""Families that cover each code path; tests/full/test_every_family.py runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from matrix import Runs, run_family, saved

from experiment.model.families import families, reason_of
from experiment.text.errors import UserError

# Our attention: plain, grouped heads, experts, a window and a language model within another one.
OURS = ("gpt2", "llama", "qwen3_moe", "gemma3")
# Its own: positions in scores, no interface, soft-capped scores, sinks, repeated heads of experts.
OWN = ("bloom", "gptj", "gemma2", "gpt_oss", "jetmoe")
# Before Transformers 5.21, BLOOM, the first of OWN, cannot run with a static cache.
OLD = tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 21)
REFUSED = {"deepseek_v3": "latent", "qwen3_next": "state", "bart": "encoder"}
BLOOM = [("bloom", "positions")] if OLD else []


@pytest.fixture
def runs(request: pytest.FixtureRequest, tmp_path: Path, frozen: None) -> Runs:
    return Runs(saved(request.param, tmp_path / request.param))


@pytest.mark.parametrize("runs", [*OURS, *OWN[OLD:]], indirect=True, ids=str)
def test_every_arm_generates_the_same_tokens(runs: Runs) -> None:
    reference, *others = run_family(runs).values()
    assert len({tuple(made[:6]) for made in reference.values()}) == len(reference)
    assert all(other == reference for other in others)


@pytest.mark.parametrize(("runs", "reason"), [*REFUSED.items(), *BLOOM], indirect=["runs"], ids=str)
def test_a_family_is_refused_before_any_arm_starts(runs: Runs, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        runs.arms(("paged",))
    assert reason_of(caught.value.text) == reason


def test_the_table_says_the_same() -> None:
    table = {row.family: (row.result, row.detail) for row in families()}
    assert {name: table[name] for name in OURS} == dict.fromkeys(OURS, ("equal", "paged"))
    assert {name: table[name] for name in OWN} == dict.fromkeys(OWN, ("equal", "own"))
    assert {name: table[name] for name in REFUSED} == {
        name: ("refused", reason) for name, reason in REFUSED.items()
    }


@pytest.mark.parametrize("runs", ["gemma2"], indirect=True, ids=str)
def test_settings_of_our_attention_are_refused_where_a_model_keeps_its_own(runs: Runs) -> None:
    with pytest.raises(UserError) as caught:
        runs.arms(("paged",), engine={"kernel": "numba"})
    assert caught.value.text.params["config_key"] == "engine.kernel"
