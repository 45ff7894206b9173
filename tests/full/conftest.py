"""Helpers of other tests serve here as well."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / name) for name in ("engine", "load", "leaks")]
