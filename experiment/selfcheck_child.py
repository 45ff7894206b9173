"""The process that the self-test works on: ``python -m experiment.selfcheck_child``.

Breaks a paged cache on purpose, then takes and returns a known amount of memory while the
runner's channels look on.
"""

from __future__ import annotations

import sys
from typing import Any

from experiment.config import Config, ModelConfig
from experiment.events import Check, Stage, StageEntered
from experiment.messages import message
from experiment.wire import Wire, serve

ARM = "selfcheck"


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Run both checks."""
    import torch

    _control(wire)
    size, device = int(task["bytes"]), str(task["device"])
    torch.empty(1, device=device)  # the runtime's own memory is there before the first reading
    _mark(wire, Stage.LOADED, device)
    # Every page is written, so that it is resident.
    known = torch.full((size,), 1, dtype=torch.uint8, device=device)
    _mark(wire, Stage.CACHE_READY, device)
    del known


def _mark(wire: Wire, stage: Stage, device: str) -> None:
    from experiment.memory.tensors import torch_readings

    for reading in torch_readings(ARM, stage, None, device):
        wire.emit(reading)
    wire.mark(StageEntered(arm=ARM, stage=stage))


def _control(wire: Wire) -> None:
    from experiment.engine.attention import ATTENTION
    from experiment.engine.control import unnoticed_damages
    from experiment.model.load import load_model
    from experiment.prepare import prepare_model
    from kvsim.geometry import KVGeometry

    model, directory = prepare_model(wire, Config(model=ModelConfig(name="tiny-gpt2")), "cpu")
    loaded = load_model(str(directory), "float32", "cpu", ATTENTION)
    geometry = KVGeometry(model.layers, model.kv_heads, model.head_dim, model.element_bytes)
    for damage, unnoticed in unnoticed_damages(loaded, geometry, model.vocab_size).items():
        text = message(f"selfcheck.damage_{damage}")
        wire.emit(Check(check=f"control.{damage}", passed=not unnoticed, text=text))


if __name__ == "__main__":
    sys.exit(serve(ARM, main))
