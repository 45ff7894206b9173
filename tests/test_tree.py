"""The tree as its next owner finds it: modules named by strings, encodings, no forks."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from guide_pages import ROOT

from experiment.config.schema import ExperimentConfig

PACKAGES = ("experiment", "kvsim")
# Text goes through one of these; the second says how many positional arguments come before it.
TEXT_CALLS = {"open": 3, "read_text": 0, "write_text": 1, "fdopen": 3}
CHILDREN = ("run", "Popen", "check_output")


@cache
def sources(*folders: str) -> tuple[Path, ...]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return (*found, ROOT / "run_experiment.py", ROOT / "setup.py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def named_by_strings(path: Path) -> set[str]:
    """Modules, and functions behind a colon, that a file names in strings alone."""
    keys = {*ExperimentConfig.model_fields, "csv"}  # of a config, and a file's name
    texts = (
        node.value
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    found = {t for t in texts if re.fullmatch(r"(experiment|kvsim)(\.[a-z_]+)+(:\w+)?", t)}
    return {one for one in found if one.split(".")[1].partition(":")[0] not in keys}


def test_modules_that_are_named_by_strings_exist_and_keep_the_layers() -> None:
    """What child processes run and where commands are: neither an import nor a contract shows."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c.get("containers") == ["experiment"])
    rank = {name: k for k, layer in enumerate(layers) for name in layer.split(" | ")}
    seen = 0
    for path in sources(*PACKAGES):
        for entry in named_by_strings(path):
            module, _, function = entry.partition(":")
            assert find_spec(module), entry
            assert not function or callable(getattr(import_module(module), function)), entry
            own, named = name(path).split("/")[1], module.split(".")[1]
            if own in rank and named in rank:
                assert rank[own] <= rank[named], (name(path), entry)
                seen += 1
    assert seen > 15


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield node, getattr(node.func, "attr", getattr(node.func, "id", ""))


def is_binary(node: ast.Call) -> bool:
    modes = [a.value for a in (*node.args, *(k.value for k in node.keywords if k.arg == "mode"))
             if isinstance(a, ast.Constant) and isinstance(a.value, str)]  # fmt: skip
    return any(re.fullmatch(r"[rwaxb+]*b[rwaxb+]*", mode) for mode in modes)


def lacks_encoding(node: ast.Call, called: str) -> bool:
    given = {keyword.arg for keyword in node.keywords}
    if "encoding" in given or None in given:
        return False
    if called in CHILDREN:
        return bool(given & {"text", "universal_newlines"})
    at = TEXT_CALLS.get(called)
    return at is not None and len(node.args) <= at and not is_binary(node)


# What opens no text file under that name.
OWN_OPEN = re.compile(r"(self|_?gpu|webbrowser|os|tarfile)\b")


def test_every_text_file_is_read_and_written_in_a_named_encoding() -> None:
    found = [
        f"{name(path)}:{node.lineno}"
        for path in sources(*PACKAGES, "tests")
        for node, called in calls(path)
        if lacks_encoding(node, called)
        and not (called == "open" and OWN_OPEN.match(ast.unparse(node.func)))
    ]
    assert not found


@pytest.mark.parametrize("word", ["fork", "forkpty"])
def test_no_process_is_forked(word: str) -> None:
    found = [
        f"{name(path)}:{node.lineno}"
        for path in sources(*PACKAGES)
        for node, called in calls(path)
        if (called == word and ast.unparse(node.func).startswith("os."))
        or (called in ("get_context", "set_start_method") and word in ast.unparse(node))
        or (called == "ProcessPoolExecutor" and "mp_context" not in ast.unparse(node))
    ]
    assert not found


def test_the_repository_holds_plain_files_alone() -> None:
    """A link points out of it, into the machine of whoever committed it."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no git checkout")
    done = subprocess.run(
        ["git", "ls-files", "--stage", "-z"], cwd=ROOT, capture_output=True, check=False,
        encoding="utf-8",
    )  # fmt: skip
    if done.returncode:
        pytest.skip("git does not read this checkout: " + done.stderr.strip())
    listed = done.stdout.split("\0")
    assert [entry for entry in listed if entry and not entry.startswith("100")] == []
