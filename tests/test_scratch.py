"""A child's temporary files are its own, and gone when it is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.events import Notice
from experiment.files.code_cache import TORCH_CACHE
from experiment.files.scratch import make_scratch
from experiment.files.user_cache import TEMPORARY
from experiment.process.child import Child
from experiment.process.environment import child_environment
from experiment.text.errors import UserError


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the system puts temporary files, for this test; its path is short."""
    with tempfile.TemporaryDirectory(prefix="tmp-") as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
        yield Path(made)


def run(script: str, log: Path) -> list[Path]:
    """Where a child said that it put its files."""
    with Child("scripted_child", {"arm": "scripted", "script": script}, log, 60.0) as child:
        said = [event for event, _ in child.events() if isinstance(event, Notice)]
    return [Path(event.text.params["place"]) for event in said if "place" in event.text.params]


def test_what_a_child_leaves_among_temporary_files_goes_with_it(
    temporary: Path, tmp_path: Path
) -> None:
    (place,) = run("leave_files", tmp_path / "log")
    assert place.parent == temporary
    assert list(temporary.iterdir()) == []


def test_nothing_stays_of_one_that_ends_badly(temporary: Path, tmp_path: Path) -> None:
    run("kill_itself", tmp_path / "log")
    assert list(temporary.iterdir()) == []


def test_nothing_stays_of_one_that_cannot_be_started(temporary: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(UserError),
        Child("scripted_child", {}, tmp_path / "log", 60.0, python="/nobody/here"),
    ):
        raise AssertionError("it was started")
    assert list(temporary.iterdir()) == []


def test_a_path_in_which_a_socket_has_no_room_is_left_alone(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child then has the temporary directory that everybody has, as without us."""
    long = temporary / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("TMPDIR", str(long))
    assert make_scratch() is None
    assert run("leave_files", tmp_path / "log") == [long]


def test_without_a_place_for_temporary_files_a_child_runs_all_the_same(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    monkeypatch.setenv("TMPDIR", str(temporary))
    assert make_scratch() is None
    assert run("leave_files", tmp_path / "log") == [temporary]


def test_what_torch_compiles_is_kept_where_something_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else torch decides, as without us: vLLM must be able to make it."""
    monkeypatch.delenv(TORCH_CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "pagedkv-lab" / "torchinductor"
    assert child_environment({})[TORCH_CACHE] == str(kept)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv(TEMPORARY, str(tmp_path / "file"))
    assert TORCH_CACHE not in child_environment({})
    monkeypatch.setenv(TORCH_CACHE, "/chosen")
    assert child_environment({})[TORCH_CACHE] == "/chosen"
