"""What a commit's program makes of a set of runs, and whether this one makes the same of them.

    make    a commit's program ─► logs of runs, experiments, benchmarks      DIR/logs/<case>
    freeze  the same program   ─► what it concludes from them, as numbers    DIR/frozen/<case>.json
    check   this program       ─► the same numbers from the same logs        differences, code 1

``make corpus`` does all three from the commit that the Makefile names. Simulations have no log:
they run again. New numbers are no difference. Renamed ones are found through ``keys.toml``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ARMS = "contiguous,contiguous.growing,slabs,paged,transformers_paged"
_REPEATS = ("--set", "experiment.repeats=2")
EXPERIMENTS = (
    "beam", "block-size", "capacity", "concurrency", "context", "holes", "lengths", "lookup",
    "parallel-sampling", "preemption", "prefix", "priority", "quantised", "serving",
)  # fmt: skip
RUNS = {
    "quick": ("quick", "--arms", ARMS),
    "default": ("--arms", ARMS),
    "samples": ("quick", "--set", "sampling.n=3", "--set", "sampling.temperature=0.8"),
    "prefix-caching": ("quick", "--set", "engine.prefix_caching=true"),
    "int8": ("quick", "--set", "cache.kv_dtype=int8"),
    "swapped": (
        "quick", "--arms", "slabs,paged", "--set", "engine.preemption=swap",
        "--set", "engine.swap_space=4MiB", "--kv-budget", "384KiB",
    ),
    **{name: (name, "--quick", *_REPEATS) for name in EXPERIMENTS},
}  # fmt: skip
_SYNTHETIC = ("--requests", "300", "--model", "opt-13b", "--gpu", "a100-40gb")
SIMULATED = {
    "simulate-all": ("simulate", "--trace", "sharegpt-like", "--rate", "2", *_SYNTHETIC,
                     "--policy", "all"),
    "simulate-sweep": ("simulate", "--trace", "sharegpt-like", "--rate", "2", *_SYNTHETIC,
                       "--kv-budget", "12GiB", "--block-sizes", "1,16,128",
                       "--budgets", "6GiB,12GiB"),
    "simulate-swap": ("simulate", "--trace", "alpaca-like", "--rate", "20", *_SYNTHETIC,
                      "--kv-budget", "1GiB", "--preemption", "swap", "--swap-space", "4GiB"),
    "simulate-samples": ("simulate", "--trace", "alpaca-like", "--rate", "4", *_SYNTHETIC,
                         "--samples", "4"),
    "paper": ("paper",),
    "sweep": ("sweep", "sweep-rate"),
}  # fmt: skip
BENCH = ("bench", "--quick", "--rounds", "1", "--arms", "contiguous.batch,slabs,paged")
# What differs between two programs that conclude the same.
_VOLATILE = re.compile(
    r"run\.json:(version|files\b.*)|sim\.json:(version|wall_ns|cells\.\d+\.speed\..*)"
    r"|.*\bdata-key=(version|command|began)"
)


@dataclass
class Numbers(HTMLParser):
    """Texts of a page's elements that name their source: key → texts, in order."""

    found: dict[str, list[str]] = field(default_factory=dict)
    _open: list[tuple[str, list[str] | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("br", "img", "meta", "link", "input", "hr", "col", "wbr"):
            return
        key = dict(attrs).get("data-key")
        text: list[str] | None = [] if key else None
        if key and text is not None:
            self.found.setdefault(key, []).append("")
        self._open.append((key or "", text))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("br", "img", "meta", "link", "input", "hr", "col", "wbr") or not self._open:
            return
        key, text = self._open.pop()
        if text is not None:
            self.found[key][-1] = re.sub(r"\s+", " ", "".join(text)).strip()

    def handle_data(self, data: str) -> None:
        for _, text in self._open:
            if text is not None:
                text.append(data)


def flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of JSON data by their paths."""
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    else:
        yield at, value
    for key, inner in items:
        yield from flat(inner, f"{at}.{key}" if at else str(key))


def numbers_of(directory: Path) -> dict[str, Any]:
    """Every number that the files of a directory show: file and key → value."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not path.is_file() or name.startswith(("logs/", "runs/", "plots/", "cells/", "timing/")):
            continue
        if path.suffix == ".json":
            values: Any = flat(json.loads(path.read_text(encoding="utf-8")))
        elif path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                values = flat(list(csv.DictReader(file)))
        elif path.suffix == ".html":
            page = Numbers()
            page.feed(path.read_text(encoding="utf-8"))
            values = ((f"data-key={key}", texts) for key, texts in page.found.items())
        elif path.suffix == ".md":
            rows = [line for line in path.read_text(encoding="utf-8").splitlines() if "|" in line]
            values = flat(rows)
        else:
            continue
        found.update((f"{name}:{key}", value) for key, value in values)
    return {key: value for key, value in found.items() if not _VOLATILE.fullmatch(key)}


def program(root: Path, *words: str, check: bool = True) -> None:
    """Run a commit's program."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(root / "run_experiment.py"), *words, "--lang", "en"],
        cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", errors="replace", check=False,
    )  # fmt: skip
    if check and done.returncode not in (0, 3):
        sys.exit(
            f"{' '.join(words)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )


def make(directory: Path, root: Path, names: Sequence[str]) -> None:
    """Run what leaves a log; a case that is there is kept."""
    logs = directory / "logs"
    for name, words in RUNS.items():
        if names and name not in names:
            continue
        if not (logs / name / "run.json").exists():
            shutil.rmtree(logs / name, ignore_errors=True)
            print(name, flush=True)
            program(root, *words, "--yes", "--quiet", "--offline", "--out", str(logs / name))
    if "bench" in (names or ["bench"]) and not (logs / "bench" / "engine.json").exists():
        print("bench", flush=True)
        program(root, *BENCH, "--out", str(logs / "bench"))
    broken(logs, root)


def broken(logs: Path, root: Path) -> None:
    """A log that ends in the middle of a line, one with a damaged line, one that was resumed."""
    lines = (logs / "quick" / "events.jsonl").read_bytes().splitlines(keepends=True)
    cut, half = len(lines) * 2 // 3, len(lines) // 2
    for name, kept in {
        "cut": [*lines[:cut], lines[cut][:40]],
        "damaged": [*lines[:half], b'{"event": "step", "arm\n', *lines[half + 1 :]],
        "resumed": lines[:cut],
    }.items():
        place = logs / name
        if place.exists():
            continue
        place.mkdir()
        (place / "events.jsonl").write_bytes(b"".join(kept))
        if name == "resumed":
            program(root, "--resume", str(place), "--yes", "--quiet")


def evaluate(directory: Path, root: Path, case: str) -> dict[str, Any]:
    """What the program at ``root`` concludes from a case."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        if case in SIMULATED:
            program(root, *SIMULATED[case], "--out", str(out))
        elif case == "bench":
            out.mkdir()
            shutil.copy(directory / "logs" / case / "engine.json", out)
            page = out / "page.md"
            page.write_text("<!-- bench: begin -->\n<!-- bench: end -->\n", encoding="utf-8")
            program(root, "bench", "--out", str(out), "--markdown", str(page))
        else:
            shutil.copytree(directory / "logs" / case, out)
            program(root, "render", str(out))
        found = numbers_of(out)
        names = {str(out): "OUT"}
        for key, value in found.items():  # a cell is named by a digest of kvsim's sources, too
            if cell := re.fullmatch(r"sweep\.json:cells\.(\d+)\.id", key):
                names[value] = f"cell {cell[1]}"
        words = re.compile("|".join(map(re.escape, names)))
        return {_renamed(key, words, names): _renamed(value, words, names)
                for key, value in found.items()}  # fmt: skip


def _renamed(value: Any, words: re.Pattern[str], names: dict[str, str]) -> Any:
    """A key or a value with each name of this evaluation replaced by one that stays."""
    if isinstance(value, list):
        return [_renamed(each, words, names) for each in value]
    return words.sub(lambda m: names[m[0]], value) if isinstance(value, str) else value


def cases(directory: Path) -> list[str]:
    """Every case that there is."""
    return [*sorted(path.name for path in (directory / "logs").iterdir()), *SIMULATED]


def freeze(directory: Path, root: Path) -> None:
    """Write down what the program at ``root`` concludes."""
    (directory / "frozen").mkdir(exist_ok=True)
    for case in cases(directory):
        numbers = evaluate(directory, root, case)
        text = json.dumps(numbers, ensure_ascii=False, indent=0)
        (directory / "frozen" / f"{case}.json").write_text(text, encoding="utf-8")
        print(case, len(numbers), flush=True)


def differences(case: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Numbers that are missing or others, by the names of before."""
    table = tomllib.loads((HERE / "keys.toml").read_text(encoding="utf-8"))
    gone = [re.compile(pattern) for pattern in table["gone"]]
    renamed = [(re.compile(old), new) for old, new in table["renamed"].items()]
    found = []
    for key, value in before.items():
        if any(pattern.fullmatch(key) for pattern in gone):
            continue
        place = key
        for old, new in renamed:
            place = old.sub(new, place)
        if place not in now:
            found.append(f"{case}: {key} is missing")
        elif now[place] != value:
            found.append(f"{case}: {key}: {value!r} -> {now[place]!r}")
    return found


def check(directory: Path) -> int:
    """Compare what this program concludes with what is frozen; 1 where anything differs."""
    found = []
    for path in sorted((directory / "frozen").iterdir()):
        before = json.loads(path.read_text(encoding="utf-8"))
        some = differences(path.stem, before, evaluate(directory, ROOT, path.stem))
        print(f"{path.stem}: {len(before)} numbers, {len(some)} differences", flush=True)
        found += some
    print("\n".join(found[:200]))
    return int(bool(found))


def main() -> int:
    """``make``, ``freeze`` or ``check`` of a directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("make", "freeze", "check"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout whose program runs")
    parser.add_argument("--cases", default="", help="make these alone, by commas")
    asked = parser.parse_args()
    directory, root = asked.directory.resolve(), asked.root.resolve()
    if asked.action == "check":
        return check(directory)
    if asked.action == "make":
        make(directory, root, [name for name in asked.cases.split(",") if name])
    else:
        freeze(directory, root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
