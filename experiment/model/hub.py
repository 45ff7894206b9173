"""Query the model hub with a short timeout, and download with a long one.

A slow hub leads to a download, however long it takes; an unreachable one is detected in seconds.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from experiment.events import Event, Progress
from experiment.text.errors import one_line, user_error
from experiment.text.messages import Message, message

T = TypeVar("T")
ASK_TIMEOUT_S = 4.0
ASK_LIMIT_S = 8.0  # name resolution has no timeout of its own
STALL_S = 30.0
POLL_S = 0.2
MAX_RESTARTS = 3
PIECE_BYTES = 1 << 18
_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
INDEX = "model.safetensors.index.json"
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    INDEX,
)
PATTERNS = [*SMALL_FILES, "model*.safetensors"]
_DISK_ERRORS = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.EPERM)


class HubUnavailableError(Exception):
    """The hub did not answer, or stopped answering; ``tried`` is the message for the user."""

    def __init__(self, tried: Message) -> None:
        super().__init__(tried.key)
        self.tried = tried


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub. ``files`` are the files to download with their bytes, if known."""

    name: str
    files: dict[str, int | None]

    @property
    def total_bytes(self) -> int | None:
        """Bytes of all files; None if the hub does not report them."""
        sizes = [size for size in self.files.values() if size is not None]
        return sum(sizes) if len(sizes) == len(self.files) else None


def endpoint() -> str:
    """Address of the hub, which ``HF_ENDPOINT`` may override."""
    from huggingface_hub import constants

    return str(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


def ask_hub(name: str) -> HubModel:
    """Ask the hub for a model, for a few seconds at most.

    Raises:
        HubUnavailableError: no answer, or an unexpected one.
        UserError: no such model, or access is restricted.
    """
    job = _WorkerThread(lambda: _list_files(name))
    job.join(ASK_LIMIT_S)
    if job.error is not None:
        raise _explain(name, job.error) from job.error
    if job.result is None:
        raise HubUnavailableError(
            message("prepare.tried_silent", endpoint=endpoint(), time=ASK_LIMIT_S)
        )
    wanted = wanted_files(job.result)
    if "config.json" not in wanted:
        raise user_error("error.model.no_config", model=name)
    if not any(_WEIGHTS.fullmatch(file) for file in wanted):
        raise user_error("error.model.no_safetensors", model=name)
    return HubModel(name, wanted)


def wanted_files(files: dict[str, int | None]) -> dict[str, int | None]:
    """Select the files that a run needs: config, tokenizer and one set of weights."""
    whole = "model.safetensors" in files
    return {
        file: size
        for file, size in files.items()
        if (file == "model.safetensors" if whole else _WEIGHTS.fullmatch(file))
        or (file in SMALL_FILES and not (whole and file == INDEX))
    }


def download(
    model: HubModel,
    emit: Callable[[Event], None],
    accept: Callable[[Path], None],
    stall_s: float = STALL_S,
) -> Path:
    """Download a model into the local Hugging Face cache, config first.

    Args:
        model: the result of :func:`ask_hub`.
        emit: receives the progress in bytes.
        accept: called with the directory once it holds the config; raises to refuse the model.
        stall_s: seconds without a new byte after which the download is aborted.

    Raises:
        HubUnavailableError: the hub stopped answering.
        UserError: refused, no access, or the cache is not writable.
    """
    # Bytes of other revisions are not progress; bytes of an earlier attempt are.
    before = _bytes_on_disk(model.name, partial=False)

    def report(on_disk: int) -> None:
        task, total = message("prepare.download", model=model.name), model.total_bytes
        done = max(0, on_disk - before)
        done = done if total is None else min(done, total)
        emit(Progress(task=task, done=done, total=total))

    directory = _fetch_watched(model.name, ["config.json"], stall_s, report).parent
    accept(directory)
    rest = [file for file in model.files if file != "config.json"]
    rest.sort(key=lambda file: model.files[file] or 0)
    _fetch_watched(model.name, rest, stall_s, report)
    return directory


def fetch_config(model: HubModel) -> Path:
    """Download the config alone into the local Hugging Face cache.

    Raises:
        HubUnavailableError: the hub stopped answering.
        UserError: no access, or the cache is not writable.
    """
    return _fetch_watched(model.name, ["config.json"], STALL_S, lambda _: None)


def _fetch_watched(
    name: str, files: Sequence[str], stall_s: float, report: Callable[[int], None]
) -> Path:
    """Download in a thread and observe the bytes on disk; return the path of the last file."""
    job = _WorkerThread(lambda: [_fetch(name, file) for file in files])
    seen, most, last, restarts = -1, -1, time.monotonic(), 0
    while job.is_alive():
        job.join(POLL_S)
        now = _bytes_on_disk(name, partial=True)
        if now != seen:
            # A hub that cannot resume may fail at the same byte repeatedly.
            restarts = 0 if now > most else restarts + (now < seen)
            seen, most, last = now, max(now, most), time.monotonic()
            report(now)
        if restarts > MAX_RESTARTS or time.monotonic() - last > stall_s:
            raise HubUnavailableError(
                message("prepare.tried_stalled", endpoint=endpoint(), time=stall_s)
            )
    if job.error is not None:
        raise _explain(name, job.error) from job.error
    assert job.result is not None
    report(_bytes_on_disk(name, partial=True))
    return job.result[-1]


class _WorkerThread(threading.Thread, Generic[T]):
    """A daemon thread, so that a hanging download does not block the exit; it starts at once."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.result: T | None = None  # until it has ended, and after an error
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # re-raised by the waiting thread
            self.error = error


def _list_files(name: str) -> dict[str, int | None]:
    from huggingface_hub import HfApi

    info = HfApi(endpoint=endpoint()).model_info(name, timeout=ASK_TIMEOUT_S, files_metadata=True)
    return {file.rfilename: file.size for file in info.siblings or ()}


def _fetch(name: str, file: str) -> Path:
    from huggingface_hub import constants, hf_hub_download

    # With the default of 10 MiB a slow connection would look stalled.
    constants.DOWNLOAD_CHUNK_SIZE = PIECE_BYTES
    return Path(hf_hub_download(name, file, endpoint=endpoint()))


def _bytes_on_disk(name: str, partial: bool) -> int:
    from huggingface_hub import constants

    root = Path(constants.HF_HUB_CACHE) / ("models--" + name.replace("/", "--"))
    total = 0
    for folder, _, files in os.walk(root):
        for file in files:
            path = Path(folder, file)
            if path.is_symlink() or (file.endswith(".incomplete") and not partial):
                continue
            try:
                total += path.stat().st_size
            except OSError:  # renamed meanwhile
                continue
    return total


def _explain(name: str, error: Exception) -> Exception:
    """Convert an error of the hub's client into a user error or :class:`HubUnavailableError`."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return user_error("error.model.gated", model=name)
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError):
        return user_error("error.model.no_such_model", model=name, endpoint=endpoint())
    if isinstance(error, HFValidationError):
        return user_error("error.model.bad_name", model=name)
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return user_error("error.model.download_unwritable", model=name, detail=one_line(error))
    # Anything else, such as the HTML of a login page, is not an answer of a hub.
    if "Timeout" in type(error).__name__:
        return HubUnavailableError(
            message("prepare.tried_silent", endpoint=endpoint(), time=ASK_TIMEOUT_S)
        )
    return HubUnavailableError(
        message("prepare.tried_failed", endpoint=endpoint(), detail=one_line(error))
    )
