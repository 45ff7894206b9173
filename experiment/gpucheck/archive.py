"""The archive to attach to an issue: result, page and redacted logs.

gpucheck/gpucheck.json   gpucheck/report.html   gpucheck/logs/<part>.log
                                                gpucheck/logs/walkthrough/<process>.log
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiment.files.os_errors import writing
from experiment.gpucheck.run import LOGS
from experiment.text.errors import ExitCode
from experiment.text.redaction import without_private, without_words
from kvsim.base.files import write_whole

ARCHIVE = "gpucheck.tar.gz"
_FOLDER = "gpucheck"
_MOST_LOG = 1 << 20  # longer logs are truncated at the start


def write_archive(directory: Path, names: Sequence[str]) -> Path:
    """Pack files of a directory and its logs.

    Args:
        directory: output directory of the check.
        names: files without private data.

    Raises:
        UserError: it cannot be written.
    """
    path = directory / ARCHIVE
    packed = io.BytesIO()
    with writing(directory, ExitCode.UNWRITABLE):
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            files = [(name, (directory / name).read_bytes()) for name in names]
            for name, content in (*files, *_logs(directory)):
                # A new header, because a file's header names its owner.
                header = tarfile.TarInfo(f"{_FOLDER}/{name}")
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))
        write_whole(path, packed.getvalue())
    return path


def _logs(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the logs of the parts, and of the walkthrough's processes."""
    for path in sorted((directory / LOGS).glob("*.log")):
        yield f"{LOGS}/{path.name}", _redacted(path)
    for path in sorted((directory / "walkthrough" / LOGS).glob("*.log")):
        yield f"{LOGS}/walkthrough/{path.name}", _redacted(path)


def _redacted(path: Path) -> bytes:
    """Redact a log before truncating it, because part of a secret would not be recognised."""
    text = path.read_text(encoding="utf-8", errors="replace")
    clean: str = without_words(without_private(text))
    return clean[-_MOST_LOG:].encode(errors="replace")
