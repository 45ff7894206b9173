"""Trace files for tests: written, and read back as requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvsim.traces import ReadOptions, TraceFile, TraceRequest

Write = Callable[..., Path]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def writer(directory: Path) -> Write:
    """Puts a text or bytes into a file of ``directory``."""

    def put(text: str | bytes, name: str = "trace") -> Path:
        path = directory / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return put


def read(path: Path, **options: Any) -> tuple[list[TraceRequest], TraceFile]:
    trace = TraceFile(path, ReadOptions(**options))
    return list(trace), trace


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def hashed(time: float, prompt: int, output: int, ids: list[int], **more: object) -> dict[str, Any]:
    return {
        "timestamp": time,
        "input_length": prompt,
        "output_length": output,
        "hash_ids": ids,
        **more,
    }


def lengths(requests: list[TraceRequest]) -> list[tuple[int, int, int]]:
    return [(r.arrival_ns, r.prompt_tokens, r.output_tokens) for r in requests]


def words(text: str) -> int:
    return len(text.split())
