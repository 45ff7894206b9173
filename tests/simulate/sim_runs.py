"""Small simulations through the front door, for tests that look at what they say and write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from experiment.commands.main import main
from experiment.text.errors import ExitCode

MODEL = ("--model", "opt-13b", "--gpu", "a100-40gb", "--kv-budget", "12GiB")
SMALL = ("--trace", "sharegpt-like", "--requests", "100", "--rate", "20", *MODEL)


class Planned(NamedTuple):
    """What ``plan`` writes and prints."""

    data: dict[str, Any]
    lines: list[str]

    @property
    def text(self) -> str:
        """What it prints, in one line."""
        return " ".join(" ".join(self.lines).replace("\\ ", "").split())


def hashed_trace(path: Path) -> Path:
    """Prompts of 64 tokens in blocks of 16: four beginnings, each asked for again and again."""
    rows = [
        {
            "timestamp": 100 * index,
            "input_length": 64,
            "output_length": 8,
            "hash_ids": [index % 4, 10 + index % 4, 20 + index % 8, 1000 + index],
        }
        for index in range(60)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def simulated(out: Path, *words: str, code: int = ExitCode.OK) -> dict[str, Any]:
    """Run ``simulate`` and read its record."""
    assert main(["simulate", "--details", "--out", str(out), "--lang", "en", *words]) == code
    return dict(json.loads((out / "sim.json").read_bytes()))
