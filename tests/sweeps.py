"""What `make test` leaves to `make test-full`: more of what a test shows with less."""

from __future__ import annotations

import os

import pytest

FULL = bool(os.environ.get("PAGEDKV_FULL"))
full = pytest.mark.skipif(not FULL, reason="for make test-full")
# As many examples of a property as `make test` tries.
TIMES = 4 if FULL else 1
