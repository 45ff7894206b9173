"""``claims``: runs the experiments that common claims are judged by, and prints the verdicts.

claims ─► out/capacity  out/context ... ─► read again ─► table, claims.json
          what is there already is not run once more
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from experiment import __version__
from experiment.config import load_config, make_config, parse_assignment
from experiment.experiments.claims import Judged, judge, needed
from experiment.experiments.evaluate import evaluate_experiment
from experiment.experiments.found import Found
from experiment.experiments.measured import cells_of
from experiment.i18n import Translator
from experiment.messages import ExitCode, UserError, user_error
from experiment.os_errors import os_reason
from experiment.record import read_record, write_atomic
from experiment.shipped import CONFIGS
from experiment.words import make_parser, parse

SUMMARY = "run.json"


def claims(words: list[str], t: Translator) -> int:
    """Run what is missing and judge every claim; a claim that is not shown is no failure.

    Raises:
        UserError: a value that does not fit, or a directory that cannot be written.
    """
    options = parse(_parser(t), words, ())
    time = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    directory = Path(options.out) if options.out else Path("reports") / f"claims-{time}"
    from experiment.report.claims import ClaimsConsole

    console = ClaimsConsole(t.lang, options.ascii)
    code = int(ExitCode.OK)
    names = needed()
    for number, name in enumerate(names, 1):
        if not (directory / name / SUMMARY).exists():
            console.begin(name, number, len(names))
            code = _run(name, directory / name, options, t) or code
        if code == ExitCode.INTERRUPTED:
            return code
    found = read_found(directory, names)
    judged = judge(found)
    sizes = {name: one.config.experiment.size for name, one in found.items()}
    console.show(judged, sizes)
    for path in _write(directory, judged, sizes, t.lang):
        console.written(path)
    return code


def read_found(directory: Path, names: Sequence[str]) -> dict[str, Found]:
    """What the experiments in ``directory`` found; those that are missing are left out."""
    found = {}
    for name in names:
        if not (directory / name / SUMMARY).exists():
            continue
        record = read_record(directory / name)
        cells = cells_of(record)
        if cells:
            result = evaluate_experiment(record, cells)
            found[name] = Found(make_config(record.started.config), result.cells)
    return found


def _run(name: str, out: Path, options: argparse.Namespace, t: Translator) -> int:
    """One experiment into its own directory; returns its exit code."""
    from experiment.walkthrough import RunOptions, run

    overrides = dict(parse_assignment(text) for text in options.set or ())
    if options.quick:
        overrides["experiment.size"] = "quick"
    config = load_config(CONFIGS / f"{name}.toml", overrides)
    how = RunOptions(
        lang=t.lang, yes=True, quiet=True, ascii=options.ascii, out=out,
        command=tuple(sys.argv[1:]),
    )  # fmt: skip
    try:
        return run(config, how)
    except UserError as error:
        print(t("error.prefix") + t.message(error.text), file=sys.stderr)
        return error.exit_code


def _write(
    directory: Path, judged: Sequence[Judged], sizes: Mapping[str, str], lang: str
) -> list[Path]:
    from experiment.report.claims_page import PAGE, claims_html
    from experiment.report.index import write_index

    rows = [
        {
            "claim": one.claim.name,
            "experiment": one.claim.experiment,
            "value": one.value,
            "least": one.claim.least,
            "at_most": one.claim.at_most,
            "verdict": one.verdict,
        }
        for one in judged
    ]
    data = {"version": __version__, "claims": rows}
    path, page = directory / "claims.json", directory / PAGE
    try:
        write_atomic(path, json.dumps(data, indent=1) + "\n")
        write_atomic(page, claims_html(judged, sizes, data, lang))
        index = write_index(directory, lang)
    except OSError as error:
        raise user_error(
            "error.out_unwritable", path=str(directory), why=os_reason(error)
        ) from error
    return [path, page, *([index] if index else [])]


def _parser(t: Translator) -> argparse.ArgumentParser:
    parser = make_parser(t, "claims")
    parser.add_argument("--quick", action="store_true", help=t("help.quick"))
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help=t("help.set"))
    parser.add_argument("--out", metavar="DIR", help=t("help.claims_out"))
    return parser
