"""``reports/index.html``: the runs that lie beside each other, newest first, each with its verdict.

It is made anew after each of them from the summaries alone: see
:mod:`experiment.report.pages.index_entries`. Each entry names the file that it comes from in
``data-file``; ``data-key`` is the path of a value in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from experiment.files.bounded_reading import is_replaceable
from experiment.files.locks import try_directory_lock
from experiment.record.log import write_atomic
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.values import excerpt
from experiment.report.page.page import page_assets, templates
from experiment.report.pages.index_entries import Entry, entries
from experiment.text import Translator

INDEX_FILE = "index.html"
# Only such a directory is ours to write into; a run may be told to lie anywhere.
_NAME = "reports"
_MARK = b'class="index-title"'  # in an index of any version
# Below that nobody needs help to find a run.
_FEW = 12
_MOST_NAME = 160
_KINDS = (
    "run", "experiment", "simulation", "sweep", "compare", "claims", "paper", "bench",
    "gpucheck", "unfinished", "unreadable",
)  # fmt: skip
_WAIT_S = 10.0


def write_index(directory: Path, lang: str) -> Path | None:
    """Write the index beside a run's directory; None where that is no ``reports`` directory.

    A page of that name that is no index stays: a line on standard error says so.

    Raises:
        OSError: it cannot be written.
    """
    if directory.resolve().parent.name != _NAME:
        return None
    reports = directory.parent
    path = reports / INDEX_FILE
    with try_directory_lock(
        reports, _WAIT_S
    ):  # else one that began earlier could leave out what came later
        if not is_replaceable(path, lambda data: _MARK in data):
            print(Translator(lang)("note.index_kept", path=str(path)), file=sys.stderr)
            return None
        write_atomic(path, index_html(entries(reports), lang))
    return path


def index_html(found: Sequence[Entry], lang: str) -> str:
    """The page; ``lang`` is what it shows until someone switches."""
    b = Bilingual(lang)
    env = templates(b)
    env.globals.update(
        place=_place,
    )
    env.filters.update(excerpt=_excerpt)
    kinds = [kind for kind in _KINDS if any(one.kind == kind for one in found)]
    page: str = env.get_template("index.html.j2").render(
        lang=lang,
        **page_assets(),
        entries=found,
        kinds=kinds if len(kinds) > 1 and len(found) > _FEW else [],
        data="{}",
        patterns="",
    )
    return page


def _place(*parts: str) -> str:
    """A path as an address; a name may be of any bytes."""
    return "/".join(quote(os.fsencode(part), safe="") for part in parts)


def _excerpt(name: str) -> str:
    return excerpt(name, _MOST_NAME)
