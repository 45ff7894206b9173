"""The control of the experiment: each damage to the cache is seen in the tokens."""

from __future__ import annotations

import pytest
from tiny_engine import geometry

from experiment.engine import control
from experiment.engine.attention.interface import ATTENTION
from experiment.gpucheck.tiny_models import VOCABULARY, tiny
from experiment.model.builtin import build_model
from experiment.model.load import load_model
from kvsim.sizing.geometry import geometry_from_config


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
