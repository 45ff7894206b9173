"""What the targets of the Makefile would run is there, and takes the words that it is given.

``make -n`` prints a recipe with the variables in it. Every target is asked for plain, and as README
and guides show it.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from importlib.util import find_spec

import pytest
from guide_pages import ROOT, WITH_COMMANDS, commands, read
from parsed_commands import parsed

from kvsim.bench import speed as bench

MAKEFILE = read("Makefile")
EXTRAS = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
# Names of commands that the packages of `dev` bring, where they are not the package's own.
TOOLS = {"lint-imports": "import-linter"}

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="there is no make")


def asked() -> list[tuple[str, ...]]:
    """Words behind `make`."""
    plain = [(target,) for target in re.findall(r"^\.PHONY: ([a-z-]+)$", MAKEFILE, re.MULTILINE)]
    assert len(plain) > 15
    shown = [
        tuple(one[1:])
        for page in WITH_COMMANDS
        for one in commands(page)
        if one[0] == "make" and one[1:]
    ]
    return sorted({*plain, *shown})


def recipe(given: tuple[str, ...]) -> list[list[str]]:
    """The simple commands that make would run, without the setting of variables before them."""
    told = subprocess.run(
        ["make", "-n", "-s", "PYTHON=python3", *given],
        cwd=ROOT, env={"PATH": "/usr/local/bin:/usr/bin:/bin"}, capture_output=True, check=True,
        encoding="utf-8",
    ).stdout.replace("\\\n", " ")  # fmt: skip
    found = []
    for part in re.split(r"\n|&&|;|\|\|", told):
        split = [] if part.count("'") % 2 else shlex.split(part, comments=True)
        while split and re.match(r"[A-Za-z_]\w*=", split[0]):
            split.pop(0)
        if split:
            found.append(split)
    return found


@pytest.mark.parametrize("given", asked(), ids=" ".join)
def test_a_target_runs_what_there_is(given: tuple[str, ...]) -> None:
    ours = [one for one in recipe(given) if one[0].split("/")[-1] != "test"]
    assert ours
    for command in ours:
        program = command[0].split("/")[-1]
        if program.startswith("python"):
            assert_taken(command[1:])
        elif command[0].startswith(".venv/bin/"):
            assert any(TOOLS.get(program, program) in each for each in EXTRAS["dev"]), program


def assert_taken(given: list[str]) -> None:
    """A module, a script or our own program, with options that it knows."""
    if given[0] == "-c":
        return
    if given[0] == "-m":
        module, *rest = given[1:]
        if module == "pip":
            named = [one.split("[")[1].rstrip("]") for one in rest if one.startswith(".[")]
            assert set(named) <= EXTRAS.keys()
        elif module == "pytest":
            assert [one for one in rest if "/" in one and not (ROOT / one).exists()] == []
        else:
            assert find_spec(module) is not None
            assert module != "kvsim.bench" or bench._parser().parse_args(rest)
        return
    script = ROOT / given[0]
    assert script.exists(), given[0]
    if script.name == "run_experiment.py":
        parsed([re.sub(r"\$\w+", "x", one) for one in given[1:]])
        return
    flags = given[1 : given.index("--") if "--" in given else None]
    text = script.read_text(encoding="utf-8")
    assert [one for one in flags if one.startswith("--") and f'"{one}"' not in text] == []
