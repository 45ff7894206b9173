"""vLLM as an oracle: asks its own functions, compares steps with ours, shrinks what differs.

The environment of ``make vllm`` runs any version whose sources are unpacked from its wheel:
scheduling and the layout of the cache are plain Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from workloads import Step, Workload

from experiment.vllm_setup import VERSION
from kvsim.core.prefix import PrefixCache

PARTS = ("scheduled", "blocks in use", "preempted", "finished")
ROOT = Path(__file__).parents[2]
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux1_x86_64")


class Oracle:
    """A process of vLLM's interpreter that answers a question a line.

    Args:
        python: interpreter of ``make vllm``.
        worker: ``vllm_scheduler.py``, which steps workloads, or ``vllm_layouts.py``.
        sources: an unpacked vLLM to import instead of the installed one.
    """

    def __init__(self, python: str, worker: str, sources: Path | None = None) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        paths = [str(ROOT / "experiment" / "vllm_worker" / "absent"), str(ROOT)]
        if sources:
            paths.insert(0, str(sources))
            environment["VLLM_TARGET_DEVICE"] = "cpu"
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - close()
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(worker))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment,
            text=True, encoding="utf-8",
        )  # fmt: skip

    def ask(self, question: Mapping[str, Any]) -> Any:
        """Return the answer to one question.

        Raises:
            RuntimeError: vLLM raised an error.
        """
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(question), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            last = self._errors.read().strip().rpartition("\n")[2]
            raise RuntimeError(f"vLLM failed: {last}; {json.dumps(question)}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()


def sources(version: str, directory: Path) -> Path | None:
    """Unpack the Python files of a vLLM's wheel; None: it is the installed version."""
    unpacked = directory / f"vllm-{version}"
    if version == VERSION:
        return None
    if not unpacked.exists():
        words = ["--no-deps", "--only-binary", ":all:", "-d", str(directory), f"vllm=={version}"]
        for name in _PLATFORMS:
            words += ["--platform", name]
        fetched = subprocess.run([sys.executable, "-m", "pip", "download", "-q", *words])
        if fetched.returncode:
            sys.exit(f"vLLM {version} cannot be fetched.")
        (wheel,) = directory.glob(f"vllm-{version}-*.whl")
        with zipfile.ZipFile(wheel) as file:
            names = [n for n in file.namelist() if n.endswith(".py") or ".dist-info/" in n]
            file.extractall(unpacked, names)
        wheel.unlink()
    return unpacked


@contextmanager
def unwritten_blocks_found() -> Iterator[None]:
    """Ours as vLLM's: a request preempted in the step that planned it leaves its keys behind.

    vLLM then finds blocks whose K and V were never written. Ours withdraws the keys.
    """
    with patch.object(PrefixCache, "retract_unwritten", lambda self, request: None):
        yield


def first_difference(ours: Sequence[Step], theirs: Sequence[Step]) -> tuple[int, str] | None:
    """The first step in which the answers differ, and the part of it; None: equal.

    Steps without anything at the end do not count: an engine may ask once more.
    """
    one, other = _ended(ours), _ended(theirs)
    for step, (left, right) in enumerate(zip(one, other, strict=False)):
        for part, a, b in zip(PARTS, left, right, strict=True):
            if a != b:
                return step, part
    if len(one) != len(other):
        return min(len(one), len(other)), "number of steps"
    return None


def _ended(steps: Sequence[Step]) -> Sequence[Step]:
    end = len(steps)
    while end and steps[end - 1] == [[], 0, [], []]:
        end -= 1
    return steps[:end]


def traits(workload: Workload, steps: Sequence[Step]) -> Counter[str]:
    """What a workload shows of."""
    starts = {}
    for chunks, *_ in steps:
        for request, _, start, _ in chunks:
            starts.setdefault(request, start)
    return Counter(
        {
            "preempts": any(step[2] for step in steps),
            "prefix hits": any(starts.values()),
            "aborts": bool(workload["aborts"]),
            "priorities": workload["policy"] == "priority",
            "chunked prefill": any(c[2] and c[1] > 1 for step in steps for c in step[0]),
            "steps": len(steps),
            "preemptions": sum(len(step[2]) for step in steps),
        }
    )


def shrunk(workload: Workload, differs: Callable[[Workload], bool]) -> Workload:
    """Make a workload smaller as long as it differs."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(workload):
            if differs(candidate):
                workload, smaller = candidate, True
                break
    return workload


def _smaller(workload: Workload) -> Iterator[Workload]:
    requests: Sequence[Mapping[str, object]] = workload["requests"]
    for number in range(len(requests) if len(requests) > 1 else 0):
        aborts = [[at, a - (a > number)] for at, a in workload["aborts"] if a != number]
        yield {
            **workload,
            "requests": [*requests[:number], *requests[number + 1 :]],
            "aborts": aborts,
        }
    if workload["aborts"]:
        yield {**workload, "aborts": workload["aborts"][1:]}
    for name, plain in (("watermark", 0.0), ("policy", "fcfs"), ("prefix_caching", False)):
        if workload[name] != plain:
            yield {**workload, name: plain}
    for name in ("max_num_active_seqs", "long_prefill_token_threshold"):
        if name in workload:
            yield {key: value for key, value in workload.items() if not key.startswith(name)}
    for number, one in enumerate(requests):
        for less in (
            {"tokens": one["tokens"][: len(one["tokens"]) // 2]}, {"tokens": one["tokens"][:-1]},
            {"new": one["new"] // 2, "stop": 0}, {"new": one["new"] - 1, "stop": 0},
            {"priority": 0}, {"arrival": 0},
        ):  # fmt: skip
            made = {**one, **less}
            if made != one and made["tokens"] and made["new"]:
                yield {
                    **workload,
                    "requests": sorted(
                        [*requests[:number], made, *requests[number + 1 :]],
                        key=lambda each: each["arrival"],
                    ),
                }
