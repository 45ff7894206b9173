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
from typing import NamedTuple

from experiment.text import Translator
from experiment.text.errors import UserError
from experiment.text.messages import Message, message
from kvsim.sizing.models import UnknownModelError, find_model
from kvsim.spelling import nearest

# Reasons for a refusal, by the texts under ``error.model`` that give them.
REASONS: Mapping[str, tuple[str, ...]] = {
    "encoder": ("encoder_decoder", "not_causal"),
    "state": ("recurrent", "layer_types"),
    "latent": ("latent",),
    "window": ("sliding_window",),
    "positions": ("positions",),
    "layout": ("cache_layout",),
    "no_cache": ("no_cache",),
    "remote_code": ("remote_code",),
}


RESULTS = ("equal", "unequal", "refused", "not_built")
ATTENTION = ("paged", "own")  # whose the paged engine runs


class Family(NamedTuple):
    """A row of the table.

    Attributes:
        family: ``model_type`` of its configs.
        architecture: the class that Transformers builds; empty where it builds none.
        result: one of :data:`RESULTS`.
        detail: one of :data:`ATTENTION`; the reason; why Transformers builds no tiny model.
        transformers: the version.
    """

    family: str
    architecture: str
    result: str
    detail: str
    transformers: str


def reason_of(text: Message) -> str:
    """The reason of a refusal; the text's own key where it is none of :data:`REASONS`."""
    refusal = text.params.get("refusal")
    if refusal is not None:
        return reason_of(Message.model_validate(refusal))
    key = text.key.removeprefix("error.model.")
    return next((reason for reason, keys in REASONS.items() if key in keys), key)


def with_advice(error: UserError, family: str, name: str) -> UserError:
    """A refusal of a family, with what runs instead; any other error as it is.

    Args:
        family: ``model_type`` of the config.
        name: what the person called the model.
    """
    if reason_of(error.text) not in REASONS:
        return error
    running = [row.family for row in families() if row.result == "equal" and row.family != family]
    close = ", ".join(nearest(family, running, 3))
    other = message("model.siblings", families=close) if close else None
    with suppress(UnknownModelError):
        other = message("model.planned", model=find_model(name).name)
    advice = {"refusal": error.text.model_dump(), "other": other.model_dump() if other else ""}
    return UserError(message("error.model.advice", **advice), error.exit_code)


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
    key = {"equal": "attention", "refused": "reason"}.get(row.result)
    detail = t(f"families.{key}.{row.detail}") if key else row.detail
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
