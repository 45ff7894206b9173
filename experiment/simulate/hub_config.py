"""The config of a model on the hub, for models that are neither in the catalogue nor here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from experiment.model.hub import HubUnavailableError, ask_hub, fetch_config
from experiment.text.errors import user_error


def hub_config(name: str) -> tuple[Path, int]:
    """Download a config.json into the local Hugging Face cache.

    Returns:
        Its path, and the bytes of the model's safetensors files; 0: the hub does not report them.

    Raises:
        UserError: no such model, no access, or no hub: it is offline, or not reached.
    """
    found = _asked(name)
    if found is None:
        raise user_error("error.sim.hub", model=name)
    return found


@cache
def _asked(name: str) -> tuple[Path, int] | None:
    """What the hub answers, asked once; None: it does not."""
    try:
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            return None
        found = ask_hub(name)
        sizes = [size for file, size in found.files.items() if file.endswith(".safetensors")]
        return fetch_config(found), sum(size or 0 for size in sizes)
    except (ImportError, HubUnavailableError):
        return None
