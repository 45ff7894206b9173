"""Convert errors of kvsim into messages, with file and line if known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from gzip import BadGzipFile
from typing import Any

from experiment.files.os_errors import os_reason
from experiment.text.errors import UserError, unknown, user_error
from experiment.text.messages import Message, message
from kvsim.sim.config import SimulationError
from kvsim.sizing.budget import PlanError
from kvsim.sizing.gpus import UnknownGPUError
from kvsim.sizing.models import UnknownModelError
from kvsim.traces.types import ERROR_CODES, REASONS, TraceError

_CELL_CODES = ("bad_option", "livelock", "nothing_fits", "pool_too_large", "pool_too_small")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert errors of kvsim into user errors.

    Raises:
        UserError: in place of a TraceError, SimulationError or PlanError, or of an unknown name.
    """
    try:
        yield
    except TraceError as error:
        raise UserError(trace_message(error)) from error
    except SimulationError as error:
        raise UserError(simulation_message(error)) from error
    except PlanError as error:
        raise user_error(f"error.plan.{error.code}", **error.params) from error
    except UnknownGPUError as error:
        raise unknown("gpu", error.name, (), near=error.close, see="--list gpus") from error
    except UnknownModelError as error:
        raise unknown_model(error) from error


def unknown_model(error: UnknownModelError) -> UserError:
    """No model of that name, or one whose cache is of another kind."""
    if error.reason is not None:
        return UserError(model_refused(error.name, error.reason))
    return unknown("model", error.name, (), near=error.close, see="--list models")


def model_refused(model: str, reason: str) -> Message:
    """A model whose cache the formulas do not describe."""
    why = message(f"geometry.{reason}").model_dump()
    return message("error.sim.model_refused", model=model, why=why)


def trace_message(error: TraceError) -> Message:
    """Error in a trace, with its position."""
    params: dict[str, Any] = {**error.params}
    code = error.code if error.code in ERROR_CODES else "unreadable"
    if code == "unreadable":
        cause = error.__cause__
        # Errors of gzip files: truncated or corrupt.
        damaged = isinstance(cause, BadGzipFile) or not isinstance(cause, OSError)
        params["why"] = (
            message("error.os.packed").model_dump() if damaged else os_reason(cause)  # type: ignore[arg-type]
        )
    if "line" in params:
        place = (params.pop(name, None) for name in ("line", "entry", "column"))
        params["place"] = place_message(*place).model_dump()
    if params.get("reason") == "output_tokens_needed":
        code = "output_tokens_needed"
    elif "reason" in params:
        params["why"] = reason_message(str(params["reason"])).model_dump()
        params["value"] = str(params.get("value", ""))[:60] or None
    if code == "near_format" and params["only_clock"]:
        code = "near_clock"
    if code == "nothing_accepted" and "place" not in params:
        return message("error.trace.no_records", **params)
    return message(f"error.trace.{code}", **params)


def place_message(line: int, entry: int | None = None, column: int | None = None) -> Message:
    """Position in a file; see :class:`kvsim.traces.types.Place`."""
    if entry is not None:
        return message("trace_place.entry", entry=entry, line=line)
    if column is not None:
        return message("trace_place.column", line=line, column=column)
    return message("trace_place.line", line=line)


def rejected_message(rejection: Mapping[str, Any]) -> Message:
    """Number of rows rejected for one reason, and the position of the first."""
    place = place_message(rejection["first_line"], rejection.get("first_entry"))
    return message(
        "sim.fact.rejected_value", count=rejection["count"], place=place.model_dump(),
        why=reason_message(rejection["reason"]).model_dump(), value=rejection["first_value"][:60],
    )  # fmt: skip


def reason_message(reason: str) -> Message:
    """Why a row was rejected."""
    known = reason in REASONS
    return message(f"trace_reason.{reason}") if known else message("trace_reason.other", of=reason)


def simulation_message(error: SimulationError) -> Message:
    """Why a simulation cannot start or continue."""
    params: dict[str, Any] = {**error.params}
    if error.code == "bad_option":
        flag = "--" + str(params["option"]).replace("_", "-")
        if params["option"] == "policy":
            return message("error.sim.one_sample", policy=params["value"])
        return message("error.bad_value", config_key=flag, value=params["value"])
    if error.code == "nothing_fits":
        params["why"] = refusal_message(params).model_dump()
    return message(f"error.sim.{error.code}", **params)


def cell_message(code: str, params: Mapping[str, Any], settings: Mapping[str, Any]) -> Message:
    """Why a cell of a sweep cannot be simulated; ``settings`` are the cell's, by axis."""
    known = dict(params)
    if code in ERROR_CODES:
        return trace_message(TraceError(code, **{"file": settings["trace"], **known}))
    if code in _CELL_CODES:
        return simulation_message(SimulationError(code, **known))
    if code == "unsupported_geometry":
        return model_refused(settings["model"], known["reason"])
    return message("sweep.other", code=code)


def refusal_message(refusal: dict[str, Any]) -> Message:
    """Why requests can never be served: required and available memory."""
    return message(
        f"refusal.{refusal['reason']}", needed=refusal["needed"], available=refusal["available"]
    )
