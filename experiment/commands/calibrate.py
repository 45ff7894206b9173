"""``calibrate``: the time of a step, fitted to a recorded run, and how far that is off."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiment.commands import simulation_options as words
from experiment.commands.parser import attribute, make_parser, parse
from experiment.files.bounded_reading import check_replaceable
from experiment.record.log import EVENTS_FILE
from experiment.simulate.latency_file import latency_to_json, write_latency
from experiment.simulate.recorded import is_run, requests_file, step_records
from experiment.simulate.setup import Memory
from experiment.simulate.values import choice, whole
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error
from experiment.workload.kvsim_errors import translate_errors
from kvsim.files import file_sha256
from kvsim.latency.calibrate import Calibration, calibrate_linear, calibrate_roofline
from kvsim.latency.request_times import calibrate_requests, read_request_records
from kvsim.latency.roofline import LinearLatency, Roofline

_FOLDS = 5


def calibrate(arguments: list[str], t: Translator) -> int:
    """Run the command; returns the exit code.

    Raises:
        UserError: a word does not fit, or there is no record to fit to.
    """
    options = parse(_parser(t), arguments, ())
    if words.shows_list(options, t):
        return ExitCode.OK
    if not options.source:
        raise user_error("error.needs_run", command="calibrate")
    check_replaceable(options.out, "latency", "--out")
    folds = whole("--folds", options.folds, 2) or _FOLDS
    path = Path(options.source)
    data = _of_run(path, options, folds) if is_run(path) else _of_requests(path, options, folds)
    from experiment.report.console.calibration import show_calibration

    show_calibration(data, t.lang, options.ascii)
    if options.out:
        write_latency(Path(options.out), data)
    return ExitCode.OK


def _parser(t: Translator) -> argparse.ArgumentParser:
    parser = make_parser(t, "calibrate")
    parser.add_argument(
        "source", nargs="?", metavar="RUN|FILE", help=t("help.sim.calibrate_source")
    )
    words.add(parser, t, {flag: words.MODEL[flag] for flag in (*_MODEL, "--list")})
    words.add(parser, t, {"--arm": "ARM", "--folds": "N"})
    parser.add_argument("--out", metavar="FILE", help=t("help.sim.calibrate_out"))
    return parser


_MODEL = ("--model", "--gpu", "--gpus", "--dtype")


def _of_run(path: Path, options: argparse.Namespace, folds: int) -> dict[str, Any]:
    """Steps of our own log; with a model and a GPU a roofline, else a sum of costs."""
    arm, records = step_records(path, options.arm)
    if len(records) < folds:
        raise _too_few(path, len(records), folds)
    fitted: Calibration[Roofline] | Calibration[LinearLatency]
    if _given(options, _MODEL):
        model, gpu = words.model_and_gpu(options)
        memory = Memory(
            gpus=whole("--gpus", options.gpus) or 1,
            dtype=choice("--dtype", options.dtype, words.DTYPES),
        )
        memory.geometry(model)
        ideal = memory.roofline(model, gpu)
        assert isinstance(ideal, Roofline)
        fitted = calibrate_roofline(records, ideal, folds)
    else:
        fitted = calibrate_linear(records, folds)
    return {
        "kind": "latency",
        "source": path.name,
        "sha256": file_sha256(path / EVENTS_FILE),
        "arm": arm,
        "steps": len(records),
        "folds": folds,
        "latency": latency_to_json(fitted.latency),
        "errors": {"steps": _errors(fitted)},
    }


def _of_requests(path: Path, options: argparse.Namespace, folds: int) -> dict[str, Any]:
    """Requests with their times: a step's costs from what went on beside each."""
    path = requests_file(path)
    if unused := _given(options, (*_MODEL, "--arm")):
        raise user_error("error.sim.run_only", flags=", ".join(unused), path=str(path))
    with translate_errors():
        records, rejected = read_request_records(path)
    several = sum(record.output_tokens > 1 for record in records)
    if several < folds:
        raise _too_few(path, several, folds)
    fitted = calibrate_requests(records, folds)
    forward = {"decode": fitted.decode_forward, "prefill": fitted.prefill_forward}
    return {
        "kind": "latency",
        "source": path.name,
        "sha256": file_sha256(path),
        "requests": fitted.requests,
        "single_token": fitted.single_token,
        "rejected": [asdict(each) for each in rejected],
        "folds": folds,
        "latency": latency_to_json(fitted.decode.latency),
        "prefill": asdict(fitted.prefill.costs),
        "errors": {
            name: _errors(part) | {"forward": _plain(forward[name])}
            for name, part in (("decode", fitted.decode), ("prefill", fitted.prefill))
        },
    }


def _given(options: argparse.Namespace, flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if getattr(options, attribute(flag)) is not None]


def _errors(fitted: Any) -> dict[str, Any]:
    return {name: asdict(getattr(fitted, name)) for name in ("fit", "held_out", "constant")}


def _plain(error: Any) -> dict[str, Any] | None:
    return None if error is None else asdict(error)


def _too_few(path: Path, count: int, folds: int) -> Exception:
    return user_error("error.sim.few_records", path=str(path), count=count, folds=folds)
