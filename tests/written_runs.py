"""A small run on disk, as a program of the same version would have left it."""

from __future__ import annotations

from pathlib import Path

from event_makers import whole_run

from experiment.events import encode
from experiment.record import EVENTS_FILE


def sample_run(directory: Path) -> Path:
    """Write the event log of two small arms; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(encode(event) + "\n" for event in whole_run())
    (directory / EVENTS_FILE).write_text(text, encoding="utf-8")
    return directory
