"""Texts on what the paged engine ran on, for console and page alike. On GPUs only.

On the CPU there is nothing to choose that a reader could change.
"""

from __future__ import annotations

from experiment.events import DecodeGraphsReady, DecodeGraphsUsed, KernelChosen
from experiment.messages import Message, message
from experiment.record import Record


def kernel_facts(record: Record) -> list[Message]:
    """For each arm of the engine its attention kernel, its graphs, and why not a faster way."""
    used = {event.arm: event for event in record.of(DecodeGraphsUsed)}
    graphs = {event.arm: event for event in record.of(DecodeGraphsReady)}
    found: list[Message] = []
    for chosen in record.of(KernelChosen):
        if chosen.device != "cuda":
            continue
        found.append(_kernel(chosen))
        if ready := graphs.get(chosen.arm):
            found.append(_graphs(ready, used.get(chosen.arm)))
    return found


def _kernel(chosen: KernelChosen) -> Message:
    figures = {"arm": _name(chosen.arm), "kernel": chosen.kernel}
    if chosen.reason is None:
        return message("kernel.chosen", **figures)
    return message("kernel.chosen_why", **figures, reason=chosen.reason.model_dump())


def _graphs(ready: DecodeGraphsReady, used: DecodeGraphsUsed | None) -> Message:
    if not ready.sizes:
        reason = ready.reason.model_dump() if ready.reason else None
        return message("graphs.none", arm=_name(ready.arm), reason=reason)
    return message(
        "graphs.used",
        arm=_name(ready.arm),
        sizes=", ".join(map(str, ready.sizes)),
        seconds=ready.capture_s,
        bytes=ready.static_bytes,
        steps=used.steps if used else None,
        rows=used.rows if used else None,
        padding=used.padding_rows if used else None,
    )


def _name(arm: str) -> Message:
    return message(f"arm_name.{arm.replace('.', '_')}")
