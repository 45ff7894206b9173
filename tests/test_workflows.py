"""What services read: workflows, forms for issues, the citation. They say what holds here."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from typing import Any

import pytest
import yaml
from guide_pages import read
from parsed_commands import parsed

from experiment import __version__

EXAMPLE, OURS = "docs/ci-example.yml", ".github/workflows/ci.yml"


def steps(workflow: str) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(read(workflow))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def commands(workflow: str) -> list[list[str]]:
    """Words behind our program's name in each command of each step."""
    ran = [
        part
        for step in steps(workflow)
        for part in step.get("run", "").replace("\\\n", "").splitlines()
    ]
    words = [shlex.split(part, comments=True) for line in ran for part in line.split("&&")]
    door = re.compile(r"(^|/)(pagedkv|run_experiment\.py)$")
    found = [[i for i, word in enumerate(one) if door.search(word)] for one in words]
    ours = [one[at[0] + 1 :] for one, at in zip(words, found, strict=True) if at]
    # What is behind one of these is another command's.
    return [list(takewhile(lambda word: word[0] not in "|;", each)) for each in ours]


@pytest.mark.parametrize("workflow", [EXAMPLE, OURS])
def test_the_program_takes_the_words_of_the_workflow(workflow: str) -> None:
    given = commands(workflow)
    assert given
    for words in given:
        parsed(words)


def test_the_citation_is_of_this_version() -> None:
    assert yaml.safe_load(read("CITATION.cff"))["version"] == __version__
    assert f"({__version__})" in read("CHANGELOG.md")


def test_what_make_site_builds_is_published() -> None:
    """With the runs of the jobs before, from main alone."""
    site = yaml.safe_load(read(OURS))["jobs"]["site"]
    *_, made, published = site["steps"]
    assert shlex.split(made["run"])[:2] == ["make", "site"]
    folder = published["with"]["path"].rstrip("/")
    assert published["uses"].startswith("actions/upload-pages-artifact@")
    (recipe,) = re.findall(r"^site:.*\n((?:\t.*\n)+)", read("Makefile"), re.MULTILINE)
    assert f" {folder} $(RUNS)" in recipe
    assert f"/{folder}/" in read(".gitignore").splitlines()
    assert "refs/heads/main" in site["if"]


@pytest.mark.parametrize("workflow", [EXAMPLE, OURS])
def test_actions_are_pinned_by_commit_and_checkouts_keep_no_credentials(workflow: str) -> None:
    used = [step for step in steps(workflow) if "uses" in step]
    assert used
    for step in used:
        name, _, version = step["uses"].partition("@")
        assert re.fullmatch(r"[0-9a-f]{40}", version), step
        if name == "actions/checkout":
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("workflow", [EXAMPLE, OURS])
def test_what_a_workflow_installs_is_pinned(workflow: str) -> None:
    """By hashes or the constraints that were tested; other builds of torch by their version."""
    (torch,) = re.findall(r"^torch==\S+$", read("constraints.txt"), re.MULTILINE)
    ran = "\n".join(step.get("run", "") for step in steps(workflow))
    installed = re.findall(r"(uv )?pip install ((?:[^&\n]|\n +)+)", ran)
    assert len(installed) > 2
    for by_uv, words in installed:
        assert torch in words.split() if by_uv else re.search(r"--require-hashes|-c ", words), words
    for uv in re.findall(r'echo "(uv==.+)"', ran):
        assert set(uv.split()) <= set(read(".github/requirements.txt").split())
    # A branch moves: whoever copies the workflow names a commit.
    assert "main" not in yaml.safe_load(read(workflow)).get("env", {}).values()
