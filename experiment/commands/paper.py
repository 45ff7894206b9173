"""``paper``: the PagedAttention paper's numbers beside ours, with verdicts."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiment import __version__
from experiment.commands.parser import make_parser, parse
from experiment.process.interrupts import rendering_started, shielded
from experiment.record.directories import default_directory, shared_directory
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

if TYPE_CHECKING:
    from experiment.report.console.paper import PaperConsole
    from kvsim.paper.claims import PaperClaim

DEFAULT_SEEDS = "5"


def paper(words: list[str], t: Translator) -> int:
    """Check every claim; non-zero when one is outside of its tolerance.

    Interrupted, it shows and writes what was checked until then, and says how much that is.

    Raises:
        UserError: seeds that are none, or files that cannot be written.
    """
    options = parse(_parser(t), words, ())
    seeds = parse_seeds(options.seeds)
    directory = Path(options.out) if options.out else default_directory("paper-")
    from experiment.report.console.paper import PaperConsole

    with shared_directory(directory):
        return _check(seeds, directory, PaperConsole(t.lang, options.ascii))


def _check(seeds: tuple[int, ...], directory: Path, console: PaperConsole) -> int:
    from kvsim.paper.result import PARTS, claims_by_part, paper_result

    parts: list[list[PaperClaim]] = []
    try:
        with console.progress(len(PARTS)) as advance:
            for part in claims_by_part(seeds):
                parts.append(part)
                advance()
    except KeyboardInterrupt:
        if not parts:
            with contextlib.suppress(OSError):
                directory.rmdir()  # what it holds is not of this command
            raise
    with shielded():  # it took minutes
        rendering_started()
        result = paper_result([claim for part in parts for claim in part], seeds)
        data = {"program": __version__} | result.to_json()
        whole = len(parts) == len(PARTS)
        if not whole:
            data["interrupted"] = {"done": len(parts), "of": len(PARTS)}
        try:
            files = _write(directory, data, console.t.lang)
        finally:
            console.show(data)
    console.show_files(files)
    if not whole:
        return ExitCode.INTERRUPTED
    return ExitCode.INCOMPLETE if result.failed else ExitCode.OK


def parse_seeds(text: str) -> tuple[int, ...]:
    """``5``: the seeds 0 to 4; ``7,8,9``: those.

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


def _parser(t: Translator) -> argparse.ArgumentParser:
    parser = make_parser(t, "paper")
    parser.add_argument("--seeds", metavar="N|A,B,...", default=DEFAULT_SEEDS, help=t("help.seeds"))
    parser.add_argument("--out", metavar="DIR", help=t("help.paper_out"))
    return parser


def _write(directory: Path, data: dict[str, Any], lang: str) -> list[Path]:
    from experiment.report.facts.paper import paper_csv, paper_json
    from experiment.report.files.tables_markdown import summarise
    from experiment.report.pages.index import write_listed
    from experiment.report.pages.paper import PAGE, paper_html, paper_told

    texts = {
        "paper.json": paper_json(data), "paper.csv": paper_csv(data), PAGE: paper_html(data, lang)
    }  # fmt: skip
    files = write_listed(directory, texts, lang)
    summarise(paper_told(Translator(lang), data))
    return files
