"""Sizes as a person writes them → bytes."""

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
    """Bytes of ``144MiB``, ``1.5 GiB``, ``512B`` or ``150994944``. A lone K, M, G is binary.

    Raises:
        ValueError: not a size; decimal KB, MB and GB, which are mistaken for KiB; a number without
            a unit that is too small to mean bytes.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].upper() not in _UNITS or lacks_unit(text):
        raise ValueError(text)
    return int(float(match[1]) * 2 ** _UNITS[match[2].upper()])


def lacks_unit(value: Any) -> bool:
    """Whether a size is a bare number below 32 KiB, such as 4 for 4GiB or 8192 for 8192MiB."""
    text = "" if isinstance(value, bool) else shown(value).strip()
    return bool(_PLAIN.fullmatch(text)) and 0 < float(text) < _LEAST_BYTES


def size_error(name: str, value: Any) -> UserError:
    """Why the value of an option, a key or a variable is no size."""
    key = "error.no_unit" if lacks_unit(value) else "error.not_a_size"
    return user_error(key, config_key=name, value=shown(value).strip())
