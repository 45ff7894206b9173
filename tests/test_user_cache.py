"""Where the cache lies: in a home that can be written, else among the user's temporary files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from guide_pages import ROOT
from other_user import as_other_user, place_for_others  # noqa: F401 - a fixture

from experiment.files import user_cache
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError

# Of the first process and of one that it starts, whose temporary files are its own.
LOOK = """
import json, os
from pathlib import Path
from experiment.process.environment import child_environment
from experiment.files.code_cache import is_empty, torch_cache
from experiment.model.builtin import cache_root
cache_root().mkdir(parents=True)
first = [str(cache_root()), str(torch_cache()), is_empty()]
os.environ.update(child_environment({}, scratch=Path(os.environ["OTHER"])))
print(json.dumps([first, [str(cache_root()), str(torch_cache()), is_empty()]]))
"""


def home(kind: str, place: Path) -> str:
    """A home of that kind."""
    made = place / "home"
    made.mkdir()
    if kind == "read-only":
        made.chmod(0o555)
    elif kind == "another's":
        (made / ".cache/pagedkv-lab/numba").mkdir(parents=True)
        made.chmod(0o755 if os.geteuid() == 0 else 0o555)
    return kind if kind in ("/", "") else str(made)


@pytest.mark.parametrize("kind", ["read-only", "another's", "/", ""])
def test_a_home_that_cannot_be_written_has_its_cache_among_temporary_files(
    kind: str,
    place_for_others: Path,  # noqa: F811
) -> None:
    temporary = place_for_others / "open"
    kept = {k: v for k, v in os.environ.items() if "CACHE" not in k and k != "HOME"}
    kept |= {"TMPDIR": str(temporary), "OTHER": str(place_for_others), "PYTHONPATH": str(ROOT)}
    where = home(kind, place_for_others)
    if where:  # else nobody knows one: users of other numbers have none
        kept["HOME"] = where
    done = subprocess.run(
        as_other_user(sys.executable, "-c", LOOK), cwd="/", env=kept, capture_output=True,
        check=False, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, child = json.loads(done.stdout)
    (made,) = temporary.iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert first == child == [str(made / "models"), str(made / "torchinductor"), True]


def squat(place: Path, how: str) -> None:
    if how == "link":
        place.symlink_to("/")
    elif how == "file":
        place.touch()
    else:
        place.mkdir()
        place.chmod(0o770)
        if how == "another's":
            os.chown(place, 1, 1)


@pytest.mark.parametrize("how", ["link", "file", "open", "another's"])
def test_a_temporary_cache_that_others_can_write_is_refused(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "another's" and os.geteuid():
        pytest.skip("only root makes another's directory")
    monkeypatch.setattr(user_cache, "is_writable", lambda _: False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("PAGEDKV_CACHE")
    monkeypatch.delenv(user_cache.TEMPORARY, raising=False)
    squat(tmp_path / f"pagedkv-lab-{os.getuid()}", how)
    with pytest.raises(UserError) as caught:
        user_cache.cache_directory()
    assert all("PAGEDKV_CACHE" in Translator(lang).message(caught.value.text) for lang in LANGUAGES)
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "named"))
    assert user_cache.cache_directory() == tmp_path / "named"


def test_a_cache_that_may_not_be_looked_into_is_an_empty_one(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    code = "from experiment.files.code_cache import is_empty; print(is_empty())"
    kept = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    nowhere = {"XDG_CACHE_HOME": str(closed / "x"), user_cache.TEMPORARY: str(closed)}
    told = {**kept, **nowhere, "PYTHONPATH": str(ROOT)}
    words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
    words = words if os.geteuid() == 0 else []
    done = subprocess.run(
        [*words, sys.executable, "-c", code], env=told, capture_output=True, check=False,
        encoding="utf-8",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
