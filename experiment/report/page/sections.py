"""The sections of a run's page behind the verdict, in their order.

    1        2     3     4       5         6         7                    8      9
    verdict  peak  time  player  requests  readings  found or experiment  terms  about

The order is the same on every page: what a run says beyond one set of requests, an experiment's
cells and what the simulator foretold, is the seventh. An experiment's headline and first picture
stand in the verdict; its second to sixth sections look at one of its cells.
"""

from __future__ import annotations

from dataclasses import dataclass

from experiment.analysis.results import Results
from experiment.text.messages import Message, message

BEFORE = ("peak", "time", "player", "requests", "readings")
AFTER = ("terms", "about")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: the id of its heading, which names its template, and its title."""

    name: str
    title: Message


def sections(results: Results) -> list[Section]:
    """All sections of a run's page."""
    found = "found" if results.experiment is None else "experiment"
    return [_section(name) for name in (*BEFORE, found, *AFTER)]


def _section(name: str) -> Section:
    keys = {"player": "player.title", "experiment": "experiments.nav"}
    return Section(name, message(keys.get(name, f"report.{name}.title")))
