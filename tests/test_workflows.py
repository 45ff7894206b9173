"""What services read: workflows, forms for issues, the citation. They say what holds here."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
import test_readme
import yaml
from guide_pages import read
from parsed_commands import parsed

from experiment import __version__
from experiment.commands.main import main
from experiment.compare.gate import read_gate
from experiment.experiments.registry import EXPERIMENTS
from experiment.files.shipped import CONFIGS
from experiment.text.errors import ExitCode

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


def test_the_workflow_to_copy_holds_a_run_against_limits_and_keeps_its_report() -> None:
    (words,) = commands(EXAMPLE)
    given = dict(pairwise(words))
    assert {"--config", "--gate", "--baseline", "--out", "--yes"} <= given.keys()
    (kept,) = [step for step in steps(EXAMPLE) if "upload-artifact" in step.get("uses", "")]
    assert kept["if"] == "always()"
    assert given["--out"].startswith(kept["with"]["path"])


def test_what_the_workflow_to_copy_needs_beside_it_is_explained() -> None:
    needed = set(re.findall(r"kv/\w+\.\w+", " ".join(commands(EXAMPLE)[0])))
    assert len(needed) == 3
    head = read(EXAMPLE).partition("\nname:")[0]
    rows = re.findall(r"^\| `(kv/[^`]+)` \|", read("docs/compare.md"), re.MULTILINE)
    assert set(re.findall(r"kv/\w+\.\w+", head)) == needed == set(rows)
    assert read_gate(CONFIGS / "gate-example.toml")


@pytest.mark.skipif(shutil.which("bash") is None, reason="the workflow's shell is bash")
@pytest.mark.parametrize("broken", ["", "beam"])
def test_the_loop_over_experiments_runs_each_and_fails_where_one_did(
    tmp_path: Path, broken: str
) -> None:
    """The workflow's own lines in a shell, with a program that only notes what it is asked."""
    (loop,) = [s["run"] for s in steps(OURS) if "--list-experiments" in s.get("run", "")]
    listed = io.StringIO()
    with contextlib.redirect_stdout(listed):
        assert main(["--list-experiments", "--lang", "en"]) == ExitCode.OK
    (tmp_path / "list").write_text(listed.getvalue(), encoding="utf-8")
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\n"
        'test "$2" = --list-experiments && exec cat list\n'
        'echo "$3" >> ran\n'
        f'test "$3" != configs/{broken}.toml || exit 3\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    done = subprocess.run(["bash", "-e", "-c", loop], cwd=tmp_path, check=False)
    assert done.returncode == bool(broken)
    ran = (tmp_path / "ran").read_text(encoding="utf-8").split()
    assert ran == [f"configs/{name}.toml" for name in EXPERIMENTS]
    assert all((CONFIGS.parent / name).exists() for name in ran)


def test_what_is_published_are_the_runs_of_all_jobs_under_one_index() -> None:
    jobs = yaml.safe_load(read(OURS))["jobs"]
    site = jobs["site"]["steps"]
    fetched = {step["with"]["name"] for step in site if "download-artifact" in step.get("uses", "")}
    for job in ("report", "experiments"):
        kept = [s["with"] for s in jobs[job]["steps"] if "upload-artifact" in s.get("uses", "")]
        (name,) = [one["name"] for one in kept if one["path"] == "reports/"]
        assert name in fetched
        assert job in jobs["site"]["needs"]
    published = [i for i, s in enumerate(site) if "upload-pages-artifact" in s.get("uses", "")]
    (drawn,) = [i for i, s in enumerate(site) if "render reports/" in s.get("run", "")]
    assert published == [len(site) - 1]
    assert drawn > max(i for i, s in enumerate(site) if "download-artifact" in s.get("uses", ""))
    assert {"test", "site"} <= set(jobs["pages"]["needs"])
    # A run of one job must not take the place of one of the other.
    outs = [words[words.index("--out") + 1] for words in commands(OURS) if "--out" in words]
    assert not {Path(out).name for out in outs} & set(EXPERIMENTS)


def test_ours_runs_on_every_python_that_is_promised() -> None:
    matrix = yaml.safe_load(read(OURS))["jobs"]["test"]["strategy"]["matrix"]["python"]
    oldest = test_readme.PROJECT["requires-python"].removeprefix(">=")
    assert matrix[0] == oldest
    kinds = [kind.rpartition(" :: ") for kind in test_readme.PROJECT["classifiers"]]
    versions = [last for first, _, last in kinds if first == "Programming Language :: Python"]
    assert versions == matrix
    for page in ("README.md", "README.zh.md"):
        said = re.search(r"Python (3\.\d+)\D{1,4}(3\.\d+)", read(page))
        assert said is not None
        assert [said[1], said[2]] == [matrix[0], matrix[-1]]


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
