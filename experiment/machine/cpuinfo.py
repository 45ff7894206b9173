"""Linux's description of the processor."""

from __future__ import annotations

import re


def parse_cpuinfo(text: str) -> tuple[str | None, frozenset[str]]:
    """Model name and instruction-set flags of Linux's /proc/cpuinfo, x86 or ARM."""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else None, frozenset(flags[1].split() if flags else ())
