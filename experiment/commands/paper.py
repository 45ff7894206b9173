"""``paper``: compare the PagedAttention paper's numbers with ours."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiment import __version__
from experiment.process.interrupts import rendering_started, shielded
from experiment.record.directories import default_directory, shared_directory
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

if TYPE_CHECKING:
    from experiment.report.console.lines import Console

DEFAULT_SEEDS = range(5)


def paper(options: argparse.Namespace, t: Translator) -> int:
    """Check every claim; return non-zero if one is outside its tolerance.

    If interrupted, the claims checked so far are shown and written.

    Raises:
        UserError: invalid seeds, or files that cannot be written.
    """
    directory = Path(options.out) if options.out else default_directory("paper-")
    from experiment.report.console.lines import Console

    with shared_directory(directory):
        seeds = options.seeds or DEFAULT_SEEDS
        return _check(seeds, directory, Console(t.lang, options.ascii))


def _check(seeds: Sequence[int], directory: Path, console: Console) -> int:
    from experiment.report.files.markdown import summarise
    from experiment.report.files.write import write_listed
    from experiment.report.pages.paper import paper_reports, paper_text
    from kvsim.paper.result import check_paper

    lang = console.t.lang
    result = check_paper(seeds, partial(console.bar, console.t("paper.running")))
    with shielded():  # it took minutes
        rendering_started()
        data = {"program": __version__} | result.to_json()
        text = paper_text(console.t, data)
        try:
            files = write_listed(directory, paper_reports(data, lang), lang)
            summarise(text)
        finally:
            console.page(text)
    console.written(*files)
    if result.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.INCOMPLETE if result.failed else ExitCode.OK


def parse_seeds(flag: str, text: str) -> tuple[int, ...]:
    """Parse a number of seeds (``5``: 0 to 4) or a list of seeds (``7,8,9``).

    Raises:
        UserError: neither.
    """
    parts = [part.strip() for part in text.split(",")]
    if all(part.isdecimal() and len(part) < 10 for part in parts):
        seeds = tuple(map(int, parts))
        if len(seeds) > 1 and len({*seeds}) == len(seeds):
            return seeds
        if len(seeds) == 1 and 1 <= seeds[0] <= 1000:
            return tuple(range(seeds[0]))
    raise user_error("error.not_like", config_key=flag, value=text, example="5|7,8,9")


OPTIONS = {"--seeds": ("N|A,B,...", parse_seeds), "--out": "DIR"}
