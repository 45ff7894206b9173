"""Names of models, GPUs, presets and formats: found, listed, and the near ones named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from experiment.simulate.hub_config import hub_config
from experiment.simulate.model_file import is_hub_name, model_file, read_model, weights_beside
from experiment.simulate.policies import policy_message
from experiment.text import format_bytes
from experiment.text.errors import UserError, unknown, user_error
from experiment.text.messages import Message, message
from experiment.workload.kvsim_errors import model_refused, translate_errors, unknown_model
from kvsim.sim.config import SIM_POLICIES
from kvsim.sizing.gpus import GPUS, GPUFacts, find_gpu
from kvsim.sizing.layout import token_bytes
from kvsim.sizing.models import MODELS, REFUSED, ModelFacts, UnknownModelError, find_model
from kvsim.traces import PRESETS
from kvsim.traces.formats import FORMATS, TraceFormat

LISTS = ("models", "gpus", "policies", "presets", "formats")
_LISTED = {"--model": "models", "--gpu": "gpus", "--trace": "presets"}


def model_of(name: str, weights: int | str | None = None) -> ModelFacts:
    """A model of the catalogue, or of a config.json, whose cache can be counted.

    Args:
        weights: bytes of the weights, or what they are quantised to; None: as published.

    Raises:
        UserError: there is none of that name, or its cache is of another kind.
    """
    try:
        found = find_model(name)
        if isinstance(weights, str):
            return found.quantised(weights)
        return replace(found, weights=weights) if weights else found
    except UnknownModelError as error:
        path = model_file(name)
        asks = error.reason is None and is_hub_name(name)
        if asks and (path is None or not (weights or weights_beside(path))):
            try:
                path, size = hub_config(name)
                weights = weights or size or None
            except UserError:
                if path is None and error.close:  # rather a slip
                    raise unknown_model(error) from error
                if path is None:
                    raise
        if path is None:
            raise unknown_model(error) from error
        return read_model(path, name, weights)


def gpu_of(name: str) -> GPUFacts:
    """A GPU of the catalogue.

    Raises:
        UserError: there is none of that name.
    """
    with translate_errors():
        return find_gpu(name)


def check_given(values: Mapping[str, object]) -> None:
    """Check that every option has a value.

    Raises:
        UserError: some have none: all of them are named.
    """
    missing = [flag for flag, value in values.items() if not value]
    if missing:
        flags = [
            f"{flag} (--list {_LISTED[flag]})" if flag in _LISTED else flag for flag in missing
        ]
        raise user_error("error.sim.needs", flags=", ".join(flags))


def unknown_trace(name: str) -> UserError:
    """Neither a file nor a preset."""
    return unknown("trace", name, PRESETS, see="--list presets")


Row = tuple[str | Message, ...]


def listing(what: str) -> list[Row]:
    """Rows of a list of :data:`LISTS`: names and their facts."""
    rows: dict[str, Callable[[], list[Row]]] = {
        "models": _models,
        "gpus": _gpus,
        "policies": lambda: [(name, policy_message(name)) for name in SIM_POLICIES],
        "presets": lambda: [
            (name, f"{preset.prompt.mean:g}", f"{preset.output.mean:g}")
            for name, preset in PRESETS.items()
        ],
        "formats": lambda: [
            (f.name, f.container, f.unit or "", _columns(f)) for f in FORMATS.values()
        ],
    }
    return rows[what]()


def _columns(format_: TraceFormat) -> str | Message:
    required, optional = ", ".join(format_.keys), ", ".join(format_.optional)
    if not optional:
        return required
    return message("sim.list.optional", required=required, optional=optional)


def model_notes() -> list[Message]:
    """How many configs were not seen as published; well-known models that are refused, and why."""
    unverified = sum(not model.verified for model in MODELS.values())
    return [
        message("sim.list.unverified", n=unverified, models=len(MODELS)),
        *(model_refused(name, why) for name, why in REFUSED.items()),
    ]


def _models() -> list[Row]:
    return [
        (
            model.name if model.verified else f"{model.name} *",
            f"{model.parameters / 1e9:,.2f}",
            format_bytes(token_bytes(caches := model.caches())),
            f"{model.max_positions:,}" if model.max_positions else "",
            ", ".join(f"{n} {kind}" for kind, n in Counter(c.name for c in caches).items()),
        )
        for model in MODELS.values()
    ]


def _gpus() -> list[Row]:
    return [
        (gpu.name, format_bytes(gpu.memory_bytes), f"{gpu.bandwidth / 1e9:,.0f}",
         f"{gpu.flops / 1e12:,.1f}")
        for gpu in GPUS.values()
    ]  # fmt: skip
