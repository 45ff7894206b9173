"""The runs by which claims are judged: find, read and validate them.

An existing run is used if it is complete, consistent and has the present config; otherwise it is
kept unchanged, and a new one is made next to it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from experiment import __version__
from experiment.analysis.experiment_results import ExperimentResult
from experiment.analysis.finding_text import listed
from experiment.config.schema import Config, make_config
from experiment.events import SCHEMA_VERSION, ModelPrepared, RunFinished
from experiment.experiments.claims import Judged, judge
from experiment.experiments.evaluate import evaluate_experiment
from experiment.experiments.found import Found
from experiment.experiments.measured import cells_of
from experiment.files.bounded_reading import check_inside, evaluating
from experiment.files.os_errors import os_reason, writing
from experiment.record.log import EVENTS_FILE, RUN_FILE, Record, read_record
from experiment.text.errors import UserError
from experiment.text.messages import Message, message
from experiment.text.redaction import cleaned_json, without_names

_Text = TypeVar("_Text", Config, Message)


@dataclass(frozen=True, slots=True)
class Kept:
    """The kept part of a run; the logs of all runs would exceed the memory limit of reading.

    ``status`` is None if the run did not end, ``result`` None for an ordinary run.
    """

    config: Config
    status: str | None
    changed_files: tuple[str, ...]
    random_weights: bool
    result: ExperimentResult | None


class Reader:
    """Read and evaluate run directories; cached, since each takes seconds and is needed twice."""

    def __init__(self) -> None:
        self._known: dict[Path, Kept | Message] = {}
        self._own: set[Path] = set()

    def ran(self, path: Path) -> None:
        """Read a run that this process has just made, without the memory limit."""
        self._own.add(path)

    def __call__(self, path: Path) -> Kept | Message:
        """The kept part of a run, or why it cannot be read."""
        if path not in self._known:
            try:
                with evaluating(path):
                    self._known[path] = _kept(read_record(path, own=path in self._own))
            except UserError as error:
                none = error.text.key in ("error.no_record", "error.record_empty")
                self._known[path] = message("claims.why.no_run") if none else error.text
        return self._known[path]


def _kept(record: Record) -> Kept | Message:
    """Evaluate a record, or return why not: another version or format."""
    started = record.started
    if started.version != __version__:
        return message("claims.why.version", version=started.version)
    if started.schema_version != SCHEMA_VERSION:
        return message("claims.why.format", found=started.schema_version)
    cells = cells_of(record)
    ends = record.of(RunFinished)
    return Kept(
        config=make_config(started.config),
        status=ends[-1].status if ends else None,
        changed_files=record.changed_files,
        random_weights=any(model.source == "random" for model in record.of(ModelPrepared)),
        result=evaluate_experiment(record, cells) if cells else None,
    )


def find_place(
    directory: Path, name: str, config: Config, read: Reader
) -> tuple[Path, bool, Mapping[Path, Message]]:
    """Find an experiment's usable run, or the next free name for one.

    Returns the path, whether it is a usable run, and why the others are not.

    Raises:
        UserError: the directory cannot be read.
    """
    unused: dict[Path, Message] = {}
    for number in count(1):
        path = directory / (name if number == 1 else f"{name}-{number}")
        _check_searched(directory, path)
        try:
            why = _outside(directory, path)
            if why is None and _is_free(path):
                return path, False, unused
        except OSError as error:
            params = {"path": str(error.filename), "why": os_reason(error)}
            why = message("claims.why.unreadable", **params)
        why = why or why_not(path, config, read)
        if why is None:
            return path, True, unused
        unused[path] = why
    raise AssertionError


def _check_searched(directory: Path, path: Path) -> None:
    """Check that names in the directory can be looked up; otherwise none would ever be free.

    Raises:
        UserError: they cannot.
    """
    with writing(directory), suppress(FileNotFoundError):
        path.lstat()


def _outside(directory: Path, path: Path) -> Message | None:
    """Why the path is not used: a link in it leads elsewhere; None if none does.

    Raises:
        OSError: it cannot be read.
    """
    try:
        for name in (EVENTS_FILE, RUN_FILE):
            check_inside(directory, path / name, opened=True)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return message("claims.why.link", path=str(error.filename))
    return None


def _is_free(path: Path) -> bool:
    """Whether a run can be written there: the path does not exist, or is an empty directory."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def why_not(path: Path, config: Config, read: Reader) -> Message | None:
    """Why an existing run cannot be used for ``config``; None if it can."""
    run = read(path)
    if isinstance(run, Kept) and run.config != _as_recorded(config):
        return message("claims.why.settings")
    found = _believed(run)
    return found if isinstance(found, Message) else None


