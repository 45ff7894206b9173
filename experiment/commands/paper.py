"""``paper``: compare the PagedAttention paper's numbers with ours."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiment import __version__
from experiment.commands.parser import make_parser, parse
from experiment.process.interrupts import rendering_started, shielded
from experiment.record.directories import default_directory, shared_directory
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

if TYPE_CHECKING:
    from experiment.report.console.lines import Console

DEFAULT_SEEDS = "5"
OPTIONS = {"--seeds": "N|A,B,...", "--out": "DIR"}


def paper(words: list[str], t: Translator) -> int:
    """Check every claim; return non-zero if one is outside its tolerance.

    If interrupted, the claims checked so far are shown and written.

    Raises:
        UserError: invalid seeds, or files that cannot be written.
    """
    options = parse(make_parser(t, "paper", OPTIONS), words)
    seeds = parse_seeds(options.seeds or DEFAULT_SEEDS)
    directory = Path(options.out) if options.out else default_directory("paper-")
    from experiment.report.console.lines import Console

    with shared_directory(directory):
        return _check(seeds, directory, Console(t.lang, options.ascii))


def _check(seeds: tuple[int, ...], directory: Path, console: Console) -> int:
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


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse a number of seeds (``5``: 0 to 4) or a list of seeds (``7,8,9``).

    Raises:
        UserError: neither.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise user_error("error.paper.seeds", value=text)
    numbers = [int(part) for part in parts]
    if len(numbers) > 1:
        if len(set(numbers)) < len(numbers):
            raise user_error("error.paper.seeds", value=text)
        return tuple(numbers)
    if not 1 <= numbers[0] <= 1000:
        raise user_error("error.paper.seeds", value=text)
    return tuple(range(numbers[0]))
