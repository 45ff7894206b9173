"""A model that is not in the catalogue: its config.json, alone or in a directory with weights.

    --model DIR, CONFIG.json     read
    --model owner/model          its newest snapshot in the local Hugging Face cache

The config is data: no code of it runs. Transformers counts its weights where their size is unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from experiment.config.reading import MAX_CONFIG_BYTES
from experiment.files.bounded_reading import expand_path, parse_json, read_bounded
from experiment.simulate.parameter_count import EXPERTS, count_parameters
from experiment.text.errors import UserError, user_error
from experiment.workload.kvsim_errors import model_refused
from kvsim.sizing.fields import MissingFieldError, UnsupportedGeometryError, first_named
from kvsim.sizing.layout import LayoutError, lay_out
from kvsim.sizing.models import ELEMENT_BYTES, QUANTISED, ModelFacts

# Other names of types.
_ALIASES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32",
            "float": "float32"}  # fmt: skip
_MOST_NUMBER = 1 << 40
_HUB_NAME = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)
_SHARD = re.compile(r"-of-(\d{5})\.safetensors$")
_MOST_BYTES = 1 << 36  # of a token or a state in one layer
_MOST_FILES = 10_000


def model_file(name: str) -> Path | None:
    """The config.json that a name stands for; None: it is no file, directory or cached model.

    Raises:
        UserError: a directory without one.
    """
    path = expand_path(name)
    try:
        for candidate in (path, path / "config.json", *_cached(name)):
            if candidate.is_file():
                return candidate
        if path.is_dir():
            raise user_error("error.model.no_config", model=name)
    except (OSError, RuntimeError, ValueError):  # too long a name, a null byte in it, no home
        return None
    return None


def _cached(name: str) -> Iterator[Path]:
    """Configs of a hub's model in the local cache, the newest first."""
    if not is_hub_name(name):
        return
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    found = [path for path in snapshots.glob("*/config.json") if path.is_file()]
    yield from sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def is_hub_name(name: str) -> bool:
    """Whether a name has the form of a hub's, owner/model, and no file here has it."""
    return bool(_HUB_NAME.fullmatch(name)) and ".." not in name and not Path(name).exists()


def read_model(path: Path, name: str, weights: int | str | None) -> ModelFacts:
    """Read a model from its config.

    Args:
        path: config.json.
        name: what the person called it.
        weights: bytes of the weights, or what they are quantised to; None: those of the safetensors
            files beside the config, or counted.

    Raises:
        UserError: no such config, a cache that is not known, or unknown weights.
    """
    try:
        config = parse_json(read_bounded(path, MAX_CONFIG_BYTES))
        if not isinstance(config, dict):
            raise ValueError("not a table")
        _check_numbers(config)
    except (UserError, ValueError) as error:
        raise user_error("error.model.bad_config", model=name, path=str(path)) from error
    size = 0 if isinstance(weights, str) else weights or weights_beside(path)
    try:
        dtype = _dtype(config)
        parameters = max(1, size // ELEMENT_BYTES[dtype])
        facts = ModelFacts(
            name=_short_name(path, name), hub=_served_name(path, name), dtype=dtype,
            parameters=parameters, active_parameters=parameters, expert_parameters=0,
            config=config, source=str(path), weights=size or None,
        )  # fmt: skip
        caches = facts.caches()
        lay_out(caches)
        sizes = [facts.query_heads, *(cache.token_bytes for cache in caches)]
        if min(sizes) < 1 or max(sizes) > _MOST_BYTES:
            raise ValueError("no size of a layer")
        _ = facts.max_positions, facts.hidden_size
    except UnsupportedGeometryError as error:
        raise UserError(model_refused(f"{name} ({error.detail})", error.reason)) from error
    except LayoutError as error:
        raise UserError(model_refused(name, error.code)) from error
    except (KeyError, MissingFieldError) as error:
        names = error.names if isinstance(error, MissingFieldError) else error.args
        fields = ", ".join(map(str, names))
        raise user_error("error.model.lacks", model=name, fields=fields) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise user_error("error.model.bad_config", model=name, path=str(path)) from error
    kind = weights if isinstance(weights, str) else _published_kind(config)
    if size and not first_named(facts.text, *EXPERTS):
        return facts
    try:
        if not (size or kind):
            raise ValueError("quantization_config")
        facts = replace(facts, **count_parameters(config))
    except ValueError as error:
        if not size:
            raise user_error("error.sim.no_weights", model=name, why=str(error)) from error
    return facts.quantised(kind) if not size and kind in QUANTISED else facts


def _published_kind(config: Mapping[str, Any]) -> str | None:
    """What the weights are published in, as ``--weights`` names it, or the dtype; None: unknown."""
    found = config.get("quantization_config")
    if not found:
        return _dtype(config)
    if not isinstance(found, dict):
        return None
    if found.get("quant_method") in ("fp8", "fbgemm_fp8"):
        return "fp8"
    loaded = next((bits for bits in (4, 8) if found.get(f"load_in_{bits}bit")), None)
    bits = found.get("bits") or found.get("w_bit") or loaded
    return {4: "w4", 8: "int8"}.get(bits) if isinstance(bits, int) else None


def _served_name(path: Path, name: str) -> str:
    """What ``vllm serve`` is given: a hub's name or a directory; of a config alone neither."""
    if is_hub_name(name):
        return name
    return str(path.parent) if path.name == "config.json" else "MODEL"


def _short_name(path: Path, name: str) -> str:
    if is_hub_name(name):  # its directory is named by a commit
        return name.rpartition("/")[2]
    return path.parent.name if path.name == "config.json" else path.stem


def _check_numbers(config: Mapping[str, Any]) -> None:
    """Refuse numbers that no model has, before any list is made of them.

    Raises:
        ValueError: one is too large.
    """
    left: list[Any] = [config]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, int) and abs(value) > _MOST_NUMBER:
            raise ValueError("a number is too large")


def _dtype(config: Mapping[str, Any]) -> str:
    """What the weights are kept in: eight bits where they are quantised, whatever to.

    Raises:
        MissingFieldError: no known type is named.
    """
    inner = config.get("text_config")
    tables = (inner if isinstance(inner, dict) else {}, config)
    if config.get("quantization_config"):
        return "float8"
    for table, key in product(tables, ("dtype", "torch_dtype")):
        named = str(table.get(key) or "auto").removeprefix("torch.").lower()
        named = "float8" if named.startswith("float8") else _ALIASES.get(named, named)
        if named in ELEMENT_BYTES:
            return named
        if named != "auto":
            raise MissingFieldError(key)
    return "bfloat16"


def weights_beside(path: Path) -> int:
    """Bytes of the safetensors files beside a config; 0 unless all of them are there."""
    files = sorted(path.parent.glob("*.safetensors"))[:_MOST_FILES]
    shards = [found for file in files if (found := _SHARD.search(file.name))]
    if shards and len(shards) != int(shards[0][1]):
        return 0
    sizes = [file.stat().st_size for file in files if _has_header(file)]
    return sum(sizes) if len(sizes) == len(files) else 0


def _has_header(file: Path) -> bool:
    """Whether a file begins as safetensors do, and is as long as that says at least."""
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        return opened.read(1) == b"{" and length + 8 <= file.stat().st_size
