"""The sections of a run's page behind the verdict, in their order, and where further ones go.

    verdict │ [experiment]  peak  time  player  requests  readings  found  [further …]  terms  about

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

BEFORE = ("peak", "time", "player", "requests", "readings", "found")
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
    experiment = results.experiment
    return [
        *([Section("experiment", message("experiments.nav"))] if experiment else []),
        *(_own(name) for name in BEFORE),
        *(section for section in further if section is not None),
        *(_own(name) for name in AFTER),
    ]


def _own(name: str) -> Section:
    key = f"{name}.title" if name == "player" else f"report.{name}.title"
    return Section(name, message(key))
