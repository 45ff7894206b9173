"""Values of a row: integers, exact times, hash ids; each rejection has a reason.

Times are converted to integer nanoseconds through decimals, not binary fractions, so that the
result depends on the digits of the file only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from kvsim.traces.types import NANOSECONDS

UNITS = {"s": NANOSECONDS, "ms": 1_000_000, "us": 1_000, "ns": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# A larger token count means a damaged row.
_MAX_TOKENS = 1 << 40
_MAX_TIME = 10**20
_MAX_ID_BITS = 128


class BadRowError(Exception):
    """A row is not a valid request: the reason, and the offending value, shortened."""

    def __init__(self, reason: str, value: object = "") -> None:
        super().__init__(reason)
        self.reason = reason
        try:
            self.value = str(value)[:80]
        except RecursionError:  # deeply nested JSON
            self.value = type(value).__name__


class Raw(NamedTuple):
    """A parsed row: time in nanoseconds on the file's own clock."""

    time_ns: int | None
    prompt: int
    output: int
    hash_ids: tuple[int, ...] | None = None


def tokens(value: object, name: str) -> int:
    """Parse a number of tokens, at least 1.

    Raises:
        BadRowError: ``<name>_missing``, ``<name>_not_a_number``, ``<name>_too_large`` or
            ``<name>_not_positive``.
    """
    if value is None or value == "":
        raise BadRowError(f"{name}_missing")
    count = _whole(value)
    digits = isinstance(value, str) and value.isascii() and value.isdigit()
    if digits if count is None else count > _MAX_TOKENS:
        raise BadRowError(f"{name}_too_large", value)
    if count is None:
        raise BadRowError(f"{name}_not_a_number", value)
    if count < 1:
        raise BadRowError(f"{name}_not_positive", value)
    return count


def scaled_time(value: object, unit: str) -> int:
    """Convert a number in ``unit`` to nanoseconds, rounded to the nearest.

    Raises:
        BadRowError: ``time_missing`` or ``time_not_a_number``.
    """
    if value is None or value == "":
        raise BadRowError("time_missing")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_TIME:
        return value * UNITS[unit]
    number = _decimal(value)
    if number is None:
        raise BadRowError("time_not_a_number", value)
    return int((number * UNITS[unit]).to_integral_value())


def has_fraction(value: object) -> bool:
    """Whether a number has a fractional part."""
    if isinstance(value, int):
        return False
    number = _decimal(value)
    return number is not None and number != number.to_integral_value()


def date_time(value: str) -> int:
    """Convert a date and time, with up to nine fractional digits, to nanoseconds since 1970 UTC.

    A time without an offset is UTC.

    Raises:
        BadRowError: ``time_missing`` or ``time_not_a_date``.
    """
    if not value:
        raise BadRowError("time_missing")
    seconds, dot, rest = value.partition(".")
    digits = rest
    if dot:
        end = next((i for i, char in enumerate(rest) if char in "+-Z"), len(rest))
        digits, seconds = rest[:end], seconds + rest[end:]
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
            raise BadRowError("time_not_a_date", value)
    try:
        moment = datetime.fromisoformat(seconds)
    except ValueError as error:
        raise BadRowError("time_not_a_date", value) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    whole = since.days * 86_400 + since.seconds
    return whole * NANOSECONDS + since.microseconds * 1_000 + int(digits.ljust(9, "0") or 0)


def hash_ids(value: object) -> tuple[int, ...] | None:
    """Parse the ids of a prompt's blocks; None if the row has none.

    Raises:
        BadRowError: ``hash_ids_not_a_list``: not a list of integers of at most 128 bits.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise BadRowError("hash_ids_not_a_list", value)
    if max(map(int.bit_length, value), default=0) > _MAX_ID_BITS:
        raise BadRowError("hash_ids_not_a_list", value)
    return tuple(value)


def _whole(value: object) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isdigit() and value.isascii() and len(value) < 20:
        return int(value)
    number = _decimal(value)
    return int(number) if number is not None and number == number.to_integral_value() else None


def _decimal(value: object) -> Decimal | None:
    """Parse a number exactly; None if it is not finite or has more than 20 digits."""
    # Decimal accepts 1_000 and non-ASCII digits, too.
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        return None
    if not isinstance(value, str | Decimal):
        return None
    try:
        number = Decimal(value)
    except InvalidOperation:
        return None
    return number if number.is_finite() and number.adjusted() < 20 else None
