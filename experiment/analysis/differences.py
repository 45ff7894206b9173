"""Logged differences between arms other than batching and the cache."""

from __future__ import annotations

from collections.abc import Iterable

from experiment.analysis.finding_text import listed
from experiment.analysis.results import ArmResult
from experiment.config.kv_dtype import ENGINE_ARMS
from experiment.events import KernelChosen
from experiment.events.engine import OWN_ATTENTION
from experiment.record.log import Record
from experiment.text.messages import Message, arm_message, message

_REPLACED = ("layers", "few_rows", "embeddings", "gelus")
_OTHERS = ("transformers_paged", "vllm")


def products_of(arm: ArmResult) -> object:
    """Implementation of an arm's matrix products, comparable with another arm's; None: unknown."""
    if arm.arm not in ENGINE_ARMS:
        return "vllm" if arm.arm == "vllm" else "transformers"
    if arm.packing is None:
        return None
    replaced = tuple(arm.packing[name] for name in _REPLACED)
    return replaced if any(replaced) else "transformers"


def products_differ(arm: ArmResult, other: ArmResult) -> bool | None:
    """Whether two arms use different matrix products; None: unknown."""
    ours, theirs = products_of(arm), products_of(other)
    return None if ours is None or theirs is None else ours != theirs


def differences(record: Record, arms: list[ArmResult]) -> list[Message]:
    """Describe the parts of Transformers that each finished arm replaces; empty for one engine."""
    finished = [arm for arm in arms if arm.status == "finished"]
    ours = [arm for arm in finished if arm.arm in ENGINE_ARMS]
    part = next((arm.second_part for arm in ours if arm.second_part), None)
    second = [] if part is None else [message("differs.second_part", n=part.requests)]
    if len(ours) == len(finished) and len({products_of(arm) for arm in ours}) < 2:
        return second  # one engine alone
    kernels = {chosen.arm: chosen.kernel for chosen in record.of(KernelChosen)}
    names = {arm.arm for arm in finished}
    return [
        *_grouped((arm, _engine(kernels.get(arm.arm))) for arm in ours),
        *_grouped((arm, _products(arm)) for arm in ours),
        *(message(f"differs.{arm}") for arm in _OTHERS if arm in names),
        *second,
    ]


def _grouped(sentences: Iterable[tuple[ArmResult, Message]]) -> list[Message]:
    """Merge equal sentences of several arms into one with all their names."""
    names: dict[str, list[Message]] = {}
    for arm, text in sentences:
        names.setdefault(text.model_dump_json(), []).append(arm_message(arm.arm))
    texts = ((Message.model_validate_json(key), arms) for key, arms in names.items())
    return [message(text.key, arm=listed(arms), **text.params) for text, arms in texts]


def _engine(kernel: str | None) -> Message:
    if kernel == OWN_ATTENTION:
        return message("differs.own_attention")
    return message("differs.engine", kernel=kernel)


def _products(arm: ArmResult) -> Message:
    facts = arm.packing
    if facts is None:
        return message("differs.products_unknown")
    if products_of(arm) == "transformers":
        reason = facts["reason"] or message("packing.none").model_dump()
        return message("differs.products_same", reason=reason)
    params = {name: facts[name] for name in ("layers", "embeddings", "gelus", "bytes")}
    if not facts["gelus"]:
        return message("differs.products_packed", **params)
    return message("differs.products_and_gelus", **params)
