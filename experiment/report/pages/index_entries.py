"""Entries of a ``reports`` directory, read from the summary of each report.

    reports/
      20260102-1504/        a run: report.html and run.json, which holds the headline
      sim-20260102-1604/    a simulation: report.html and sim.json
      compare-20260102-…/   a comparison: compare.html and compare.json
      claims-20260102-…/    the claims: claims.html and claims.json
      paper-20260102-…/     the paper's numbers: paper.html and paper.json
      bench/                a benchmark: bench.html and engine.json
  gpucheck-20260102-…/  a check of the engine on a GPU: report.html and gpucheck.json
      sweep-block-size/     a grid: sweep.html and summary.json
      20260103-0902/        events.jsonl alone: a run that goes on, or was broken off

A directory with none of these is left out, and one whose summary cannot be read is listed with
that. Where a summary holds no time, that of its file counts.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from experiment.bench.data import FILE, BenchData
from experiment.compare.results import Comparison
from experiment.experiments.findings import note
from experiment.files.bounded_reading import MAX_JSON_BYTES, parse_json, read_bounded
from experiment.gpucheck import result as gpucheck
from experiment.record.log import EVENTS_FILE, RUN_FILE
from experiment.record.simulation import SIM_FILE
from experiment.report.facts import compare as compare_words
from experiment.report.facts import paper as paper_facts
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.simulation_cells import headline
from experiment.report.facts.texts import date_text
from experiment.report.pages import bench as bench_page
from experiment.report.pages import claims as claims_page
from experiment.report.pages import paper as paper_page
from experiment.report.pages import sweep as sweep_page
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.text.messages import Message, message

_PAGE = "report.html"
# Of all summaries together, smallest first; ours take about 0.1 MB each.
_MAX_BYTES = 256 << 20
# The first line of a log: the command and the config.
_MAX_LINE = 1 << 20
# A headline is a sentence; what is longer was not written by this program.
_MAX_WORDS = 2000
# In the config of a run that has not ended: nothing that anybody would look for.
_ASKED = "auto"

Kind = Literal[
    "run", "experiment", "simulation", "sweep", "compare", "claims", "paper", "bench",
    "gpucheck", "unfinished", "unreadable",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A report: directory, time and verdict.

    Attributes:
        file: the summary of the report.
        key: path of the verdict in it; None if computed.
        when_key: path of the time in it; None: time of the file.
        page: file name of the page; None if there is none.
    """

    name: str
    kind: Kind
    wall_ns: int
    offset_s: int
    verdict: Message
    status: str | None = None
    subject: str | None = None
    page: str | None = _PAGE
    file: str = RUN_FILE
    key: str | None = None
    when_key: str | None = "wall_ns"

    @property
    def when(self) -> str:
        """Local date and time of the report."""
        return date_text(self.wall_ns, self.offset_s)


# Of a file: the year 9000. Clocks and zones have none beyond 9999.
_LAST_NS = 7030 * 365 * 86_400 * 10**9
# Fields of an entry that a summary gives.
Fields = dict[str, Any]
Reader = Callable[[Mapping[str, Any]], Fields]


def entries(reports: Path) -> list[Entry]:
    """All reports of a directory, newest first.

    Summaries are read up to a limit on their sum; the largest beyond it are ``unreadable``.
    """
    summaries = [each for path in reports.iterdir() if (each := _summary(path)) is not None]
    found, left = [], _MAX_BYTES
    for size, unread, read in sorted(summaries, key=lambda each: each[0]):
        left -= size
        found.append(_read(reports, unread, read) if left >= 0 else unread)
    return sorted(found, key=lambda e: (-e.wall_ns, e.name))


def _summary(directory: Path) -> tuple[int, Entry, Reader] | None:
    """Size of the summary, the entry as long as it is not read, and its reader."""
    for file, (page, read) in _READERS.items():
        try:
            about = (directory / file).lstat()  # a linked summary is another report's
            there = page is None or (directory / page).is_file()
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode) and there:
            size = min(about.st_size, _MAX_LINE if page is None else MAX_JSON_BYTES)
            written = min(max(about.st_mtime_ns, 0), _LAST_NS)
            zone = datetime.fromtimestamp(written / 1e9, UTC).astimezone().utcoffset()
            return size, Entry(
                directory.name, "unreadable", written, int(zone.total_seconds()) if zone else 0,
                message("index.unread"), page=page, file=file, when_key=None,
            ), read  # fmt: skip
    return None


