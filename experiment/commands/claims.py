"""``claims``: run the experiments that judge common claims, and print the verdicts.

claims ─► out/capacity  out/context ... ─► read again ─► table, claims.json
          an existing run is reused if it is complete, undamaged and of the same config;
          otherwise it is kept, and out/capacity-2 is run
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.config.reading import load_config, parse_assignment
from experiment.config.schema import Config
from experiment.experiments.claim_runs import Reader, claims_data, find_place, judge_runs
from experiment.experiments.claims import Judged, needed
from experiment.files.shipped import CONFIGS
from experiment.files.user_cache import cache_notice
from experiment.machine.packages import check_installed
from experiment.measure.watcher import may_ask, others_before
from experiment.record.directories import default_directory, shared_directory
from experiment.text import Translator
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import Message

if TYPE_CHECKING:
    from experiment.report.console.claims import ClaimsConsole

OPTIONS = {"--quick": None, "--yes": None, "--set+": "KEY=VALUE", "--out": "DIR"}


def claims(options: argparse.Namespace, t: Translator) -> int:
    """Run missing experiments and judge every claim; a claim that is not shown is no failure.

    Raises:
        UserError: invalid value, or a directory that cannot be written.
    """
    directory = Path(options.out) if options.out else default_directory("claims-")
    from experiment.report.console.claims import ClaimsConsole

    console = ClaimsConsole(t.lang, options.ascii)
    configs = {name: _config(name, options) for name in needed()}
    with shared_directory(directory):
        return _judge_all(configs, directory, options, console)


def _judge_all(
    configs: Mapping[str, Config],
    directory: Path,
    options: argparse.Namespace,
    console: ClaimsConsole,
) -> int:
    """Run missing experiments in a directory, then judge all.

    Returns the largest exit code of the experiments: 5 (cannot write), 3 (incomplete figures), 2
    (not started).
    """
    began, t = time.monotonic(), console.t
    code = int(ExitCode.OK)
    names = tuple(configs)
    places: dict[str, Path] = {}
    read = Reader()
    looked = False
    for number, name in enumerate(names, 1):
        place, there, unused = find_place(directory, name, configs[name], read)
        places[name] = place
        for path, why in unused.items():
            console.not_used(path, why)
        if there:
            console.used(name, place, number, len(names))
            continue
        if not looked:
            check_installed()
            if moved := cache_notice():
                console.warn(moved)
            others_before(console.warn, console.ask if may_ask(options.yes) else None)
            looked = True
        console.begin(name, number, len(names))
        ended = _run(configs[name], place, options, t)
        if ended in ExitCode.ENDED:
            console.interrupted(directory)
            return ended
        code = max(code, ended)
        read.ran(place)
    judged, notes = judge_runs(directory, places, read)
    console.show(judged, notes)
    console.took(time.monotonic() - began)
    console.written(*_write(directory, judged, places, notes, t))
    return code


def _config(name: str, options: argparse.Namespace) -> Config:
    overrides = dict(parse_assignment(text) for text in options.set or ())
    if options.quick:
        overrides["experiment.size"] = "quick"
    return load_config(CONFIGS / f"{name}.toml", overrides)


def _run(config: Config, out: Path, options: argparse.Namespace, t: Translator) -> int:
    """Run one experiment in its own directory; return its exit code."""
    from experiment.commands.walkthrough import RunOptions, run_walkthrough

    how = RunOptions(
        lang=t.lang, yes=True, quiet=True, ascii=options.ascii, out=out,
        command=tuple(sys.argv[1:]), nested=True,
    )  # fmt: skip
    try:
        return run_walkthrough(config, how)
    except UserError as error:
        print(t("error.prefix") + t.message(error.text), file=sys.stderr)
        return error.exit_code


def _write(
    directory: Path,
    judged: Sequence[Judged],
    places: Mapping[str, Path],
    notes: Sequence[Message],
    t: Translator,
) -> list[Path]:
    from experiment.report.files.markdown import summarise
    from experiment.report.files.write import write_listed
    from experiment.report.pages.claims import claims_reports, claims_text

    data = claims_data(judged, places)
    runs = {name: run.name for name, run in places.items() if (run / "report.html").exists()}
    files = write_listed(directory, claims_reports(judged, notes, runs, data, t.lang), t.lang)
    summarise(claims_text(t, judged, notes, runs))
    return files
