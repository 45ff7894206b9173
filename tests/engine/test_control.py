"""The control of the experiment: each damage to the cache is seen in the tokens."""

from __future__ import annotations

import pytest
import torch
from tiny_engine import geometry, solo

from experiment.engine import control
from experiment.engine.attention.interface import ATTENTION
from experiment.gpucheck.tiny_models import FAMILIES, VOCABULARY, tiny
from experiment.model.builtin import build_model
from experiment.model.load import load_model
from kvsim.sizing.geometry import geometry_from_config


@pytest.mark.parametrize("family", FAMILIES)
def test_without_damage_the_tokens_are_those_of_plain_transformers(family: str) -> None:
    tokens = control.control_tokens(tiny(family), geometry(family), VOCABULARY)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(VOCABULARY, (40,), generator=generator).tolist()
    assert len(tokens) == 7
    assert tokens == solo(family, prompt, 7)


@pytest.mark.parametrize("damage", control.DAMAGES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_damage_changes_the_tokens(family: str, damage: str) -> None:
    arguments = (tiny(family), geometry(family), VOCABULARY)
    clean = control.control_tokens(*arguments)
    damaged = control.control_tokens(*arguments, control.DAMAGES[damage])
    assert damaged[0] == clean[0]  # the first token comes from before the damage
    assert damaged != clean


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-qwen2", "tiny-mistral"])
def test_every_damage_is_noticed_with_a_built_model(name: str) -> None:
    model = load_model(str(build_model(name, 0, 0.08)), "float32", "cpu", ATTENTION)
    config = model.config.to_dict()
    found = control.unnoticed_damages(model, geometry_from_config(config, 4), config["vocab_size"])
    assert found == {"table": False, "slot": False, "block": False}


def test_a_damage_that_does_nothing_is_reported_as_unnoticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(control.DAMAGES, "slot", lambda engine: None)
    found = control.unnoticed_damages(tiny("gpt2"), geometry("gpt2"), VOCABULARY)
    assert found == {"table": False, "slot": True, "block": False}
