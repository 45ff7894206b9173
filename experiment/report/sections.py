"""The sections of a run's page behind the verdict, in their order, and where further ones go.

    1        2     3     4       5         6         7                   8            9      10
    verdict  peak  time  player  requests  readings  found │ experiment  [further …]  terms  about

What was seen stands in the section of the experiment where the run is one.
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
    found = _own("found")
    if results.experiment is not None:
        found = Section("experiment", message("experiments.nav"))
    return [
        *(_own(name) for name in BEFORE),
        found,
        *(section for section in further if section is not None),
        *(_own(name) for name in AFTER),
    ]


def _own(name: str) -> Section:
    key = f"{name}.title" if name == "player" else f"report.{name}.title"
    return Section(name, message(key))
