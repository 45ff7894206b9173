"""A file is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.files import PART, whole_file, write_whole

ROOT = Path(__file__).parents[2]


def test_a_file_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with whole_file(path) as file:
        file.write(b"ne")
        file.flush()
        assert path.read_bytes() == b"old"
        assert [p.suffix for p in tmp_path.iterdir() if p != path] == [PART]
        file.write(b"w")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_breaks_off_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def interrupted() -> None:
        with whole_file(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_its_place_is_replaced(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "file"
    other.write_bytes(b"kept")
    path.symlink_to(other)
    write_whole(path, b"new")
    assert (other.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"kept", b"new", False)


@pytest.mark.parametrize("moment", ["os.fsync", "os.chmod", "os.replace"])
def test_a_process_killed_while_it_writes_leaves_the_old_file(tmp_path: Path, moment: str) -> None:
    """Killed for real, at each step on the way."""
    path = tmp_path / "sweep.json"
    write_whole(path, b"old")
    code = f"""
import os, signal, sys
from pathlib import Path
from kvsim.files import write_whole
{moment} = lambda *_, **__: os.kill(os.getpid(), {int(signal.SIGKILL)})
write_whole(Path(sys.argv[1]), b"new")
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    left = [p.name for p in tmp_path.iterdir() if p != path]
    assert len(left) == 1
    assert left[0].endswith(PART)
    assert str(os.getpid()) not in left[0].split(".")


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o027, 0o640)])
def test_a_file_may_be_read_by_those_who_may_read_others(
    tmp_path: Path, mask: int, mode: int
) -> None:
    code = "import sys; from pathlib import Path; from kvsim.files import write_whole; "
    code += "write_whole(Path(sys.argv[1]), b'x'); Path(sys.argv[1] + '-').touch()"
    path = tmp_path / "file"
    subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, check=True, umask=mask, timeout=60
    )
    assert [each.stat().st_mode & 0o777 for each in (path, tmp_path / "file-")] == [mode, mode]
