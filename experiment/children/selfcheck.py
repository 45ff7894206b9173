"""Process observed by the self-test: ``python -m experiment.children.selfcheck``.

It corrupts a paged cache on purpose, then allocates and frees known amounts of memory while the
runner reads its channels. It waits at each :class:`Moment`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from enum import IntEnum
from typing import Any

from experiment.config.schema import Config, ModelConfig
from experiment.events import Channel, Check, Stage, StageEntered
from experiment.memory.tensors import trim
from experiment.process.wire import Wire, serve
from experiment.text.messages import message

ARM = "selfcheck"
ROUNDS = 3
GRANDCHILD_BYTES = 64 * 2**20
SPIKE_BYTES = 128 * 2**20
SPIKE_S = 0.05
# layers, KV heads, head size, bytes of an element: 4 KiB per token
_POOL_GEOMETRY = (4, 4, 32, 4)
_POOL_BLOCKS, _POOL_BLOCK_SIZE = 64, 16
# An arm of the smallest walkthrough runs about 5 s. It has three stages at which every channel is
# read, and some more for the cheap ones.
CHURN_S = 5.0
CHURN_STAGES = 3
CHURN_REQUESTS = 6
_GRANDCHILD = """
import sys
sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.readline()
held = b"\\1" * int(sys.argv[1])
sys.stdout.write("holds\\n"); sys.stdout.flush()
sys.stdin.readline()
"""


class Moment(IntEnum):
    """Where the child waits; sent as the request number of a stage."""

    EMPTY = 0  # the next three occur once per round
    HELD = 1
    FREED = 2
    GRANDCHILD_IDLE = 3
    GRANDCHILD_HOLDS = 4
    BEFORE_SPIKE = 5
    AFTER_SPIKE = 6
    CHURN_BEGINS = 7
    CHURN_ENDED = 8
    CHURN_STAGE = 9


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Run the checks of one device; processes and spikes are checked on the host only."""
    size, device = int(task["bytes"]), str(task["device"])
    if device == "cpu":
        _control(wire)
    _known_pool(wire, device)
    _known_amount(wire, size, device)
    if device == "cpu":
        _grandchild(wire)
        _spike(wire)
    else:
        _device_spike(wire, device)
    _churn(wire, device)


def _device_spike(wire: Wire, device: str) -> None:
    """Check that torch's peaks include memory that was allocated and freed between two readings."""
    import torch

    from experiment.memory.tensors import reset_torch_peaks, torch_readings

    reset_torch_peaks(device)
    before = {r.channel: r.bytes for r in torch_readings(ARM, None, None, device)}
    spike = torch.ones(SPIKE_BYTES, dtype=torch.uint8, device=device)
    del spike
    trim()
    after = {r.channel: r.bytes for r in torch_readings(ARM, None, None, device)}
    for peak, now in (
        (Channel.TORCH_ALLOCATED_PEAK, Channel.TORCH_ALLOCATED),
        (Channel.TORCH_RESERVED_PEAK, Channel.TORCH_RESERVED),
    ):
        seen, held = after[peak], before[now]
        assert seen is not None
        assert held is not None
        named = message(f"channel.{peak.value}").model_dump()
        text = message("selfcheck_memory.peak", channel=named, seen=seen - held, known=SPIKE_BYTES)
        passed = seen - held >= SPIKE_BYTES
        wire.emit(Check(check=f"spike.{peak.value}", passed=passed, text=text))


def _known_pool(wire: Wire, device: str) -> None:
    """Check the size of a KV pool exactly, and that counting detects one written slot."""
    import torch

    from experiment.engine.kv_pool import KVPool
    from experiment.memory.tensors import storage_bytes
    from kvsim.sizing.geometry import KVGeometry

    geometry = KVGeometry(*_POOL_GEOMETRY)
    pool = KVPool(geometry, _POOL_BLOCKS, _POOL_BLOCK_SIZE, torch.float32, torch.device(device))
    known = geometry.bytes_per_token * _POOL_BLOCKS * _POOL_BLOCK_SIZE
    _exact(wire, Channel.TENSORS, storage_bytes([pool.kv]), known)
    _exact(wire, Channel.POISON, pool.poisoned_bytes(), known)
    pool.kv[:, :, 1, :, 2] = 1.0
    _exact(wire, Channel.POISON, pool.poisoned_bytes(), known - geometry.bytes_per_token)


def _exact(wire: Wire, channel: Channel, seen: int, known: int) -> None:
    named = message(f"channel.{channel.value}").model_dump()
    text = message("selfcheck_memory.exact", channel=named, seen=seen, known=known)
    wire.emit(Check(check=f"pool.{channel.value}.{known}", passed=seen == known, text=text))


def _known_amount(wire: Wire, size: int, device: str) -> None:
    import torch

    # A first round without readings: the runtime allocates its own memory.
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
    command = [sys.executable, "-P", "-c", _GRANDCHILD, str(GRANDCHILD_BYTES)]
    with subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
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


def _churn(wire: Wire, device: str) -> None:
    """Allocate memory as often as an arm does, with stages like an arm's.

    Many samples are then emitted, and expensive readings are included in the monitoring cost.
    """
    import torch

    _mark(wire, Moment.CHURN_BEGINS)
    began = time.monotonic()
    held: list[torch.Tensor] = []
    marks = [Stage.LAST_STEP] * CHURN_STAGES + [Stage.REQUEST_DONE] * CHURN_REQUESTS
    total = len(marks)
    while (passed := time.monotonic() - began) < CHURN_S:
        held = held if len(held) < 32 else []
        held.append(torch.ones(2**20, dtype=torch.uint8, device=device))
        if marks and passed * total / CHURN_S > total - len(marks):
            wire.mark(StageEntered(arm=ARM, stage=marks.pop(), request=Moment.CHURN_STAGE))
        time.sleep(0.03)
    _mark(wire, Moment.CHURN_ENDED)


def _mark(wire: Wire, moment: Moment, device: str = "cpu") -> None:
    from experiment.memory.tensors import torch_readings

    for reading in torch_readings(ARM, Stage.LAST_STEP, moment, device):
        wire.emit(reading)
    wire.mark(StageEntered(arm=ARM, stage=Stage.LAST_STEP, request=moment))


def _control(wire: Wire) -> None:
    from experiment.children.prepare import prepare_model
    from experiment.engine.attention.interface import ATTENTION
    from experiment.engine.control import unnoticed_damages
    from experiment.model.load import load_model
    from kvsim.sizing.geometry import KVGeometry

    model, directory = prepare_model(wire, Config(model=ModelConfig(name="tiny-gpt2")), "cpu")
    loaded = load_model(str(directory), "float32", "cpu", ATTENTION)
    geometry = KVGeometry(model.layers, model.kv_heads, model.head_dim, model.element_bytes)
    for damage, unnoticed in unnoticed_damages(loaded, geometry, model.vocab_size).items():
        text = message(f"selfcheck.damage_{damage}")
        wire.emit(Check(check=f"control.{damage}", passed=not unnoticed, text=text))


if __name__ == "__main__":
    sys.exit(serve(ARM, main))
