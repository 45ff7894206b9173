"""``reports/index.html``: the runs that lie beside each other, newest first, each with its verdict.

    reports/
      index.html            this page
      20260102-1504/        a run: report.html and run.json, which holds the headline
      sim-20260102-1604/    a simulation: report.html and sim.json
      compare-20260102-…/   two runs side by side: compare.html and compare.json
      claims-20260102-…/    the usual claims: claims.html and claims.json
      paper-20260102-…/     the paper's numbers: paper.html and paper.json
      bench/                a benchmark: bench.html and engine.json

It is made anew after each of these from the summaries alone; a directory without one is left out,
and one whose summary cannot be read is listed with that. Where a summary holds no time, that of its
file counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

from experiment.bench.data import FILE, BenchData
from experiment.compare.results import Comparison
from experiment.foreign import MAX_JSON_BYTES, parse_json, read_bounded
from experiment.messages import Message, UserError, message
from experiment.os_errors import writing
from experiment.record import CSV_ENCODING, RUN_FILE, write_atomic
from experiment.report import bench_page, claims_page, compare_words, paper, paper_page, sweep_page
from experiment.report.bilingual import Bilingual
from experiment.report.embed import safe_json
from experiment.report.html import page_assets, templates
from experiment.report.simulation.headline import headline
from experiment.simulate.record import SIM_FILE

INDEX_FILE = "index.html"
_PAGE = "report.html"
# Only such a directory is ours to write into; a run may be told to lie anywhere.
_NAME = "reports"


Kind = Literal[
    "run", "experiment", "simulation", "sweep", "compare", "claims", "paper", "bench", "unreadable"
]


@dataclass(frozen=True, slots=True)
class Entry:
    """A report: where it lies, when it was made and what it found."""

    name: str
    kind: Kind
    wall_ns: int
    offset_s: int
    verdict: Message
    status: str | None = None
    subject: str | None = None
    page: str = _PAGE

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


def write_listed(directory: Path, texts: Mapping[str, str], lang: str) -> list[Path]:
    """Write the files of a report by their names, and the index beside it; paths of all of them.

    Raises:
        UserError: one cannot be written.
    """
    with writing(directory):
        for name, text in texts.items():
            encoding = CSV_ENCODING if name.endswith(".csv") else "utf-8"
            write_atomic(directory / name, text, encoding)
        index = write_index(directory, lang)
    return [*(directory / name for name in texts), *([index] if index else [])]


def entries(reports: Path) -> list[Entry]:
    """All reports of a directory, newest first."""
    found = (_entry(path) for path in sorted(reports.iterdir()) if path.is_dir())
    return sorted((e for e in found if e is not None), key=lambda e: (-e.wall_ns, e.name))


def index_html(found: list[Entry], lang: str) -> str:
    """The page; ``lang`` is what it shows until someone switches."""
    b = Bilingual(lang)
    page: str = (
        templates(b)
        .get_template("index.html.j2")
        .render(lang=lang, **page_assets(), entries=found, data=safe_json({}), patterns="")
    )
    return page


def _entry(directory: Path) -> Entry | None:
    for name, (page, read) in _READERS.items():
        path = directory / name
        if not path.is_file() or not (directory / page).is_file():
            continue
        written = path.stat().st_mtime_ns
        try:
            entry = read(directory.name, parse_json(read_bounded(path, MAX_JSON_BYTES)))
            entry = replace(entry, page=page)
            if not entry.wall_ns:
                entry = replace(entry, wall_ns=written, offset_s=_offset(written))
            # What cannot be written down is no better than what cannot be read.
            _ = entry.when, Bilingual("en").message(entry.verdict)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
                UserError):  # fmt: skip
            unread = message("index.unreadable")
            return Entry(directory.name, "unreadable", written, _offset(written), unread, page=page)
        return entry
    return None


def _offset(wall_ns: int) -> int:
    """Seconds that this place is ahead of UTC at that time."""
    there = datetime.fromtimestamp(wall_ns / 1e9, UTC).astimezone().utcoffset()
    return int(there.total_seconds()) if there else 0


def _run(name: str, data: Mapping[str, Any]) -> Entry:
    results, config = data["results"], data["config"]
    model = config.get("model") or {}
    parts = (model.get("name"), model.get("dtype"), (config.get("run") or {}).get("device"))
    kind: Kind = "experiment" if results.get("experiment") else "run"
    return Entry(
        name, kind, int(data["wall_ns"]), int(data.get("utc_offset_s") or 0),
        Message.model_validate(results["headline"]), str(results["status"]),
        " · ".join(str(part) for part in parts if part),
    )  # fmt: skip


def _simulation(name: str, data: Mapping[str, Any]) -> Entry:
    return Entry(
        name, "simulation", int(data["wall_ns"]), int(data["utc_offset_s"]), headline(data)
    )


def _sweep(name: str, data: Mapping[str, Any]) -> Entry:
    return Entry(name, "sweep", 0, 0, sweep_page.counted(data), None, sweep_page.subject(data))


def _compare(name: str, data: Mapping[str, Any]) -> Entry:
    found = Comparison.model_validate(data)
    return Entry(
        name, "compare", 0, 0, compare_words.counted(found), None,
        f"{found.left.name} → {found.right.name}",
    )  # fmt: skip


def _claims(name: str, data: Mapping[str, Any]) -> Entry:
    verdicts = [str(claim["verdict"]) for claim in data["claims"]]
    return Entry(name, "claims", 0, 0, claims_page.counted(verdicts))


def _paper(name: str, data: Mapping[str, Any]) -> Entry:
    return Entry(name, "paper", 0, 0, paper.counted(data))


def _bench(name: str, data: Mapping[str, Any]) -> Entry:
    found = BenchData.model_validate(data)
    began = datetime.fromisoformat(found.started)
    ahead = began.utcoffset()
    seconds = int(ahead.total_seconds()) if ahead else 0
    model = found.model
    subject = " · ".join(str(model[key]) for key in ("name", "dtype") if model.get(key))
    wall_ns = int(began.timestamp() * 1e9)
    return Entry(name, "bench", wall_ns, seconds, bench_page.counted(found), None, subject)


_READERS: Mapping[str, tuple[str, Callable[[str, Mapping[str, Any]], Entry]]] = {
    RUN_FILE: (_PAGE, _run),
    SIM_FILE: (_PAGE, _simulation),
    "compare.json": ("compare.html", _compare),
    "claims.json": (claims_page.PAGE, _claims),
    "paper.json": (paper_page.PAGE, _paper),
    FILE: (bench_page.PAGE, _bench),
    sweep_page.FILE: (sweep_page.PAGE, _sweep),
}
