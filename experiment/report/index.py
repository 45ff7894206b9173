"""``reports/index.html``: the runs that lie beside each other, newest first, each with its verdict.

    reports/
      index.html            this page
      20260102-1504/        a run: report.html and run.json, which holds the headline
      sim-20260102-1604/    a simulation: report.html and sim.json

It is made anew after each run from the summaries alone; a directory without one is left out, and
one whose summary cannot be read is listed with that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

from experiment.messages import Message, message
from experiment.record import RUN_FILE, write_atomic
from experiment.report.bilingual import Bilingual
from experiment.report.embed import safe_json
from experiment.report.html import page_assets, templates
from experiment.report.simulation.headline import headline

INDEX_FILE = "index.html"
_SIM_FILE = "sim.json"
_PAGE = "report.html"
# Only such a directory is ours to write into; a run may be told to lie anywhere.
_NAME = "reports"


@dataclass(frozen=True, slots=True)
class Entry:
    """A report: where it lies, when it was made and what it found."""

    name: str
    kind: Literal["run", "simulation", "unreadable"]
    wall_ns: int
    offset_s: int
    verdict: Message
    status: str | None = None
    subject: str | None = None

    @property
    def when(self) -> str:
        """Date and time where it was made."""
        zone = timezone(timedelta(seconds=self.offset_s))
        moment = datetime.fromtimestamp(self.wall_ns / 1e9, UTC).astimezone(zone)
        return moment.strftime("%Y-%m-%d %H:%M")


def write_index(directory: Path, lang: str) -> Path | None:
    """Write the index beside a run's directory; None where that is no ``reports`` directory.

    Raises:
        OSError: it cannot be written.
    """
    if directory.resolve().parent.name != _NAME:
        return None
    reports = directory.parent
    path = reports / INDEX_FILE
    write_atomic(path, index_html(entries(reports), lang))
    return path


def entries(reports: Path) -> list[Entry]:
    """All reports of a directory, newest first."""
    found = (_entry(path.parent) for path in sorted(reports.glob(f"*/{_PAGE}")))
    return sorted((e for e in found if e is not None), key=lambda e: (-e.wall_ns, e.name))


def index_html(found: list[Entry], lang: str) -> str:
    """The page; ``lang`` is what it shows until someone switches."""
    b = Bilingual(lang)
    page: str = (
        templates(b)
        .get_template("index.html.j2")
        .render(
            lang=lang, **page_assets(), entries=found, data=safe_json({}), patterns="", page=_PAGE
        )
    )
    return page


def _entry(directory: Path) -> Entry | None:
    for name, read in ((RUN_FILE, _run), (_SIM_FILE, _simulation)):
        path = directory / name
        if not path.is_file():
            continue
        try:
            entry = read(directory.name, json.loads(path.read_text(encoding="utf-8")))
            # What cannot be written down is no better than what cannot be read.
            _ = entry.when, Bilingual("en").message(entry.verdict)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            written = path.stat().st_mtime_ns
            return Entry(directory.name, "unreadable", written, 0, message("index.unreadable"))
        return entry
    return None


def _run(name: str, data: Mapping[str, Any]) -> Entry:
    results, config = data["results"], data["config"]
    model = config.get("model") or {}
    parts = (model.get("name"), model.get("dtype"), (config.get("run") or {}).get("device"))
    return Entry(
        name, "run", int(data["wall_ns"]), int(data.get("utc_offset_s") or 0),
        Message.model_validate(results["headline"]), str(results["status"]),
        " · ".join(str(part) for part in parts if part),
    )  # fmt: skip


def _simulation(name: str, data: Mapping[str, Any]) -> Entry:
    return Entry(
        name, "simulation", int(data["wall_ns"]), int(data["utc_offset_s"]), headline(data)
    )
