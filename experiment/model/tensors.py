"""Whether the weights are those of the model, told from the headers of their files alone.

    config.json ──► the model, built without memory: names and shapes ─┐
    *.safetensors ► headers: names, shapes and kinds of numbers ───────┴─► all there, each fits

What does not fit is named before any arm has started.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.model.load import one_line
from experiment.text.errors import user_error

if TYPE_CHECKING:
    from torch import nn
import hashlib
from collections.abc import Callable

from kvsim.files import file_sha256


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


# Kinds of numbers that are loaded as they are or turned into each other; others are codes for some.
_REAL = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of a tensor: the kind of its numbers, and how many each way."""

    kind: str
    shape: tuple[int, ...]


def check_tensors(files: Sequence[Path], directory: Path, built: nn.Module) -> None:
    """Refuse weights that do not fit the model.

    Args:
        files: the safetensors files of the weights.
        directory: where they lie, as it is named to a person.
        built: the model of the config, on torch's device ``meta``.

    Raises:
        UserError: a file cannot be read, or a tensor is missing, of another shape, or of numbers
            that are none.
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
    _check_complete(places, directory, built)


def headers(file: Path) -> dict[str, Header]:
    """Name, kind and shape of every tensor of a file.

    Raises:
        UserError: it is cut short, or no safetensors file.
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


def _check_complete(places: Mapping[str, str | None], directory: Path, built: nn.Module) -> None:
    """Refuse weights that lack a tensor.

    Where a file has tensors that the model does not know, Transformers may put those together to
    what is missing here: it says itself, when it loads them, what it lacks.
    """
    known = getattr(built, "_keys_to_ignore_on_load_unexpected", None) or ()
    strange = [name for name, place in places.items() if place is None]
    if any(not any(re.search(pattern, name) for pattern in known) for name in strange):
        return
    there = {place for place in places.values() if place is not None}
    shared: dict[int, list[str]] = {}
    for name, parameter in built.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    missing = [names[0] for names in shared.values() if there.isdisjoint(names)]
    if missing:
        raise user_error("error.model.weights_missing", path=str(directory), n=len(missing),
                         first=sorted(missing)[0])  # fmt: skip


def _place(name: str, inner: str, wanted: Container[str]) -> str | None:
    """The model's own name of a tensor: files may leave the name of its inner part away."""
    candidates = (name, inner + name, name.removeprefix(inner))
    return next((each for each in candidates if each in wanted), None)


def _written(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"
