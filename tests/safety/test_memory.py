"""What someone else wrote takes no more than a gibibyte: a process reads it and is measured.

The peak is the system's own figure of that process, with interpreter and libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import event_makers
import pytest

from experiment.events import Step, encode
from experiment.files.parse_memory import ParseBudget, memory_budget
from experiment.text.errors import ExitCode, UserError

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
MIB = 1 << 20
# Each command with the memory that it is allowed, in one process: it imports once.
PROGRAM = """
import json, os, resource, sys
from experiment.commands.main import main
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # should nothing be refused
for memory, words in json.loads(sys.argv[1]):
    os.environ["PAGEDKV_MEMORY"] = memory
    code = main([*words, "--lang", "en"])
    status = open("/proc/self/status").read()
    print(json.dumps([code, int(status.split("VmHWM:")[1].split()[0]) << 10]))
"""


def head() -> str:
    return "".join(encode(event) + "\n" for event in event_makers.head())


def step() -> str:
    (first, *_) = (e for e in event_makers.paged_arm() if isinstance(e, Step))
    return encode(first) + "\n"


def a_log(at: Path, line: str, times: int, end: str = "\n") -> Path:
    at.mkdir()
    with (at / "events.jsonl").open("w", encoding="utf-8") as file:
        file.write(head())
        part = line * 1000
        for _ in range(times // 1000):
            file.write(part)
        file.write(end)
    return at


def prompts(at: Path, begin: str, line: str, size: int) -> Path:
    at.write_text(begin + line * ((size - len(begin)) // len(line)), encoding="utf-8")
    return at


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, list[str], str]]:
    """By a name: the memory allowed, a command, and what it says."""
    at = tmp_path_factory.mktemp("large")
    brackets = a_log(at / "brackets", "[],", 15_000_000)
    steps = a_log(at / "steps", step(), 60_000)
    turns = prompts(at / "turns.json", "[", "[[],[]],", 24 * MIB)
    texts = prompts(at / "texts.jsonl", "", '{"prompt":"ab"}\n', 24 * MIB)
    blank = prompts(at / "blank.jsonl", "", "\n", 24 * MIB)
    begin = '{"timestamp":1,"input_length":5,"output_length":5,"pad":['
    rows = prompts(at / "rows.jsonl", "", begin + "[]," * 5_000_000 + "[]]}\n", 80 * MIB)
    text = at / "text"
    text.mkdir()
    (text / "sim.json").write_text(json.dumps("a" * (30 * MIB)), encoding="utf-8")
    run = ["--yes", "--out", str(at / "none"), "--prompts"]
    much = "100,000 requests"
    return {
        "a line of brackets": ("", ["render", str(brackets)], "more than 1 GiB of memory"),
        "many steps": ("60MiB", ["render", str(steps)], "more than 60 MiB of memory"),
        "many conversations": ("", [*run, str(turns)], much),
        "many prompts": ("", [*run, str(texts)], much),
        "blank lines": ("", [*run, str(blank)], much),
        "a large text": ("", ["render", str(text)], "is not a run directory"),
        "rows of brackets": (
            "",
            ["plan", "--trace", str(rows), "--model", "gpt2", "--gpu", "h100"],
            "longer than 8 MiB",
        ),
        "no size": ("much", ["render", str(steps)], "PAGEDKV_MEMORY: much"),
    }


@pytest.fixture(scope="module")
def read(inputs: dict[str, tuple[str, list[str], str]]) -> dict[str, tuple[int, int, str]]:
    """By a name: exit code, peak so far, and what was said."""
    given = [(memory, words) for memory, words, _ in inputs.values()]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(given)], cwd=ROOT, capture_output=True,
        text=True, encoding="utf-8", timeout=300, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
    said = done.stderr.splitlines()
    assert len(told) == len(said) == len(inputs), done.stderr[-2000:]
    return {n: (*t, s) for n, t, s in zip(inputs, told, said, strict=True)}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="another system")
@pytest.mark.parametrize(
    "name",
    ["a line of brackets", "many steps", "many conversations", "many prompts", "blank lines",
     "a large text", "rows of brackets", "no size"],
)  # fmt: skip
def test_it_is_refused_in_one_line_within_a_gibibyte(
    name: str,
    inputs: dict[str, tuple[str, list[str], str]],
    read: dict[str, tuple[int, int, str]],
) -> None:
    code, peak, said = read[name]
    assert code == ExitCode.USAGE
    assert inputs[name][2] in said
    assert peak < GIB


@pytest.mark.parametrize("text", [b"a" * (30 * MIB), b"\\a" * (15 * MIB), b'""' * (15 * MIB)])
def test_estimating_the_memory_of_a_text_takes_little(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDKV_MEMORY", "96MiB")
    budget = ParseBudget(Path("some.json"))
    tracemalloc.start()
    try:
        with pytest.raises(UserError):
            budget.reserve(b'"' + text + b'"')
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("named", "size"), [("", GIB), ("3 MiB", 3 * MIB), ("4096B", 4096)])
def test_more_may_be_allowed(named: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDKV_MEMORY", named)
    assert memory_budget() == size
