"""Bad input by the thousand: a right result or one clear line, never anything else.

The same examples in every run. `make fuzz` searches for new ones, guided by coverage; what it
found once lies in corpus/ and is tried here first.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutate import mutated
from targets import TARGETS, FindingError, _said_well, check, seeds_of

from experiment.config import config_keys
from experiment.messages import user_error

CORPUS = Path(__file__).parent / "corpus"
KEPT = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
# Inputs for each target; those that draw a whole report take the longest.
COUNTS = {"log": 20, "simulation": 20, "bench": 40, "words": 60, "calibrate-log": 50}
COUNTS |= {"baseline": 60, "calibrate": 60, "gate": 100}
# They run whole commands, whose refusals are lines and codes.
PROGRAMS = {"log", "simulation", "bench", "words", "calibrate", "calibrate-log", "summary"}
MOST_SECONDS = 10
SETTINGS = {"suppress_health_check": list(HealthCheck), "print_blob": False}


def tried(name: str, data: bytes) -> str:
    begun = time.monotonic()
    found = check(name, data)
    assert time.monotonic() - begun < MOST_SECONDS
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
    for number in range(COUNTS.get(name, 250)):
        choose = random.Random(f"{name} {number}")
        outcomes.add(tried(name, mutated(choose.choice(seeds), TARGETS[name].form, choose)))
    assert "refused" in outcomes or name in PROGRAMS


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


@settings(max_examples=300, **SETTINGS)
@given(st.dictionaries(st.sampled_from(config_keys()), VALUES, max_size=4))
def test_any_value_under_any_key(table: dict[str, object]) -> None:
    text = "\n".join(f"{key} = {toml(value)}" for key, value in table.items())
    tried("config", text.encode("utf-8", "replace"))
    tried("set", text.replace(" = ", "=", 1).encode("utf-8", "replace"))


@settings(max_examples=300, **SETTINGS)
@given(st.sampled_from([name for name in TARGETS if name not in COUNTS]), st.binary(max_size=200))
def test_any_bytes_end_in_a_result_or_one_clear_line(name: str, data: bytes) -> None:
    tried(name, data)


def test_the_check_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, a line that is none, and an unknown message would all be findings."""
    with pytest.raises(FindingError):
        _said_well(user_error("error.file_missing", path="a\nb"))
    with pytest.raises(KeyError):
        _said_well(user_error("error.no_such_key"))
    monkeypatch.setattr("targets.read_prompts", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check("prompts", b"")
    monkeypatch.setattr("experiment.drawing.render", lambda *_: 7)
    with pytest.raises(FindingError, match="code 7"):
        check("log", seeds_of("log")[0])
