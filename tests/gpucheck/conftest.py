"""Parts that tests run in child processes, and helpers of the reports' tests, can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE / "parts"), str(HERE.parent / "report")]
