"""``reports/index.html``: all reports of a directory, newest first, with their verdicts.

It is rewritten after each report from the summaries, see
:mod:`experiment.report.pages.index_entries`. ``data-file`` is the source file of an entry,
``data-key`` the path of a value in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from experiment.files.bounded_reading import is_replaceable
from experiment.files.locks import try_directory_lock
from experiment.record.log import write_atomic
from experiment.report.facts.values import excerpt
from experiment.report.html.templates import page_assets, templates
from experiment.report.pages.index_entries import Entry, entries
from experiment.text import Translator

INDEX_FILE = "index.html"
# The index is only written to a directory of this name, because a run may be anywhere.
_NAME = "reports"
_MARK = b'class="index-title"'  # in an index of any version
# Minimum number of entries for a search field.
_FEW = 12
_MAX_NAME = 160
_KINDS = (
    "run", "experiment", "simulation", "sweep", "compare", "claims", "paper", "bench",
    "gpucheck", "unfinished", "unreadable",
)  # fmt: skip
_WAIT_S = 10.0


def write_index(directory: Path, lang: str) -> Path | None:
    """Write the index of a run's parent directory; None if that is not named ``reports``.

    Another page of that name is kept, with a line on standard error.

    Raises:
        OSError: the index cannot be written.
    """
    if directory.resolve().parent.name != _NAME:
        return None
    reports = directory.parent
    path = reports / INDEX_FILE
    with try_directory_lock(
        reports, _WAIT_S
    ):  # otherwise an earlier writer could omit a later entry
        if not is_replaceable(path, lambda data: _MARK in data):
            print(Translator(lang)("note.index_kept", path=str(path)), file=sys.stderr)
            return None
        write_atomic(path, index_html(entries(reports), lang))
    return path


def index_html(listed: Sequence[Entry], lang: str) -> str:
    """Render the page; ``lang`` is its initial language."""
    kinds = [kind for kind in _KINDS if any(one.kind == kind for one in listed)]
    template = templates(lang).get_template("index.html.j2")
    page: str = template.render(
        lang=lang,
        place=_place,
        excerpt=partial(excerpt, limit=_MAX_NAME),
        **page_assets(),
        entries=listed,
        kinds=kinds if len(kinds) > 1 and len(listed) > _FEW else [],
        data="{}",
    )
    return page


def _place(*parts: str) -> str:
    """Convert a path to a URL; names may contain any bytes."""
    return "/".join(quote(os.fsencode(part), safe="") for part in parts)
