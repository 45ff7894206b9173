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


@pytest.mark.parametrize("workflow", [EXAMPLE, OURS])
def test_actions_are_pinned_by_commit_and_checkouts_keep_no_credentials(workflow: str) -> None:
    used = [step for step in steps(workflow) if "uses" in step]
    assert used
    for step in used:
        name, _, version = step["uses"].partition("@")
        assert re.fullmatch(r"[0-9a-f]{40}", version), step
        if name == "actions/checkout":
            assert step["with"]["persist-credentials"] is False
