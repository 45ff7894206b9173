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
from experiment.report.pages import (
    bench as bench_page,
)
from experiment.report.pages import (
    claims as claims_page,
)
from experiment.report.pages import (
    paper as paper_page,
)
from experiment.report.pages import (
    sweep as sweep_page,
)
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
Reader = Callable[[str, Mapping[str, Any]], Entry]


def entries(reports: Path) -> list[Entry]:
    """All reports of a directory, newest first.

    Summaries are read up to a limit on their sum; the largest beyond it are ``unreadable``.
    """
    summaries = [each for path in reports.iterdir() if (each := _summary(path)) is not None]
    found, left = [], _MAX_BYTES
    for each in sorted(summaries, key=lambda each: each.size):
        left -= each.size
        found.append(_read(each) if left >= 0 else _unread(each))
    return sorted(found, key=lambda e: (-e.wall_ns, e.name))


@dataclass(frozen=True, slots=True)
class _Summary:
    """The file that an entry is read from; ``page`` is None of a log."""

    path: Path
    page: str | None
    read: Reader
    size: int
    written_ns: int


def _summary(directory: Path) -> _Summary | None:
    for file, (page, read) in (*_READERS.items(), (EVENTS_FILE, (None, _unfinished))):
        try:
            about = (directory / file).lstat()  # a linked summary is another report's
            there = page is None or (directory / page).is_file()
        except OSError:
            continue
        if stat.S_ISREG(about.st_mode) and there:
            size = min(about.st_size, _MAX_LINE if page is None else MAX_JSON_BYTES)
            written = min(max(about.st_mtime_ns, 0), _LAST_NS)
            return _Summary(directory / file, page, read, size, written)
    return None


def _read(summary: _Summary) -> Entry:
    path, page, written = summary.path, summary.page, summary.written_ns
    try:
        text = read_bounded(path, MAX_JSON_BYTES) if page else _first_line(path)
        entry = summary.read(path.parent.name, parse_json(text))
        entry = replace(entry, page=page, file=path.name)
        if not entry.wall_ns:
            when = {"wall_ns": written, "offset_s": _offset(written), "when_key": None}
            entry = replace(entry, **when)  # type: ignore[arg-type]
        _check(entry)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
            MemoryError, RecursionError, UserError):  # fmt: skip
        return _unread(summary)
    return entry


def _unread(summary: _Summary) -> Entry:
    unread = message("index.unread" if summary.page else "index.unread_log")
    return Entry(
        summary.path.parent.name, "unreadable", summary.written_ns, _offset(summary.written_ns),
        unread, page=summary.page, file=summary.path.name, when_key=None,
    )  # fmt: skip


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


def _offset(wall_ns: int) -> int:
    """Local offset from UTC at a time, in seconds."""
    there = datetime.fromtimestamp(wall_ns / 1e9, UTC).astimezone().utcoffset()
    return int(there.total_seconds()) if there else 0


def _run(name: str, data: Mapping[str, Any]) -> Entry:
    results = data["results"]
    found, verdict = results.get("experiment"), Message.model_validate(results["headline"])
    kind: Kind = "experiment" if found else "run"
    old = bool(found) and not _has_texts(verdict)
    return Entry(
        name, kind, int(data["wall_ns"]), int(data.get("utc_offset_s") or 0),
        note(str(found["name"]), "question") if old else verdict, str(results["status"]),
        _subject(data["config"]), key=None if old else "results.headline",
    )  # fmt: skip


def _has_texts(verdict: Message) -> bool:
    """Whether the catalogues hold all of its texts, as they may not those of an older version."""
    try:
        Translator("en").message(verdict)
    except KeyError:
        return False
    return True


def _unfinished(name: str, data: Mapping[str, Any]) -> Entry:
    """Entry from the first line of a log."""
    if data["event"] != "run_started":
        raise ValueError(name)
    return Entry(
        name, "unfinished", int(data["wall_ns"]), int(data["utc_offset_s"]),
        message("index.no_report"), None, _subject(data["config"]),
    )  # fmt: skip


def _subject(config: Mapping[str, Any]) -> str:
    model = config.get("model") or {}
    parts = (model.get("name"), model.get("dtype"), (config.get("run") or {}).get("device"))
    return " · ".join(str(part) for part in parts if part and part != _ASKED)


def _compare(name: str, data: Mapping[str, Any]) -> Entry:
    comparison = Comparison.model_validate(data)
    return Entry(
        name, "compare", 0, 0, compare_words.counted(comparison), None,
        f"{comparison.left.name} → {comparison.right.name}",
    )  # fmt: skip


def _bench(name: str, data: Mapping[str, Any]) -> Entry:
    benchmark = BenchData.model_validate(data)
    began = datetime.fromisoformat(benchmark.started)
    ahead = began.utcoffset()
    seconds = int(ahead.total_seconds()) if ahead else 0
    model = benchmark.model
    subject = " · ".join(str(model[key]) for key in ("name", "dtype") if model.get(key))
    return Entry(
        name, "bench", int(began.timestamp() * 1e9), seconds, bench_page.counted(benchmark), None,
        subject, when_key="started",
    )  # fmt: skip


def _gpucheck(name: str, data: Mapping[str, Any]) -> Entry:
    check = gpucheck.GpuCheck.model_validate(data)
    return Entry(
        name, "gpucheck", check.wall_ns, check.utc_offset_s, check.headline, None,
        check.device_name,
    )  # fmt: skip


def _claims(name: str, data: Mapping[str, Any]) -> Entry:
    verdicts = (str(claim["verdict"]) for claim in data["claims"])
    return Entry(name, "claims", 0, 0, claims_page.counted(verdicts))


_READERS: Mapping[str, tuple[str, Reader]] = {
    RUN_FILE: (_PAGE, _run),
    SIM_FILE: (
        _PAGE,
        lambda name, data: Entry(
            name, "simulation", int(data["wall_ns"]), int(data["utc_offset_s"]), headline(data)
        ),
    ),
    "compare.json": ("compare.html", _compare),
    "claims.json": (claims_page.PAGE, _claims),
    "paper.json": (
        paper_page.PAGE,
        lambda name, data: Entry(name, "paper", 0, 0, paper_facts.counted(data)),
    ),
    FILE: (bench_page.PAGE, _bench),
    gpucheck.FILE: (gpucheck.PAGE, _gpucheck),
    sweep_page.FILE: (
        sweep_page.PAGE,
        lambda name, data: Entry(
            name, "sweep", 0, 0, sweep_page.headline(data), None, sweep_page.subject(data)
        ),
    ),
}
