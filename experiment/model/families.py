"""Which kinds of models run: equal tokens in every arm, or refused, and why.

``families.csv`` is made by ``make families`` from a tiny random model of every type that
Transformers registers for causal language models; ``python -m experiment.model.families`` prints
docs/families.md.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from experiment.text import Translator
from experiment.text.errors import UserError
from experiment.text.messages import Message, message
from kvsim.base.spelling import nearest
from kvsim.sizing.layers import Serving, layer_caches
from kvsim.sizing.models import UnknownModelError, find_model

# Reasons for a refusal: texts under ``families.reason``.
REASONS = (
    "encoder", "state", "latent", "window", "positions", "layout", "no_cache", "remote_code",
)  # fmt: skip
_OF_ERRORS: Mapping[str, str] = {
    "error.model.not_causal": "encoder",
    "error.model.sliding_window": "window",
    "error.model.remote_code": "remote_code",
    "error.model.unknown_type": "unknown_type",
}
_WELL_KNOWN = ("llama", "qwen3", "gpt2")
# A model of the catalogue with a cache of the kind that is refused.
_OF_KIND = {
    "state": "falcon-h1-7b", "latent": "deepseek-v2-lite", "window": "gemma-3-1b",
    "layout": "gemma-4-31b",
}  # fmt: skip

RESULTS = ("equal", "unequal", "refused")
ATTENTION = ("paged", "own")  # whose the paged engine runs


class Family(NamedTuple):
    """A row of the table.

    Attributes:
        family: ``model_type`` of its configs.
        architecture: the class that Transformers builds.
        result: one of :data:`RESULTS`.
        detail: one of :data:`ATTENTION`, or of :data:`REASONS`.
        transformers: the version.
    """

    family: str
    architecture: str
    result: str
    detail: str
    transformers: str


def reason_of(text: Message) -> str | None:
    """The reason of a refusal, of :data:`REASONS` or ``unknown_type``; None: another error."""
    params = text.params
    if text.key == "error.model.advice":
        return reason_of(Message.model_validate(params["refusal"]))
    if text.key == "error.model.refused":
        return Message.model_validate(params["why"]).key.rpartition(".")[2]
    return _OF_ERRORS.get(text.key)


def with_advice(error: UserError, config: Mapping[str, Any]) -> UserError:
    """A refusal of a family, with what runs instead; any other error as it is.

    Args:
        config: the refused config, as it lies on disk.
    """
    reason = reason_of(error.text)
    if reason is None:
        return error
    name, family = str(error.text.params["model"]), str(error.text.params["family"])
    running = [row.family for row in families() if row.result == "equal"]
    if reason == "window" and family in running:  # a lower maximum length runs
        return error
    close = nearest(family, [each for each in running if each != family], 3)
    key = "model.siblings" if close else "model.others"
    other = message(key, families=", ".join(close or _WELL_KNOWN))
    planned = _planned(name, reason, config)
    advice = {
        "refusal": error.text.model_dump(),
        "other": other.model_dump(),
        "planned": planned.model_dump() if planned else "",
    }
    return UserError(message("error.model.advice", **advice), error.exit_code)


def _planned(name: str, reason: str, config: Mapping[str, Any]) -> Message | None:
    """What ``plan`` counts: the model itself, or one of the catalogue of its kind."""
    with suppress(UnknownModelError):
        return message("model.planned", model=find_model(name).name)
    if reason not in _OF_KIND:
        return None
    with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        if layer_caches(config, Serving()):
            return message("model.planned_file", model=name)
    return message("model.planned_kind", model=_OF_KIND[reason])


@cache
def families() -> tuple[Family, ...]:
    """The table, in alphabetical order."""
    path = Path(__file__).with_name("families.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        return tuple(Family(*row) for row in rows)


def described(row: Family, t: Translator) -> tuple[str, str]:
    """Result and detail of a row, as texts."""
    key = "reason" if row.result == "refused" else "attention"
    detail = t(f"families.{key}.{row.detail}")
    return t(f"families.result.{row.result}"), detail


def counted(rows: Iterable[Family], t: Translator) -> str:
    """How many rows have each result."""
    counts = Counter(row.result for row in rows)
    texts = (f"{n} {t(f'families.result.{each}')}" for each, n in counts.items())
    return ", ".join(texts)


def markdown(t: Translator) -> str:
    """The page docs/families.md."""
    rows = families()
    lines = [
        f"# {t('families.title')}",
        "",
        t("families.about", version=rows[0].transformers),
        "",
        f"{counted(rows, t)}.",
        "",
        f"| {t('families.family')} | {t('families.class')} | {t('families.head')} | |",
        "|---|---|---|---|",
    ]
    for row in rows:
        result, detail = described(row, t)
        lines.append(f"| `{row.family}` | {row.architecture} | {result} | {detail} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(Translator("en")), end="")
