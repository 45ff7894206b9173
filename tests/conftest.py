"""Fixtures and settings that every test shares."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from hypothesis import settings
from pages import CHROMIUM, FLAGS

# Before anything imports torch; child processes inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

# Hours of real experiments: `make test-full` asks for them.
collect_ignore = [] if os.environ.get("PAGEDKV_FULL") else ["full"]

# The same examples in every run: a failure can be repeated, and a slow machine fails no test.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")
_WORTH_A_SUMMARY_S = 60


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled loops in a directory of this session, not in the user's cache.

    Numba reads the variable on import. Workers and processes of tests inherit it: compiling the
    loops takes more than ten seconds.
    """
    if not hasattr(config, "workerinput"):
        place = TemporaryDirectory(prefix="loops-")
        os.environ["NUMBA_CACHE_DIR"] = place.name
        config.add_cleanup(place.cleanup)


@pytest.fixture(scope="session")
def real_vllm() -> str:
    """Interpreter of `make vllm`. PAGEDKV_NEED_VLLM: its absence is a failure, as in CI."""
    from experiment.arms.launch import find_vllm

    found = find_vllm()
    if not isinstance(found, str):
        if os.environ.get("PAGEDKV_NEED_VLLM"):
            pytest.fail("vLLM is not there: run make vllm")
        pytest.skip("vLLM is not there: run make vllm")
    return found


@pytest.fixture(scope="session", autouse=True)
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Built models go to a directory of this session, not the user's cache."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDKV_CACHE", str(path))
        yield path


@pytest.fixture(scope="session", autouse=True)
def still_memory() -> Iterator[None]:
    """The memory of a machine whose other tests come and go counts as settled before each arm."""
    from experiment.events import Channel
    from experiment.memory import settle

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle, "PAUSE_S", 2**-6)
        patch.setitem(settle.TOLERANCE_BYTES, Channel.SYSTEM, 1 << 50)
        yield


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The machine, looked at once."""
    from real_parts import look_at_the_machine  # what it imports must not come before the above

    return look_at_the_machine(tmp_path_factory.mktemp("probe"))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that is to be refused; returns the one line that it prints."""
    from experiment.commands.main import main
    from experiment.text.errors import ExitCode

    def ask(*words: object, lang: str = "en") -> str:
        capsys.readouterr()
        assert main([*map(str, words), "--lang", lang]) == ExitCode.USAGE, words
        printed = capsys.readouterr()
        (line,) = printed.err.strip().splitlines()
        assert "Traceback" not in line + printed.out
        return str(line)

    return ask


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium without a window; one for all tests, as playwright allows no second."""
    if CHROMIUM is None:
        if os.environ.get("PAGEDKV_NEED_BROWSER"):
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    me = psutil.Process()
    before = {child.pid for child in me.children()}
    with driver.sync_playwright() as running, pytest.MonkeyPatch.context() as patch:
        found = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        ours = {child.pid for child in me.children()} - before
        patch.setattr(psutil.Process, "children", partialmethod(children_but, ours))
        yield found
        found.close()


_CHILDREN = psutil.Process.children


def children_but(
    parent: psutil.Process, hidden: set[int], recursive: bool = False
) -> list[psutil.Process]:
    """Processes below one, without the browser: a second Ctrl-C kills what runs below a program."""
    known = set(hidden)
    for each in hidden:
        with suppress(psutil.Error):
            known |= {process.pid for process in _CHILDREN(psutil.Process(each), recursive=True)}
    return [process for process in _CHILDREN(parent, recursive) if process.pid not in known]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds by subject: the folder of a test, or its file where it lies in none."""
    spent: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                _, subject, *_ = (*report.nodeid.partition("::")[0].split("/"), "")
                spent[subject] += report.duration
    if sum(spent.values()) >= _WORTH_A_SUMMARY_S:
        terminalreporter.section("seconds by subject")
        for subject, seconds in spent.most_common():
            terminalreporter.write_line(f"{seconds:8.1f}  {subject}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose first test takes half a minute come first: the last ones keep one worker busy."""
    long = ("tests/vllm_arm/", "tests/test_walkthrough", "tests/kvsim/test_sweep", "tests/leaks/")
    items.sort(key=lambda item: not item.nodeid.startswith(long))
