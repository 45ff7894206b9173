"""What to change after a start of vLLM that failed, the cheapest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import floor, inf, prod
from typing import Any, NamedTuple

from experiment.simulate.fit import Question, fit
from experiment.simulate.log_facts import OTHER_WEIGHTS, LogFacts
from experiment.text.errors import UserError
from kvsim.sizing.overhead import rank_overhead

_FEW = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}  # of a step, as a remedy
_MOST_SHARE, _LESS_SHARE = 0.95, 0.05
_TIMES_GPUS = (2, 4, 8)
# What helps, the cheapest first. vLLM gives the cache what else is saved before it is allocated:
# later only a smaller share leaves more for the rest.
_FOR_CACHE = ("utilisation", "steps", "fp8", "weights", "gpus")
_AFTER_CACHE = ("less", "sequences")
_REMEDIES = {
    "no_memory": _FOR_CACHE,
    "too_long": _FOR_CACHE,
    "little_free": ("others", "free"),
    "oom": ("less", "steps", "weights", "gpus"),
    "oom_load": ("weights", "gpus"),
    "oom_profile": ("steps", "weights", "gpus"),
    "oom_capture": ("eager", *_AFTER_CACHE),
    "oom_warmup": _AFTER_CACHE,
    "oom_serving": _AFTER_CACHE,
}


class _Change(NamedTuple):
    """An option to change; ``value``: as the user writes it.

    Attributes:
        options: fields of :class:`Memory`.
        freed: bytes on one GPU for the cache; None: unknown.
        weights: share of the weights that is left on one GPU.
    """

    name: str
    value: float | None = None
    options: Mapping[str, Any] = {}
    freed: int | None = 0
    weights: float = 1.0


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A start that failed; ``kv``: bytes on one GPU, which may be below 0."""

    read: LogFacts
    kv: int | None

    def remedies(self) -> list[dict[str, Any]]:
        """What to change, the cheapest first: an option, and tokens of the cache if known.

        Where no option alone is enough for the maximum length, the cheapest two that are come last.
        """
        log, length = self.read.log, self.read.longest
        made = self._changes()
        changes = [made[name] for name in _REMEDIES[str(log.failure)] if made[name]]
        found = list[dict[str, Any]]()
        most = _Change("max_length", log.longest or log.tokens)
        if log.failure == "too_long" and (most.value or self.kv):
            found += self._with(most, length=None)
        for change in changes:
            found += self._with(*change, length=length)
        if log.failure in ("too_long", "no_memory") and not any(each["enough"] for each in found):
            pairs = combinations(changes, 2)
            tried = (self._with(*one, *two, length=length) for one, two in pairs)
            found += next((each for each in tried if each and each[0]["enough"]), [])
        return found or [_remedy(changes[-1])]

    def _changes(self) -> dict[str, Sequence[_Change]]:
        """What can be changed at the same maximum length; empty: it is so already."""
        read, log = self.read, self.read.log
        free = floor(100 * log.free / log.total) / 100 if log.free and log.total else None
        most = min(_MOST_SHARE, free or 1)
        less = round(max(0.1, read.share - _LESS_SHARE), 2)
        left = read.weights_of(read.model.quantised("fp8")) / read.weights
        is_smaller = read.model.weights is None and left < 1 - OTHER_WEIGHTS
        more = next((n for n in _TIMES_GPUS if self._has_room(1 / n)), _TIMES_GPUS[-1])
        steps = self._steps()
        fp8 = _Change("fp8", options={"kv_dtype": "fp8"})
        weights = _Change("weights", options={"weights": "fp8"}, weights=left)
        options = {"gpus": more * read.memory.gpus}
        return {
            "utilisation": self._share(most) if most > read.share else (),
            "less": self._share(less),
            "free": self._share(free) if free else (),
            "others": [_Change("others", freed=None)],
            "eager": [_Change("eager", freed=None)],
            "steps": steps if steps and steps[0].freed != 0 else (),
            "sequences": [
                each._replace(freed=None) for each in steps if each.name == "max_num_seqs"
            ],
            "fp8": () if read.memory.kv_dtype else [fp8],
            "weights": [weights] if is_smaller else (),
            "gpus": [_Change("gpus", more * read.tensor, options, weights=1 / more)],
        }

    def _has_room(self, left: float) -> bool:
        """Whether a share of the weights is less than a GPU holds, if that is known."""
        return not self.read.total or self.read.weights * left < self.read.total

    def _share(self, share: float) -> Sequence[_Change]:
        """Another ``--gpu-memory-utilization``."""
        total = self.read.total
        freed = round((share - self.read.share) * total) if total else None
        return [_Change("utilisation", share, freed=freed)]

    def _steps(self) -> Sequence[_Change]:
        """Smaller steps, and what they free on a GPU of known size."""
        read, server = self.read, self.read.memory.server
        device, length = read.device, read.longest or _FEW["max_num_batched_tokens"]
        if read.total:
            server = replace(
                server, max_num_seqs=server.sequences(device, length),
                max_num_batched_tokens=server.batched_tokens(device, length),
            )  # fmt: skip
        fewer: dict[str, Any] = {
            name: few for name, few in _FEW.items() if (getattr(server, name) or inf) > few
        }
        freed = None
        if read.total:
            before, after = (
                rank_overhead(read.model, device, each, length, read.tensor).activations.middle
                for each in (server, replace(server, **fewer))
            )
            freed = max(0, before - after)
        changes = [_Change(name, few) for name, few in fewer.items()]
        return [each._replace(freed=freed) for each in changes[:1]] + changes[1:]

    def _with(self, *changes: _Change, length: int | None) -> list[dict[str, Any]]:
        """The start after changes, with the tokens of the cache; nothing: it fails again.

        Args:
            length: the maximum length; None: the longest that fits.
        """
        read, freed = self.read, [each.freed for each in changes]
        left = prod(each.weights for each in changes)
        if not self._has_room(left):
            return []
        if self.kv is None or None in freed:
            return [_remedy(changes)]
        kv = self.kv + sum(filter(None, freed)) + int(read.weights * (1 - left))
        options = {name: value for each in changes for name, value in each.options.items()}
        memory = replace(read.memory, **options)
        budget = replace(memory, budget=kv * memory.gpus)
        try:
            found = fit(read.name, read.device, budget, Question(max_length=length))
            is_enough = length is not None and found.capacity()["middle"]["starts"]
            if length is not None and not is_enough:
                found = fit(read.name, read.device, budget, Question())
        except UserError:  # not even a block, or heads that cannot be divided
            return []
        if changes[0].name == "max_length" and changes[0].value is None:
            changes = (changes[0]._replace(value=found.max_length),)
        tokens = found.capacity()["middle"]["tokens"]
        return [_remedy(changes, tokens, length if is_enough else None)]


def _remedy(
    changes: Sequence[_Change], tokens: int | None = None, enough: int | None = None
) -> dict[str, Any]:
    """Changes; ``enough``: the maximum length, where vLLM then starts with it."""
    first, *others = ({"name": each.name, "value": each.value} for each in changes)
    return {**first, "tokens": tokens, "enough": enough, "others": others}
