"""The archive to attach to an issue: result, page and logs, without what is private.

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
from kvsim.files import write_whole

ARCHIVE = "gpucheck.tar.gz"
_FOLDER = "gpucheck"
_MOST_LOG = 1 << 20  # the end of a longer one


def write_archive(directory: Path, names: Sequence[str]) -> Path:
    """Pack files of a directory and its logs.

    Args:
        directory: of the check.
        names: of files that hold nothing private.

    Raises:
        UserError: it cannot be written.
    """
    path = directory / ARCHIVE
    packed = io.BytesIO()
    with writing(directory, ExitCode.UNWRITABLE):
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            files = [(name, (directory / name).read_bytes()) for name in names]
            for name, content in (*files, *_logs(directory)):
                # A header of its own: that of a file names its owner.
                header = tarfile.TarInfo(f"{_FOLDER}/{name}")
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))
        write_whole(path, packed.getvalue())
    return path


def _logs(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Logs of the parts, and of the processes of the walkthrough."""
    for path in sorted((directory / LOGS).glob("*.log")):
        yield f"{LOGS}/{path.name}", _redacted(path)
    for path in sorted((directory / "walkthrough" / LOGS).glob("*.log")):
        yield f"{LOGS}/walkthrough/{path.name}", _redacted(path)


def _redacted(path: Path) -> bytes:
    """Redacted before it is cut: half a secret would not be found."""
    text = path.read_text(encoding="utf-8", errors="replace")
    clean: str = without_words(without_private(text))
    return clean[-_MOST_LOG:].encode(errors="replace")
