"""Quick runs of one arm in surroundings as other people have them: homes, rights, locales, disks.

On two quiet cores that is some eight minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from guide_pages import ROOT
from other_user import as_other_user, place_for_others  # noqa: F401 - a fixture
from source_tree import copy_tree

from experiment.text.errors import ExitCode

WORDS = ("--model", "tiny-gpt2", "--arms", "paged", "--max-new-tokens", "4", "--yes", "--offline")


def shell(first: str) -> tuple[str, ...]:
    """A shell that does something first."""
    return ("sh", "-c", f'{first} && exec "$@"', "sh")


def small_disk(place: str) -> tuple[str, ...]:
    """A file system of 64 KiB, which is gone with the command."""
    return ("unshare", "-m", *shell(f'mount -t tmpfs -o size=64k none "{place}"'))


@dataclass(frozen=True)
class Surrounding:
    """What differs from an ordinary run; ``{here}`` is the directory of the test.

    ``env``: None removes a variable. ``through``: words before the command. ``code``: what a run
    that cannot work there ends with, in one line that has ``says`` in it.
    """

    env: Mapping[str, str | None] = field(default_factory=dict)
    through: tuple[str, ...] = ()
    other_user: bool = False
    clone: bool = False
    lang: str = "en"
    cwd: str = "{here}/open"
    out: str | None = "{here}/open/run"
    code: int = ExitCode.OK
    says: str = ""


COLD = {"PAGEDKV_CACHE": None, "TMPDIR": "{here}/open"}
ROWS = {
    "a path with spaces, umlauts and Han": Surrounding(clone=True, cwd="{here}/clone ü 漢字"),
    "a clone that cannot be written": Surrounding(env=COLD, other_user=True, clone=True),
    "no HOME": Surrounding(env={**COLD, "HOME": None}),
    "a HOME that is missing": Surrounding(env={**COLD, "HOME": "{here}/open/home"}),
    "a HOME that cannot be written": Surrounding(
        env={**COLD, "HOME": "{here}/closed"}, other_user=True, says="PAGEDKV_CACHE"
    ),
    "HOME is /": Surrounding(env={**COLD, "HOME": "/"}, other_user=True, says="PAGEDKV_CACHE"),
    "umask 077": Surrounding(env=COLD, other_user=True, through=shell("umask 077")),
    "LC_ALL=POSIX": Surrounding(env={"LC_ALL": "POSIX", "PYTHONUTF8": "0"}, lang="zh"),
    "ASCII streams": Surrounding(env={"PYTHONIOENCODING": "ascii"}, lang="zh"),
    "a narrow terminal without colours": Surrounding(
        env={"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "60"}
    ),
    "a time zone that does not exist": Surrounding(env={"TZ": "Nowhere/At_All"}),
    "one core": Surrounding(through=("taskset", "-c", "0")),
    "4 GiB of addresses": Surrounding(through=shell("ulimit -v 4194304")),
    "python -OO": Surrounding(env={"PYTHONOPTIMIZE": "2"}),
    "a working directory that cannot be written": Surrounding(
        env=COLD, other_user=True, cwd="{here}/closed", out=None, code=ExitCode.USAGE,
        says="reports",
    ),
    "a full disk": Surrounding(
        through=small_disk("{here}/disk"), out="{here}/disk/run", code=ExitCode.UNWRITABLE,
        says="{here}/disk",
    ),
    "a full disk for the cache": Surrounding(
        env={"PAGEDKV_CACHE": "{here}/disk"}, through=small_disk("{here}/disk"),
        code=ExitCode.USAGE, says="PAGEDKV_CACHE",
    ),
}  # fmt: skip


def skip_without(through: tuple[str, ...], here: Path) -> None:
    """Skip where the system has no such command, or does not do this for us."""
    if through and shutil.which(through[0]) is None:
        pytest.skip(f"there is no {through[0]}")
    done = subprocess.run([*through, "true"], cwd=here, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"not allowed here: {' '.join(through)}")


@pytest.mark.parametrize("name", ROWS)
def test_a_run_works_or_says_in_one_line_why_not(
    name: str,
    place_for_others: Path,  # noqa: F811
) -> None:
    row, here = ROWS[name], place_for_others

    def filled(text: str) -> str:
        return text.replace("{here}", str(here))

    for folder, mode in (("closed", 0o555), ("disk", 0o755)):
        (here / folder).mkdir()
        (here / folder).chmod(mode)
    source = copy_tree(here / "clone ü 漢字") if row.clone else ROOT
    through = tuple(map(filled, row.through))
    skip_without(through, here)
    command = [sys.executable, str(source / "run_experiment.py"), *WORDS, "--lang", row.lang]
    command += ["--out", filled(row.out)] if row.out else []
    if row.other_user:
        command = as_other_user(*through, *command)
        if os.geteuid():
            (here / "clone ü 漢字").chmod(0o555)
    else:
        command = [*through, *command]
    env = {**os.environ, **{k: v and filled(v) for k, v in row.env.items()}}
    done = subprocess.run(
        command, cwd=filled(row.cwd), capture_output=True, check=False, stdin=subprocess.DEVNULL,
        env={k: v for k, v in env.items() if v is not None and k != "MPLCONFIGDIR"},
        encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == row.code, done.stdout[-4000:] + done.stderr
    told = " ".join(done.stdout.split()) if row.code == ExitCode.OK else done.stderr
    assert filled(row.says) in told
    if row.code == ExitCode.OK:
        assert done.stderr == ""
        assert (here / "open/run/report.html").is_file()
    else:
        assert len(done.stderr.splitlines()) == 1
    if "COLUMNS" in row.env:
        assert "\x1b" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= int(row.env["COLUMNS"] or 0)
