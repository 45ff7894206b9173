"""Facts about the worker in a form for the record."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

from experiment.events import Notice
from experiment.process.wire import Wire
from experiment.text.messages import message
from experiment.text.redaction import without_private
from experiment.vllm_worker.task import VllmTask


def decoder(wire: Wire, task: VllmTask) -> Callable[[list[int]], str]:
    """Return a function from token ids to text; no text if the tokenizer is unreadable."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            task.directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # only displayed; tokens are compared
        detail = without_private(str(error))[:200]
        wire.emit(Notice(text=message("note.vllm_no_text", detail=detail)))
        return lambda _: ""
    return lambda tokens: str(tokenizer.decode(tokens, clean_up_tokenization_spaces=False))


def versions() -> dict[str, str]:
    """Versions of the relevant software."""
    from vllm import __version__ as vllm_version

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "vllm": vllm_version,
    }


def plain(value: Any) -> Any:
    """Convert a value for the record; the home directory is redacted."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return without_private(str(value))[:300]
