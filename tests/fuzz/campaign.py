"""Coverage-guided fuzzing of every target for a given time: ``make fuzz``.

    campaign ─► one process a target ─► libFuzzer through atheris, from the seeds of the target
                                          └─► found/<target>-<place>: the input and what came of it

Each process has a gibibyte on top of what it needs for its imports, and ten seconds of processor
time an input. A finding is told apart by the kind of its exception and the line that raised it.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOUND = HERE / "found"
MOST_BYTES = 1 << 30
MOST_SECONDS = 10
_SAY_EVERY = 100
_PACKAGES = ["experiment", "kvsim"]


class TooLongError(BaseException):
    """An input took longer than it may; nothing in the program may catch it."""


def campaign(names: Sequence[str], seconds: float) -> int:
    """Fuzz the targets one after another; 1 where anything was found."""
    from targets import TARGETS

    chosen = list(names) or list(TARGETS)
    found = 0
    for name in chosen:
        with tempfile.NamedTemporaryFile("r", suffix=".json") as told:
            words = ["--one", name, "--seconds", str(seconds / len(chosen)), "--tell", told.name]
            done = subprocess.run(
                [sys.executable, __file__, *words], cwd=ROOT, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                encoding="utf-8",
            )  # fmt: skip
            text = told.read()
        data = json.loads(text) if text else {"inputs": 0, "findings": ["died"]}
        if done.returncode and not text:
            print(done.stderr[-3000:])
        found += len(data["findings"])
        print(json.dumps({"target": name, **data}), flush=True)
    return int(found > 0)


def one(name: str, seconds: float, tell: Path) -> None:
    """Fuzz a target in this process; it ends with libFuzzer."""
    import atheris

    with atheris.instrument_imports(include=_PACKAGES):
        from targets import TARGETS, check, seeds_of

    form, counts, findings = TARGETS[name].form, Counter[str](), set[str]()
    begun = time.monotonic()
    kept = [*seeds_of(name), *(path.read_bytes() for path in corpus_of(name))]
    for seed in kept:  # what is imported or built at first use is no memory of an input
        check(name, seed)
    _limit()

    def say() -> None:
        seconds = round(time.monotonic() - begun, 1)
        told = {"inputs": counts.total(), **counts, "seconds": seconds}
        tell.write_text(json.dumps({**told, "findings": sorted(findings)}), encoding="utf-8")

    def try_one(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        try:
            counts[check(name, data)] += 1
        except BaseException as error:
            signal.setitimer(signal.ITIMER_PROF, 0)
            counts["found"] += 1
            _keep(name, data, error, findings)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if counts.total() % _SAY_EVERY == 0:
            say()

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        choose = random.Random(seed)
        if choose.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        return __import__("mutate").mutated(data, form, choose)[:most]

    def late(signum: int, frame: FrameType | None) -> None:
        raise TooLongError

    signal.signal(signal.SIGPROF, late)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(kept):
            Path(corpus, str(number)).write_bytes(seed)
        options = [f"-max_total_time={int(seconds)}", "-max_len=65536", "-timeout=60"]
        options.append("-rss_limit_mb=0")  # ours is a limit on address space
        say()
        atheris.Setup([sys.argv[0], *options, corpus], try_one, custom_mutator=mutate)
        atheris.Fuzz()


def corpus_of(name: str) -> list[Path]:
    """Inputs on which a target once failed."""
    return sorted((HERE / "corpus" / name).glob("*"))


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _keep(name: str, data: bytes, error: BaseException, findings: set[str]) -> None:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if str(ROOT) in f.filename]
    inner = next((f for f in reversed(frames) if str(HERE) not in f.filename), frames[-1])
    kind = f"{type(error).__name__}-{Path(inner.filename).stem}-{inner.lineno}"
    if kind in findings:
        return
    findings.add(kind)
    FOUND.mkdir(exist_ok=True)
    (FOUND / f"{name}-{kind}").write_bytes(data)
    text = "".join(traceback.format_exception(error))
    (FOUND / f"{name}-{kind}.txt").write_text(text[-20_000:], errors="replace", encoding="utf-8")


def main(words: Sequence[str]) -> int:
    """``--seconds N`` in all, ``--targets a,b``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--targets", default="")
    parser.add_argument("--one")
    parser.add_argument("--tell", type=Path)
    asked: Any = parser.parse_args(words)
    if asked.one:
        one(asked.one, asked.seconds, asked.tell)
        return 0
    return campaign([each for each in asked.targets.split(",") if each], asked.seconds)


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]
    sys.exit(main(sys.argv[1:]))
