"""The sections of a run's page behind the verdict, in their order, and where further ones go.

    1        2     3     4       5         6         7      8            9      10
    verdict  peak  time  player  requests  readings  found  [further …]  terms  about

    1        2           3     4     5       6         7         8
    verdict  experiment  peak  time  player  requests  readings  simulator  …

An experiment comes first: the other sections look at one of its cells, and its own findings, which
heed all repeats, stand for what was seen. What its arms did beside the simulator stays.
A section of this package is a template of its name. Whoever has more to show about a run, such as
an experiment or a prediction, adds a :data:`Builder` to :data:`FURTHER`; it returns None for runs
that it has nothing to say of, and its body is markup in both languages (see
:class:`~experiment.report.bilingual.Bilingual`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from experiment.messages import Message, message
from experiment.record import Record
from experiment.report.bilingual import Bilingual
from experiment.results import Results

BEFORE = ("peak", "time", "player", "requests", "readings")
AFTER = ("terms", "about")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: the id of its heading, its title, and its body or None for a template."""

    name: str
    title: Message
    body: Markup | None = None


Builder = Callable[[Bilingual, Record, Results], Section | None]
FURTHER: tuple[Builder, ...] = ()


def sections(b: Bilingual, record: Record, results: Results) -> list[Section]:
    """All sections of a run's page."""
    further = [build(b, record, results) for build in FURTHER]
    return [
        *_with_findings(results),
        *(section for section in further if section is not None),
        *(_own(name) for name in AFTER),
    ]


def _with_findings(results: Results) -> list[Section]:
    """What the run shows, where it belongs among the sections of its memory and requests."""
    before = [_own(name) for name in BEFORE]
    if results.experiment is None:
        return [*before, _own("found")]
    found = [Section("experiment", message("experiments.nav")), *before]
    if any(arm.simulator for arm in results.arms):
        found.append(Section("simulator", message("simulator.title")))
    return found


def _own(name: str) -> Section:
    key = f"{name}.title" if name == "player" else f"report.{name}.title"
    return Section(name, message(key))
