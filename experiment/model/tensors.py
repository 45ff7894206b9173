"""Check that weights fit the model, from the headers of their files.

    config.json ──► the model on ``meta``: names and shapes ─┐
    *.safetensors ► headers: names, shapes and dtypes ───────┴─► complete, and each fits

Errors are reported before any arm starts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiment.text.errors import one_line, user_error
from kvsim.base.files import file_sha256

if TYPE_CHECKING:
    from torch import nn


def weights_sha256(files: list[Path], advance: Callable[[int], None] = lambda _: None) -> str:
    """Sha256 of the weights: of the one file, or over the names and digests of several.

    Raises:
        OSError: a file cannot be read.
    """
    if len(files) == 1:
        return file_sha256(files[0], advance)
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(f"{file_sha256(path, advance)}  {path.name}\n".encode())
    return whole.hexdigest()


# Dtypes that are loaded directly or converted; others encode quantized numbers.
_REAL = ("F64", "F32", "F16", "BF16")
_FURTHER = re.compile("nextn|mtp")


@dataclass(frozen=True, slots=True)
class Header:
    """Dtype and shape of a tensor, as in the file's header."""

    kind: str
    shape: tuple[int, ...]


def check_tensors(files: Sequence[Path], directory: Path, built: nn.Module) -> None:
    """Refuse weights that do not fit the model.

    Args:
        files: safetensors files of the weights.
        directory: their directory, as shown to the user.
        built: the model of the config on torch's device ``meta``.

    Raises:
        UserError: a file is unreadable, or a tensor is missing, has another shape or an unsupported
            dtype, or belongs to a layer that the config does not have.
    """
    found: dict[str, Header] = {}
    for file in files:
        found |= headers(file)
    wanted = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    inner = getattr(built, "base_model_prefix", "") + "."
    places = {name: _place(name, inner, wanted) for name in found}
    for name, header in found.items():
        place = places[name]
        if place is None:
            continue
        if header.shape != wanted[place]:
            shapes = {"found": _written(header.shape), "wanted": _written(wanted[place])}
            raise user_error("error.model.tensor_shape", path=str(directory), name=name, **shapes)
        if header.kind not in _REAL:
            raise user_error("error.model.tensor_kind", path=str(directory), name=name,
                             kind=header.kind, kinds=", ".join(_REAL))  # fmt: skip
    strange = _unknown(places, built)
    _check_layers(strange, wanted, directory, built)
    if not strange:
        _check_complete(places, directory, built)


def headers(file: Path) -> dict[str, Header]:
    """Name, dtype and shape of every tensor of a file.

    Raises:
        UserError: truncated, or not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {
                name: Header(part.get_dtype(), tuple(part.get_shape()))
                for name, part in parts.items()
            }
    except (OSError, SafetensorError) as error:
        detail = one_line(error)
        raise user_error("error.model.unreadable", path=str(file), detail=detail) from error


def _unknown(places: Mapping[str, str | None], built: nn.Module) -> list[str]:
    """Tensors that the model has no place for and does not ignore."""
    ignored = getattr(built, "_keys_to_ignore_on_load_unexpected", None) or ()
    strange = (name for name, place in places.items() if place is None)
    return [name for name in strange if not any(re.search(each, name) for each in ignored)]


def _check_layers(
    strange: Sequence[str], wanted: Iterable[str], directory: Path, built: nn.Module
) -> None:
    """Refuse weights of more layers than the config has.

    Layers that predict further tokens (``num_nextn_predict_layers``, MTP) follow the model's own.
    """
    config: Any = built.config
    values = config.get_text_config().to_dict()
    if any(values[key] for key in values if _FURTHER.search(key)):
        return
    deepest: dict[str, int] = {}
    for stack, layer in filter(None, map(_layer_of, wanted)):
        deepest[stack] = max(layer, deepest.get(stack, 0))
    for name in strange:
        stack, layer = _layer_of(name) or ("", 0)
        if layer > deepest.get(stack, layer):
            raise user_error("error.model.surplus_layers", path=str(directory), name=name,
                             layers=deepest[stack] + 1)  # fmt: skip


def _layer_of(name: str) -> tuple[str, int] | None:
    """The stack of layers that a tensor belongs to, and its number."""
    found = re.search(r"(\w+)\.(\d+)\.", name)
    return (found[1], int(found[2])) if found else None


def _check_complete(places: Mapping[str, str | None], directory: Path, built: nn.Module) -> None:
    """Refuse weights that lack a tensor.

    Not for weights with unknown tensors, which Transformers may combine into missing ones: loading
    tells.
    """
    there = {place for place in places.values() if place is not None}
    shared: dict[int, list[str]] = {}
    for name, parameter in built.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    missing = [names[0] for names in shared.values() if there.isdisjoint(names)]
    if missing:
        raise user_error("error.model.weights_missing", path=str(directory), n=len(missing),
                         first=sorted(missing)[0])  # fmt: skip


def _place(name: str, inner: str, wanted: Container[str]) -> str | None:
    """Name of a tensor in the model: files may omit or add the prefix of the base model."""
    candidates = (name, inner + name, name.removeprefix(inner))
    return next((each for each in candidates if each in wanted), None)


def _written(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"
