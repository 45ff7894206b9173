"""Parse sizes such as ``1.5 GiB`` into bytes."""

from __future__ import annotations

import re
from typing import Any

from experiment.text.errors import UserError, shown, user_error

_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([KMGT]?i?B?)\s*", re.IGNORECASE)
_UNITS = {"": 0, "B": 0, "KIB": 10, "MIB": 20, "GIB": 30, "TIB": 40, "KI": 10, "MI": 20, "GI": 30}
_UNITS |= {"K": 10, "M": 20, "G": 30, "T": 40, "TI": 40}
_PLAIN = re.compile(r"\d{1,18}(?:\.\d{1,18})?")
_LEAST_BYTES = 1 << 15


def parse_bytes(text: str) -> int:
    """Parse ``144MiB``, ``1.5 GiB``, ``512B`` or ``150994944`` into bytes; K, M and G are binary.

    Raises:
        ValueError: not a size; decimal KB, MB or GB, which are often meant as binary; or a number
            without a unit that is too small to be bytes.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].upper() not in _UNITS or lacks_unit(text):
        raise ValueError(text)
    return int(float(match[1]) * 2 ** _UNITS[match[2].upper()])


def exact_size(size: int) -> str:
    """Write bytes as they can be typed, without rounding: 2GiB, 1120KiB, 1000B."""
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size and size % (1 << bits) == 0:
            return f"{size >> bits}{unit}"
    return f"{size}B"


def lacks_unit(value: Any) -> bool:
    """Whether a size is a number below 32 Ki without a unit, such as 4 for 4GiB."""
    text = "" if isinstance(value, bool) else shown(value).strip()
    return bool(_PLAIN.fullmatch(text)) and 0 < float(text) < _LEAST_BYTES


def size_error(name: str, value: Any) -> UserError:
    """Build the error for an option, config key or variable that is not a size."""
    key = "error.no_unit" if lacks_unit(value) else "error.not_a_size"
    return user_error(key, config_key=name, value=shown(value).strip())