def _read(reports: Path, unread: Entry, read: Reader) -> Entry:
    path = reports / unread.name / unread.file
    try:
        text = read_bounded(path, MAX_JSON_BYTES) if unread.page else _first_line(path)
        entry = replace(unread, **read(parse_json(text)))
        _check(entry)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
            MemoryError, RecursionError, UserError):  # fmt: skip
        return unread
    return entry


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline(_MAX_LINE)


def _check(entry: Entry) -> None:
    """Check that an entry can be written.

    Raises:
        ValueError: an invalid time or text.
    """
    b = Bilingual(LANGUAGES[0])
    told = [*(b.plain(lang, entry.verdict) for lang in LANGUAGES), str(entry.subject)]
    if not entry.when or max(map(len, told)) > _MAX_WORDS:
        raise ValueError(entry.name)
    for text in told:
        text.encode()


def _run(data: Mapping[str, Any]) -> Fields:
    results = data["results"]
    found, verdict = results.get("experiment"), Message.model_validate(results["headline"])
    fields = {
        "kind": "experiment" if found else "run", "verdict": verdict, "key": "results.headline",
        "status": str(results["status"]), "subject": _subject(data["config"]), **_when(data),
    }  # fmt: skip
    try:
        Translator("en").message(verdict)
    except KeyError:  # of an older version, whose texts are no more
        if found:
            fields |= {"verdict": note(str(found["name"]), "question"), "key": None}
    return fields


def _unfinished(data: Mapping[str, Any]) -> Fields:
    """Entry from the first line of a log."""
    if data["event"] != "run_started":
        raise ValueError(data["event"])
    verdict, subject = message("index.no_report"), _subject(data["config"])
    return {"kind": "unfinished", "verdict": verdict, "subject": subject, **_when(data)}


def _when(data: Mapping[str, Any]) -> Fields:
    offset = int(data.get("utc_offset_s") or 0)
    return {"wall_ns": int(data["wall_ns"]), "offset_s": offset, "when_key": "wall_ns"}


def _subject(config: Mapping[str, Any]) -> str:
    model = config.get("model") or {}
    parts = (model.get("name"), model.get("dtype"), (config.get("run") or {}).get("device"))
    return " · ".join(str(part) for part in parts if part and part != _ASKED)


def _simulation(data: Mapping[str, Any]) -> Fields:
    return {"kind": "simulation", "verdict": headline(data), **_when(data)}


def _compare(data: Mapping[str, Any]) -> Fields:
    comparison = Comparison.model_validate(data)
    sides = f"{comparison.left.name} → {comparison.right.name}"
    return {"kind": "compare", "verdict": compare_words.counted(comparison), "subject": sides}


def _bench(data: Mapping[str, Any]) -> Fields:
    benchmark = BenchData.model_validate(data)
    began, model = datetime.fromisoformat(benchmark.started), benchmark.model
    ahead = began.utcoffset()
    return {
        "kind": "bench", "verdict": bench_page.counted(benchmark), "when_key": "started",
        "wall_ns": int(began.timestamp() * 1e9),
        "offset_s": int(ahead.total_seconds()) if ahead else 0,
        "subject": " · ".join(str(model[key]) for key in ("name", "dtype") if model.get(key)),
    }  # fmt: skip


def _gpucheck(data: Mapping[str, Any]) -> Fields:
    check = gpucheck.GpuCheck.model_validate(data)
    subject = check.device_name
    return {"kind": "gpucheck", "verdict": check.headline, "subject": subject, **_when(data)}


def _claims(data: Mapping[str, Any]) -> Fields:
    verdicts = (str(claim["verdict"]) for claim in data["claims"])
    return {"kind": "claims", "verdict": claims_page.counted(verdicts)}


def _sweep(data: Mapping[str, Any]) -> Fields:
    verdict, subject = sweep_page.headline(data), sweep_page.subject(data)
    return {"kind": "sweep", "verdict": verdict, "subject": subject}


# By summary: its page, None of a log.
_READERS: Mapping[str, tuple[str | None, Reader]] = {
    RUN_FILE: (_PAGE, _run),
    SIM_FILE: (_PAGE, _simulation),
    "compare.json": ("compare.html", _compare),
    "claims.json": (claims_page.PAGE, _claims),
    "paper.json": (
        paper_page.PAGE, lambda data: {"kind": "paper", "verdict": paper_facts.counted(data)}
    ),
    FILE: (bench_page.PAGE, _bench),
    gpucheck.FILE: (gpucheck.PAGE, _gpucheck),
    sweep_page.FILE: (sweep_page.PAGE, _sweep),
    EVENTS_FILE: (None, _unfinished),
}  # fmt: skip
