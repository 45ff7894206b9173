"""The recipes of docs/extending.md, followed to the letter in a copy of the repository."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from guide_pages import read
from source_tree import copy_tree

PAGE = "docs/extending.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
RECIPES = [part.partition("\n") for part in read(PAGE).split("\n## ")[1:]]
TITLES = [title for title, _, _ in RECIPES]


def put(tree: Path, file: str, hunk: str) -> None:
    """Change a file as a diff says, whose lines must be there exactly once."""
    lines = [line or " " for line in hunk.splitlines()]
    assert all(line[0] in " +-" for line in lines), hunk
    before = "".join(line[1:] + "\n" for line in lines if line[0] != "+")
    after = "".join(line[1:] + "\n" for line in lines if line[0] != "-")
    path = tree / file
    text = "\n" + path.read_text(encoding="utf-8")
    assert text.count("\n" + before) == 1, f"{file} has these lines not once:\n{before}"
    changed = text.replace("\n" + before, "\n" + after, 1)
    path.write_text(changed.removeprefix("\n"), encoding="utf-8")


@dataclass(frozen=True)
class Workshop:
    """A copy of the repository in which commands can be typed."""

    tree: Path
    programs: Path

    def type(self, line: str) -> str:
        """What a command prints; it must end well."""
        path = os.pathsep.join((str(self.programs), os.environ["PATH"]))
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.tree, env=kept | {"PATH": path, "COLUMNS": "200"},
            capture_output=True, encoding="utf-8", check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def follow(self, recipe: str) -> list[str]:
        """Do what the blocks of a recipe say, in order; the kinds of the blocks."""
        blocks = BLOCK.findall(recipe)
        for kind, text in blocks:
            if kind == "diff":
                for part in text.split("--- ")[1:]:
                    file, _, hunk = part.partition("\n")
                    put(self.tree, file, hunk)
            elif kind == "console":
                self._console(text)
            else:
                name, _, content = text.partition("\n")
                path = self.tree / name.removeprefix("# ")
                assert not path.exists(), path
                path.write_text(content, encoding="utf-8")
        return [kind for kind, _ in blocks]

    def _console(self, text: str) -> None:
        for part in text.split("$ ")[1:]:
            command, _, seen = part.partition("\n")
            said = " ".join(self.type(command).split())
            assert not [line for line in seen.split("\n") if line not in said], said


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Recipes by title, those that were followed; each builds on the ones before it."""
    return {}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    place = tmp_path_factory.mktemp("recipes")
    program = place / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Workshop(copy_tree(place / "tree"), program.parent)


@pytest.mark.parametrize(("title", "_", "recipe"), RECIPES, ids=TITLES)
def test_a_recipe_leads_to_what_it_says_is_then_seen(
    title: str, _: str, recipe: str, workshop: Workshop, followed: dict[str, list[str]]
) -> None:
    followed[title] = workshop.follow(recipe)
    assert "diff" in followed[title]


def test_what_the_recipes_add_is_as_tidy_as_the_rest(
    workshop: Workshop, followed: dict[str, list[str]]
) -> None:
    if list(followed) != TITLES:
        pytest.skip("not all recipes were followed")
    workshop.type("python -m ruff check -q . && python -m ruff format --check -q experiment kvsim")
    texts = "keys or unused or chinese or simulator"
    files = "tests/test_i18n.py tests/test_summary.py"
    workshop.type(f"python -m pytest -q -p no:cacheprovider {files} -k '{texts} or schema'")
