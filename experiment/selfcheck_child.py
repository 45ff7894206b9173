"""The process that the self-test works on: ``python -m experiment.selfcheck_child``.

Breaks a paged cache on purpose, then takes and gives back known amounts of memory while the
runner's channels look on. It stands still at each :class:`Moment`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from enum import IntEnum
from typing import Any

from experiment.config import Config, ModelConfig
from experiment.events import Check, Stage, StageEntered
from experiment.memory.tensors import trim
from experiment.messages import message
from experiment.wire import Wire, serve

ARM = "selfcheck"
ROUNDS = 3
GRANDCHILD_BYTES = 64 * 2**20
SPIKE_BYTES = 128 * 2**20
SPIKE_S = 0.05
CHURN_S = 3.0
_GRANDCHILD = """
import sys
sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.readline()
held = b"\\1" * int(sys.argv[1])
sys.stdout.write("holds\\n"); sys.stdout.flush()
sys.stdin.readline()
"""


class Moment(IntEnum):
    """Where the child stands still; travels as the request number of a stage."""

    EMPTY = 0  # the next three come once for each round
    HELD = 1
    FREED = 2
    GRANDCHILD_IDLE = 3
    GRANDCHILD_HOLDS = 4
    BEFORE_SPIKE = 5
    AFTER_SPIKE = 6
    CHURN_BEGINS = 7
    CHURN_ENDED = 8


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Run the checks of one device; those of the CPU's are enough for process and sampler."""
    size, device = int(task["bytes"]), str(task["device"])
    if device == "cpu":
        _control(wire)
    _known_amount(wire, size, device)
    if device == "cpu":
        _grandchild(wire)
        _spike(wire)
        _churn(wire)


def _known_amount(wire: Wire, size: int, device: str) -> None:
    import torch

    # A first round that nobody looks at: the runtime's own memory is there before the readings.
    torch.full((size,), 1, dtype=torch.uint8, device=device)
    for _ in range(ROUNDS):
        trim()
        _mark(wire, Moment.EMPTY, device)
        # Every page is written, so that it is resident.
        known = torch.full((size,), 1, dtype=torch.uint8, device=device)
        _mark(wire, Moment.HELD, device)
        del known
        trim()
        _mark(wire, Moment.FREED, device)


def _grandchild(wire: Wire) -> None:
    command = [sys.executable, "-c", _GRANDCHILD, str(GRANDCHILD_BYTES)]
    with subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as below:
        assert below.stdin is not None
        assert below.stdout is not None
        below.stdout.readline()
        _mark(wire, Moment.GRANDCHILD_IDLE)
        below.stdin.write("\n")
        below.stdin.flush()
        below.stdout.readline()
        _mark(wire, Moment.GRANDCHILD_HOLDS)


def _spike(wire: Wire) -> None:
    _mark(wire, Moment.BEFORE_SPIKE)
    spike = b"\1" * SPIKE_BYTES
    time.sleep(SPIKE_S)
    del spike
    _mark(wire, Moment.AFTER_SPIKE)


def _churn(wire: Wire) -> None:
    """Memory that moves as often as that of an arm at work, so that many samples are news."""
    _mark(wire, Moment.CHURN_BEGINS)
    end = time.monotonic() + CHURN_S
    held: list[bytes] = []
    while time.monotonic() < end:
        held = [] if len(held) == 32 else [*held, b"\1" * 2**20]
        time.sleep(0.03)
    _mark(wire, Moment.CHURN_ENDED)


def _mark(wire: Wire, moment: Moment, device: str = "cpu") -> None:
    from experiment.memory.tensors import torch_readings

    for reading in torch_readings(ARM, Stage.REQUEST_DONE, moment, device):
        wire.emit(reading)
    wire.mark(StageEntered(arm=ARM, stage=Stage.REQUEST_DONE, request=moment))


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
