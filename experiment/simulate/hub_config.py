"""The config of a model on the hub, for models that are neither in the catalogue nor here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from experiment.model.hub import HubUnavailableError, ask_hub, fetch_config
from experiment.text.errors import user_error


@cache
def hub_config(name: str) -> tuple[Path, int]:
    """Download a config.json into the local Hugging Face cache.

    Returns:
        Its path, and the bytes of the model's safetensors files; 0: the hub does not report them.

    Raises:
        UserError: no such model, no access, or no hub: it is offline, or not reached.
    """
    try:
        from huggingface_hub import constants
    except ImportError as error:
        raise user_error("error.sim.hub", model=name) from error
    if constants.HF_HUB_OFFLINE:
        raise user_error("error.sim.hub", model=name)
    try:
        found = ask_hub(name)
        sizes = [size for file, size in found.files.items() if file.endswith(".safetensors")]
        return fetch_config(found), sum(size or 0 for size in sizes)
    except HubUnavailableError as error:
        raise user_error("error.sim.hub", model=name) from error
