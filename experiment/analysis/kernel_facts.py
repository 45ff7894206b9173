"""Texts on what the paged engine ran on, for console and page alike.

On the CPU there is nothing to choose that a reader could change; only that the compiled kernel
could not be had, which should work there, is told.
:mod:`experiment.analysis.differences` has the rest.
"""

from __future__ import annotations

from experiment.events import DecodeGraphsReady, DecodeGraphsUsed, KernelChosen
from experiment.record.log import Record
from experiment.text.messages import Message, arm_message, message


def kernel_facts(record: Record) -> list[Message]:
    """For each arm of the engine its attention kernel, its graphs, and why not a faster way."""
    used = {event.arm: event for event in record.of(DecodeGraphsUsed)}
    graphs = {event.arm: event for event in record.of(DecodeGraphsReady)}
    found: list[Message] = []
    for chosen in record.of(KernelChosen):
        if chosen.device != "cuda":
            found += [_slow(chosen)] if chosen.reason else []
            continue
        found.append(_kernel(chosen))
        if ready := graphs.get(chosen.arm):
            found.append(_graphs(ready, used.get(chosen.arm)))
    return found


def _kernel(chosen: KernelChosen) -> Message:
    figures = {"arm": arm_message(chosen.arm), "kernel": chosen.kernel}
    if chosen.reason is None:
        return message("kernel.chosen", **figures)
    return message("kernel.chosen_why", **figures, reason=chosen.reason.model_dump())


def _slow(chosen: KernelChosen) -> Message:
    reason = chosen.reason.model_dump() if chosen.reason else None
    figures = {"arm": arm_message(chosen.arm), "kernel": chosen.kernel}
    return message("kernel.not_compiled", **figures, reason=reason)


def _graphs(ready: DecodeGraphsReady, used: DecodeGraphsUsed | None) -> Message:
    if not ready.sizes:
        reason = ready.reason.model_dump() if ready.reason else None
        return message("graphs.none", arm=arm_message(ready.arm), reason=reason)
    return message(
        "graphs.used_compiled" if ready.asked == "compiled" else "graphs.used",
        arm=arm_message(ready.arm),
        sizes=", ".join(map(str, ready.sizes)),
        seconds=ready.capture_s,
        bytes=ready.static_bytes,
        reserved=ready.reserved_bytes,
        steps=used.steps if used else None,
        rows=used.rows if used else None,
        padding=used.padding_rows if used else None,
    )
