"""The behaviours are checked with the helpers of the packages that they are about."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS / "kvsim"), str(TESTS / "engine")]
