"""Bad input by the thousand: a right result or one clear line, never anything else.

The same examples in every run. `make fuzz` searches for new ones, guided by coverage; what it
found once lies in corpus/ and is tried here first.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutate import mutated
from targets import TARGETS, FindingError, _said_well, check, seeds_of

from experiment.config.schema import config_keys
from experiment.text.errors import user_error
from experiment.text.messages import message

CORPUS = Path(__file__).parent / "corpus"
KEPT = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
# Inputs for each target, 200 in all; those that draw a whole report take the longest.
COUNTS = {"log": 3, "simulation": 3, "bench": 5, "words": 5, "calibrate-log": 5, "model": 9}
COUNTS |= {name: 17 for name in TARGETS if name not in COUNTS}
TIMES = 10 if os.environ.get("PAGEDKV_FULL") else 1
# They run whole commands, whose refusals are lines and codes.
PROGRAMS = {
    "log", "simulation", "bench", "words", "calibrate", "calibrate-log", "summary", "start-log",
}  # fmt: skip
# Ten seconds are promised on a quiet machine. These refuse a loop over a declared number only:
# the dearest input takes 3 s of processor time there and took 13 s on a busy one.
MOST_SECONDS, MOST_BYTES = 60, 1 << 30
SETTINGS = {"suppress_health_check": list(HealthCheck), "print_blob": False}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tried(name: str, data: bytes) -> str:
    begun, before = time.process_time(), peak()
    found = check(name, data)
    assert time.process_time() - begun < MOST_SECONDS
    assert peak() - before < MOST_BYTES
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_right_input_is_accepted(name: str) -> None:
    seeds = seeds_of(name)
    assert seeds
    accepted = [tried(name, seed) for seed in seeds].count("accepted")
    assert accepted == len(seeds) or name in ("words", "set", "trace", "gate"), name
    assert accepted


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_stays_mended(path: Path) -> None:
    tried(path.parent.name, path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_ends_well(name: str) -> None:
    seeds, outcomes = seeds_of(name), set()
    for number in range(COUNTS[name] * TIMES):
        choose = random.Random(f"{name} {number}")
        outcomes.add(tried(name, mutated(choose.choice(seeds), TARGETS[name].form, choose)))
    assert "refused" in outcomes or name in PROGRAMS


def log(change: Callable[[list[dict[str, Any]]], object]) -> bytes:
    rows = [json.loads(line) for line in seeds_of("log")[0].splitlines()]
    change(rows)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def declared(event: str, **values: Any) -> bytes:
    """A log with other values in the events of a kind."""
    return log(lambda rows: [row.update(values) for row in rows if row["event"] == event])


def added(count: int, row: Callable[[int], dict[str, Any]]) -> bytes:
    """A log with so many events more."""
    return log(lambda rows: rows.__setitem__(slice(3, 3), map(row, range(count))))


def without(name: str) -> bytes:
    """The simulation without a key, wherever it stands."""
    return seeds_of("simulation")[0].replace(f'"{name}":'.encode(), b'"other":')


NOTE = {"key": "model.random_text", "params": {}}
# What is small and asks for much: a loop, a list or a table of a number or of names in it.
HOSTILE = {
    "parts of a key": ("config", b"a" + b".a" * 20_000 + b" = 1"),
    "parts of a table": ("gate", b"[" + b"a." * 20_000 + b"a]"),
    "host memory": ("log", declared("run_started", config={"engine": {"swap_space": 2**32}})),
    "blocks": ("log", declared("pool", blocks=10**7)),
    "no version": ("simulation", without("version")),
    "slot bytes": ("log", declared("pool", slot_bytes=2**62)),
    "engine blocks": ("log", declared("pool", engine_blocks=2**62)),
    "block size": ("log", declared("pool", block_size=2**62)),
    "year of a check": ("gpucheck", seeds_of("gpucheck")[0].replace(b"1" + b"0" * 18, b"1" * 400)),
    "zone of a check": ("gpucheck", seeds_of("gpucheck")[0].replace(b"3600", b"1" * 400)),
    "keys": ("log", declared("run_started", config=dict.fromkeys(map(str, range(200_000))))),
    "notes": ("log", declared("model", notes=[NOTE] * 50_000)),
    "notices": ("log", added(50_000, lambda n: {"event": "notice", "t_ns": n, "text": NOTE})),
    "arms": ("log", added(1000, lambda n: {"event": "arm_started", "arm": f"a{n}", "pid": 1})),
    "facts": ("log", added(1, lambda n: {"event": "environment", "environment": {
        "requirements": ["a"] * 500_000}})),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_declared_costs_no_more_than_what_is_there(name: str) -> None:
    tried(*HOSTILE[name])


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["gpt2", "auto", "1GiB", "paged", "quick", "capacity", "9" * 400, "~x/y"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + "".join(c if c.isalnum() else f"\\U{ord(c):08x}" for c in value) + '"'
    return "[]" if value is None else str(value)


@settings(max_examples=30 * TIMES, **SETTINGS)
@given(st.dictionaries(st.sampled_from(config_keys()), VALUES, max_size=4))
def test_any_value_under_any_key(table: dict[str, object]) -> None:
    text = "\n".join(f"{key} = {toml(value)}" for key, value in table.items())
    tried("config", text.encode("utf-8", "replace"))
    tried("set", text.replace(" = ", "=", 1).encode("utf-8", "replace"))


@settings(max_examples=30 * TIMES, **SETTINGS)
@given(st.sampled_from(sorted(set(TARGETS) - PROGRAMS)), st.binary(max_size=200))
def test_any_bytes_end_in_a_result_or_one_clear_line(name: str, data: bytes) -> None:
    tried(name, data)


def test_the_check_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, a line that is none, and an unknown message would all be findings."""
    broken = user_error("error.file_missing", path="a")
    broken.text = message("error.file_missing", path="a\nb")
    with pytest.raises(FindingError):
        _said_well(broken)
    with pytest.raises(KeyError):
        _said_well(user_error("error.no_such_key"))
    monkeypatch.setattr("targets.read_prompts", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check("prompts", b"")
    monkeypatch.setattr("experiment.commands.render.render", lambda *_: 7)
    with pytest.raises(FindingError, match="code 7"):
        check("log", seeds_of("log")[0])
