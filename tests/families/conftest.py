"""The matrix lies beside the tests."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def frozen() -> Iterator[None]:
    """As in an arm's process: each stage collects garbage, but not what was imported."""
    gc.freeze()
    yield
    gc.unfreeze()
