"""Data of the player's template: films of the arms, the two to open, and texts.

The script composes sentences, so it gets the texts under ``player`` in both languages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from experiment.events import WorkloadReady
from experiment.record.log import Record
from experiment.replay.arm_events import ArmEvents, arms_of
from experiment.report.facts.bilingual import Bilingual
from experiment.report.html.embed import safe_json
from experiment.report.player.film import MAX_BYTES as MAX_OF_ONE
from experiment.report.player.film import Film, films
from experiment.text import LANGUAGES, catalogue
from experiment.text.messages import arm_message

_LEFT = ("contiguous.batch", "slabs", "contiguous.sequential", "contiguous.growing")
_RIGHT = ("paged", "vllm", "transformers_paged")
_PREFIX = "player."
# Bytes of all films of a page; further arms are omitted, except the two that open first.
MAX_BYTES = 900_000


@dataclass(frozen=True, slots=True)
class Stage:
    """The player of a run: available arms, those that open first, and the embedded data.

    ``size`` is the size of the films in bytes. ``engine``: whether any engine reserves blocks for
    itself.
    """

    arms: list[str]
    left: str
    right: str
    left_out: list[str]
    data: Markup
    size: int
    engine: bool


def stage(b: Bilingual, record: Record, room: int = MAX_BYTES) -> Stage | None:
    """The player's part of the page, in ``room`` bytes; None without logged steps."""
    workload = record.first(WorkloadReady)
    longest = workload.max_length if workload else 0
    arms = [(events, _slab(events, longest)) for events in arms_of(record)]
    made = {one.arm: one for one in films(arms, min(MAX_OF_ONE, room // 2))}
    if not made:
        return None
    names = list(made)
    left = _first(_LEFT, names) or names[0]
    right = _first(_RIGHT, [name for name in names if name != left]) or names[-1]
    kept = _within(made, (left, right), room)
    data = {
        "films": [made[name].data for name in kept],
        "texts": {lang: _texts(b, lang, kept) for lang in LANGUAGES},
    }
    out = [name for name in names if name not in kept]
    size = sum(_size(made[name]) for name in kept)
    engine = any(made[name].data["engine"] for name in kept)
    return Stage(kept, left, right, out, safe_json(data), size, engine)


def _slab(events: ArmEvents, longest: int) -> bool:
    """Whether a block has space for a whole request, so that it is drawn as a row."""
    pool = events.pool
    return pool is not None and (pool.elastic or pool.block_size >= max(longest, 2))


def _first(wanted: tuple[str, ...], names: list[str]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _within(made: dict[str, Film], first: tuple[str, str], room: int) -> list[str]:
    """Arms whose films fit into ``room`` bytes, in order."""
    chosen: set[str] = set()
    for name in sorted(made, key=lambda name: name not in first):
        size = _size(made[name])
        if name in first or size <= room:
            chosen.add(name)
            room -= size
    return [name for name in made if name in chosen]


def _size(film: Film) -> int:
    return len(json.dumps(film.data, separators=(",", ":")))


def _texts(b: Bilingual, lang: str, arms: list[str]) -> dict[str, Any]:
    """Texts of the script, and names of the arms."""
    texts = {
        key.removeprefix(_PREFIX): text
        for key, text in catalogue(lang).items()
        if key.startswith(_PREFIX)
    }
    return texts | {f"arm.{arm}": b.plain(lang, arm_message(arm)) for arm in arms}
