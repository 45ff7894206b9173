"""Find the weights of a run.

a directory ─► built in (tiny-...) ─► local Hugging Face cache ─► hub ─► random GPT-2
└────► its weights, or random ones if it has only a config
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiment.config.schema import Config
from experiment.events import Event, Notice, Progress
from experiment.files.bounded_reading import MAX_JSON_BYTES, expand_path, parse_json, read_bounded
from experiment.files.os_errors import os_reason
from experiment.model.builtin import ALWAYS_RANDOM, build_model
from experiment.model.hub import (
    INDEX,
    PATTERNS,
    SMALL_FILES,
    HubUnavailableError,
    ask_hub,
    download,
    endpoint,
)
from experiment.text.errors import UserError, cut, user_error
from experiment.text.messages import Message, message

GPT2_NAMES = ("gpt2", "openai-community/gpt2")
# Suffixes of weight files, also of other programs and older versions.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
Emit = Callable[[Event], None]
Accept = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Source:
    """A directory with config, weights and tokenizer; ``kind`` as in ModelPrepared.source."""

    directory: Path
    kind: Literal["hub", "hub_cache", "local", "random"]


def find_model(config: Config, emit: Emit, accept: Accept = lambda _: None) -> Source:
    """Find, download or build the model that the config names.

    Args:
        config: the run.
        emit: receives progress and notices.
        accept: called with the directory before weights are fetched; raises to refuse the model.

    Raises:
        UserError: no such model, or it is unavailable.
    """
    name = config.model.name
    local = _local(name)
    if local is not None:
        # Check the config first: a refused model needs no weights.
        source = _accepted(Source(local, "local"), accept)
        return _random(local, config, emit) if _without_weights(local) else source
    if name in ALWAYS_RANDOM:
        return _accepted(_random(name, config, emit), accept)
    cached = _cached(name)
    if cached is not None:
        return _accepted(Source(cached, "hub_cache"), accept)
    try:
        return Source(_from_hub(config, emit, accept), "hub")
    except HubUnavailableError as error:
        return _accepted(_offline(config, emit, error.tried), accept)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of the weights; empty unless all exist."""
    whole = directory / "model.safetensors"
    if whole.is_file():
        return [whole]
    try:
        index = parse_json(read_bounded(directory / INDEX, MAX_JSON_BYTES))
        names = sorted(set(index["weight_map"].values()))
        files = [directory / name for name in names]
    except (UserError, ValueError, KeyError, AttributeError, TypeError):
        return []
    return files if all(file.is_file() for file in files) else []


def check_files(directory: Path) -> None:
    """Refuse model files that are not regular files; reading a pipe would block.

    Raises:
        UserError: a directory or another special file.
    """
    for name in SMALL_FILES:
        path = directory / name
        if path.exists() and not path.is_file():
            raise user_error("error.file_unreadable", path=str(path))


def text_warning(config: Config) -> Message | None:
    """Warning about the generated text, before anything is loaded or downloaded.

    None if trained weights are or may be available.
    """
    name = config.model.name
    with suppress(UserError):  # reported when it is loaded
        local = _local(name)
        if local is not None:
            return message("model.random_text") if _without_weights(local) else None
    if name in ALWAYS_RANDOM:
        return message("model.random_text")
    if name not in GPT2_NAMES or _cached(name) is not None:
        return None
    return message("model.random_text" if config.model.offline else "model.maybe_random")


def is_fetched(name: str, config: Config) -> bool:
    """Whether a run would ask the hub for this model, which is not on this machine yet."""
    if config.model.offline or name in ALWAYS_RANDOM or name in GPT2_NAMES:
        return False
    with suppress(UserError):  # reported when it is loaded
        return _local(name) is None and _cached(name) is None
    return False


def _accepted(source: Source, accept: Accept) -> Source:
    accept(source.directory)
    return source


def _local(name: str) -> Path | None:
    path = expand_path(name)
    try:
        if (path / "config.json").is_file():
            return path.absolute()
        if _looks_like_path(name):
            key = "error.model.no_config" if path.is_dir() else "error.file_missing"
            raise user_error(key, model=name, path=name)
    except PermissionError as error:
        raise user_error("error.bad_name", path=name, why=os_reason(error)) from error
    except (OSError, ValueError) as error:  # too long, or a null byte in it
        raise user_error("error.model.bad_name", model=cut(name, 80)) from error
    return None


def _looks_like_path(name: str) -> bool:
    # One slash in the middle may be a hub name: owner/model.
    return (
        name.startswith((".", "~", "/"))
        or name.endswith("/")
        or "\\" in name
        or name.count("/") > 1
        or re.match(r"[A-Za-z]:", name) is not None
    )


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    for candidate in GPT2_NAMES if name in GPT2_NAMES else (name,):
        try:
            found = snapshot_download(candidate, local_files_only=True, allow_patterns=PATTERNS)
        except HFValidationError as error:
            raise user_error("error.model.bad_name", model=cut(name, 80)) from error
        except (LocalEntryNotFoundError, OSError):
            continue
        # An interrupted download leaves an incomplete snapshot.
        directory = Path(found)
        if (directory / "config.json").is_file() and weight_files(directory):
            return directory
    return None


def _from_hub(config: Config, emit: Emit, accept: Accept) -> Path:
    from huggingface_hub import constants

    if config.model.offline or constants.HF_HUB_OFFLINE:
        raise HubUnavailableError(message("prepare.tried_nothing"))
    emit(Progress(task=message("prepare.ask_hub", endpoint=endpoint()), done=0))
    return download(ask_hub(config.model.name), emit, accept)


def _offline(config: Config, emit: Emit, tried: Message) -> Source:
    name = config.model.name
    if name not in GPT2_NAMES:
        raise user_error("error.model.offline", model=name, tried=tried)
    emit(Notice(text=message("prepare.offline_gpt2", tried=tried)))
    return _random("gpt2", config, emit)


def _without_weights(directory: Path) -> bool:
    """Whether a directory has a config and no weights in any format.

    Raises:
        UserError: there are weights, but none in a supported format.
    """
    if weight_files(directory):
        return False
    if any(path.name == INDEX or path.suffix in _WEIGHTS for path in directory.glob("*")):
        raise user_error("error.model.no_safetensors", model=str(directory))
    return True


def _random(recipe: str | Path, config: Config, emit: Emit) -> Source:
    def building() -> None:
        emit(Progress(task=message("prepare.build", model=str(recipe)), done=0))

    directory = build_model(recipe, config.run.seed, config.model.init_range, building)
    return Source(directory, "random")


def use_plain_http() -> None:
    """Make the hub's client download over plain HTTP; call it before importing the client.

    Xet writes nothing for minutes on a slow connection, and mirrors do not support it.
    """
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
