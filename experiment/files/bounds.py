"""Upper bounds on declared sizes that become a list, a loop or an allocation.

Files of this program stay far below them. Bytes are bounded in ``files.bounded_reading``, memory of
parsing in ``files.parse_memory``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from experiment.text.messages import Message

# Parts of a dotted key in TOML. Memory grows quadratically with them; keys here have up to 5.
MAX_KEY_PARTS = 16
# Of the file names in run.json.
MAX_FILES, MAX_FILE_NAME = 4096, 255
# Of a log: a report shows each of them.
MAX_ARMS = 20
MAX_EVENTS = {"cell": 512, "notice": 2_000, "run_resumed": 200}
MAX_FACTS = 10_000
_FACTS = {
    "run_started": "config", "environment": "environment", "cell": "overrides",
    "engine": "arguments", "model": "notes",
}  # fmt: skip


class LogBounds:
    """Check the events of one log, in order."""

    def __init__(self) -> None:
        self._arms: set[str | None] = set()
        self._events: Counter[str] = Counter()

    def check(self, event: Any) -> None:
        """Count an event of :mod:`experiment.events`.

        Raises:
            ValueError: the log exceeds a bound.
        """
        kind = event.event
        arms = self._arms.union(getattr(event, "arms", ()), [getattr(event, "arm", None)])
        if len(arms) > MAX_ARMS:
            raise ValueError(f"more than {MAX_ARMS} arms")
        self._arms = arms
        if kind in MAX_EVENTS:
            self._events[kind] += 1
            if self._events[kind] > MAX_EVENTS[kind]:
                raise ValueError(f"more than {MAX_EVENTS[kind]} events of the kind {kind}")
        if kind in _FACTS and _count(getattr(event, _FACTS[kind])) > MAX_FACTS:
            raise ValueError(f"more than {MAX_FACTS} facts in an event of the kind {kind}")


def _count(value: Any) -> int:
    """Count values at any depth; a workload or a list of plain values counts as one."""
    count, left = 0, [value]
    while left:
        each = left.pop()
        each = each.params if isinstance(each, Message) else each
        if isinstance(each, dict):
            left += (inner for key, inner in each.items() if key != "workload")
        elif isinstance(each, list):
            left += (inner for inner in each if isinstance(inner, dict | list | Message))
        count += 1
    return count
