"""A real process whose memory is watched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from memory_fakes import PatternProcess


@pytest.fixture
def child() -> Iterator[PatternProcess]:
    made = PatternProcess()
    yield made
    made.end()
