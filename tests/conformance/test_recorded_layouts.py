"""Layouts of the catalogue's models are those that vLLM gave when ``make vllm-layouts`` ran."""

from __future__ import annotations

import json
from typing import Any

import pytest
from layouts_campaign import FIGURES, RECORDED, asks, our_answers

ANSWERS: list[dict[str, Any]] = [
    json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()
]
# vLLM versions, and how many models each builds at least.
BUILT = {"0.32.0": 100, "0.33.0": 100}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: f"{one['model']}-{one['vllm']}")
def test_a_model_is_laid_out_as_recorded(answer: dict[str, Any]) -> None:
    ask = next(iter(asks(answer["model"])))
    mine = [
        [*limits, *(one.get(name) for name in FIGURES)]
        for limits, one in zip(ask["limits"], our_answers(ask), strict=True)
    ]
    assert mine == answer["limits"]


def test_most_models_are_recorded() -> None:
    for version, least in BUILT.items():
        assert sum(answer["vllm"] == version for answer in ANSWERS) >= least