def read_found(
    places: Mapping[str, Path], read: Reader
) -> tuple[dict[str, Found], dict[str, Message]]:
    """Findings of the valid runs; for the others, why they are not."""
    found: dict[str, Found] = {}
    unsound: dict[str, Message] = {}
    for name, path in places.items():
        if not (path / EVENTS_FILE).exists():
            continue
        one = _believed(read(path))
        if isinstance(one, Found):
            found[name] = one
        else:  # it is recorded, and may contain a path
            unsound[name] = _as_recorded(one)
    return found, unsound


def notes_on(found: Mapping[str, Found], places: Mapping[str, Path], read: Reader) -> list[Message]:
    """Notes on the reliability of verdicts: quick size, and times with a large spread."""
    notes = []
    if any(one.config.experiment.size == "quick" for one in found.values()):
        notes.append(message("claims.quick"))
    runs = {name: read(places[name]) for name in found}
    noisy = [name for name, run in runs.items()
             if isinstance(run, Kept) and run.result is not None and run.result.noisy]  # fmt: skip
    if noisy:
        notes.append(message("claims.noisy", experiments=listed(noisy)))
    return notes


def _believed(run: Kept | Message) -> Found | Message:
    """Findings of a run, or why they are not used: it is incomplete or contradicts itself."""
    if isinstance(run, Message):
        return run
    result = run.result
    if result is None or run.status in (None, "interrupted", "left"):
        return message("claims.why.broken_off")
    if len(result.cells) < result.cells_planned:
        return message("claims.why.broken_off")
    if run.changed_files:
        return message("claims.why.changed", files=", ".join(run.changed_files))
    if result.problems:
        return message("claims.why.contradicts", n=len(result.problems))
    if run.status != "complete":
        return message("claims.why.failed")
    return Found(run.config, result.cells, run.random_weights)


def _as_recorded(text: _Text) -> _Text:
    """Redact the home directory, as in a record."""
    return type(text).model_validate_json(cleaned_json(text.model_dump_json(), without_names))


def judge_runs(
    directory: Path, places: Mapping[str, Path], read: Reader
) -> tuple[list[Judged], list[Message]]:
    """Judge every claim by the existing runs; return notes on these runs too.

    Raises:
        UserError: a run exceeds the memory limit of reading.
    """
    found, unsound = read_found(places, read)
    with evaluating(directory):
        judged = judge(found, unsound)
    return judged, notes_on(found, places, read)


def claims_data(judged: Sequence[Judged], places: Mapping[str, Path]) -> dict[str, Any]:
    """Content of ``claims.json``."""
    return {"version": __version__, "claims": [claim_row(one, places) for one in judged]}


def claim_row(one: Judged, places: Mapping[str, Path]) -> dict[str, object]:
    """A claim in ``claims.json``."""
    claim, seen = one.claim, one.seen
    return {
        "claim": claim.name,
        "experiment": claim.experiment,
        "run": places[claim.experiment].name if claim.experiment in places else None,
        "value": seen.value if seen else None,
        "low": seen.low if seen else None,
        "high": seen.high if seen else None,
        "parts": [asdict(part) for part in seen.parts] if seen else [],
        "least": claim.least,
        "at_most": claim.at_most,
        "verdict": one.verdict,
        "reason": one.reason.model_dump() if one.reason else None,
    }
