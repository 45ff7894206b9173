"""Models with random weights, built once and kept in the user's cache directory.

    <cache>/models/gpt2-r1-seed0-range0.08/
    <cache>/models/config-5f0c…-r1-seed0-range0.08/     of a directory without weights
        model.safetensors, config.json, generation_config.json, tokenizer files
        manifest.json         sha256 of every other file; written last

A model is built in a temporary directory and renamed, so that neither a crash nor concurrent builds
leave a partial model. A later build removes what killed ones left.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from experiment.files.bounded_reading import MAX_JSON_BYTES, parse_json, read_bounded
from experiment.files.user_cache import cache_directory
from experiment.model.hub import SMALL_FILES
from experiment.model.load import silence_libraries
from experiment.model.tensors import weights_sha256
from experiment.model.tokenizer import END_OF_TEXT, gpt2_tokenizer
from experiment.process.interrupts import Interrupts
from experiment.text.errors import UserError, one_line, user_error
from kvsim.base.files import file_sha256

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

RECIPE_VERSION = 1  # increment when the same name, seed and range give other weights
MANIFEST = "manifest.json"
STALE_S = 3600  # a build takes seconds to minutes
_VOCABULARY = 50257


# A rotary decoder with two query heads per KV head.
_GROUPED: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": END_OF_TEXT,
}
# Shape of Llama 3.2 1B with GPT-2's vocabulary, for measurements on GPUs.
_LLAMA_1B: dict[str, Any] = {
    **_GROUPED,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
_TINY_GPT2: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 1024}
# Transformers' class of the config, and its arguments.
_SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {}),
    "tiny-gpt2": ("GPT2Config", _TINY_GPT2),
    "tiny-llama": ("LlamaConfig", _GROUPED),
    "tiny-qwen2": ("Qwen2Config", {**_GROUPED, "max_position_embeddings": 4096}),
    "tiny-mistral": ("MistralConfig", {**_GROUPED, "sliding_window": None}),
    "llama-1b-random": ("LlamaConfig", _LLAMA_1B),
}


def _config(name: str) -> PretrainedConfig:
    kind, shape = _SHAPES[name]
    config: PretrainedConfig = getattr(import_module("transformers"), kind)(**shape)
    return config


RECIPES = {name: partial(_config, name) for name in _SHAPES}
TINY = tuple(name for name in RECIPES if name.startswith("tiny-"))
# Names for which no hub is asked.
ALWAYS_RANDOM = (*TINY, "llama-1b-random")


def cache_root() -> Path:
    """Directory of built models."""
    return cache_directory() / "models"


def model_directory(recipe: str | Path, seed: int, init_range: float) -> Path:
    """Directory of a built model; it may not exist."""
    name = recipe if isinstance(recipe, str) else f"config-{weights_sha256(_files(recipe))[:16]}"
    return cache_root() / f"{name}-r{RECIPE_VERSION}-seed{seed}-range{init_range:g}"


def _files(directory: Path) -> list[Path]:
    return [directory / name for name in SMALL_FILES if (directory / name).is_file()]


def build_model(
    recipe: str | Path, seed: int, init_range: float, building: Callable[[], None] = lambda: None
) -> Path:
    """Build a model with random fp32 weights, unless a complete one exists; return its directory.

    Args:
        recipe: a name in ``RECIPES``, or a directory with a config.json and optionally a tokenizer.
        seed: of torch's generator; the same seed gives the same bytes.
        init_range: standard deviation of the weights, as Transformers' ``initializer_range``.
        building: called before a build, if one is needed.

    Raises:
        UserError: the cache directory is not writable, the vocabulary is missing, or the weights do
            not fit into memory or onto the disk.
    """
    from safetensors import SafetensorError

    place = model_directory(recipe, seed, init_range)
    _remove_leftovers(place.parent)
    if is_complete(place):
        return place
    building()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{place.name}.building-"
        with (
            Interrupts(),  # SIGTERM would leave the partial model
            tempfile.TemporaryDirectory(
                prefix=prefix, dir=place.parent, ignore_cleanup_errors=True
            ) as work,
        ):
            _write_model(Path(work), recipe, seed, init_range)
            _publish(Path(work), place)
    except (OSError, SafetensorError) as error:
        raise user_error(
            "error.model.cache_unwritable", path=str(place.parent), detail=one_line(error)
        ) from error
    return place


def is_complete(place: Path) -> bool:
    """Whether every file of the manifest exists with its recorded checksum."""
    try:
        files = _manifest(place)
        return bool(files) and all(file_sha256(place / name) == files[name] for name in files)
    except (OSError, UserError, ValueError, KeyError, TypeError):
        return False


def recorded_sha256(place: Path) -> str:
    """SHA-256 of a built model's weights, from its manifest."""
    return str(_manifest(place)["model.safetensors"])


def _manifest(place: Path) -> dict[str, Any]:
    """Checksum of every file of a built model."""
    files: dict[str, Any] = parse_json(read_bounded(place / MANIFEST, MAX_JSON_BYTES))["files"]
    return files


def _write_model(work: Path, recipe: str | Path, seed: int, init_range: float) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    silence_libraries()
    if isinstance(recipe, Path):
        config = AutoConfig.from_pretrained(recipe, local_files_only=True, trust_remote_code=False)
    else:
        config = RECIPES[recipe]()
    build = partial(AutoModelForCausalLM.from_config, attn_implementation="eager")
    # Set before construction: Transformers' initialisation uses it, for scaled residuals too.
    config.initializer_range = init_range
    with torch.device("meta"):
        _check_capacity(build(config), str(recipe), work)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(config, dtype=torch.float32)
    model.save_pretrained(work, max_shard_size=1 << 50)  # a single file
    model.generation_config.save_pretrained(work)
    if isinstance(recipe, Path):
        for file in _files(recipe):
            if file.name != "config.json":  # saved with the model
                shutil.copy(file, work)
    else:
        gpt2_tokenizer().save_pretrained(work)
    files = {path.name: file_sha256(path) for path in sorted(work.iterdir())}
    (work / MANIFEST).write_text(json.dumps({"files": files}, indent=2), encoding="utf-8")


def _check_capacity(built: nn.Module, name: str, work: Path) -> None:
    needed = 4 * sum(parameter.numel() for parameter in built.parameters())
    for key, free in (
        ("error.model.no_memory", psutil.virtual_memory().available),
        ("error.model.no_room", shutil.disk_usage(work).free),
    ):
        if needed > free:
            raise user_error(key, model=name, needed=needed, free=free)


def _publish(work: Path, place: Path) -> None:
    if place.exists():
        if is_complete(place):  # another process was faster; its bytes are the same
            return
        damaged = work.with_name(work.name + ".damaged")
        place.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        work.rename(place)
    except OSError:
        if not is_complete(place):
            raise


def _remove_leftovers(root: Path) -> None:
    """Remove what killed builds left more than :data:`STALE_S` ago."""
    with contextlib.suppress(OSError):  # another process removes it too
        for path in root.glob(".*"):
            if path.is_dir() and time.time() - path.stat().st_mtime > STALE_S:
                shutil.rmtree(path, ignore_errors=True)
