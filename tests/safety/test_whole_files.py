"""Nothing is written but whole: no source opens a file for writing outside of a short list."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvsim.files import PART, whole_file, write_whole

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    [*ROOT.glob("*.py"), *ROOT.glob("experiment/**/*.py"), *ROOT.glob("kvsim/**/*.py")]
)
# Where files may be written, renamed or made at all: source, function, call; and why.
ALLOWED = {
    # The writer itself, and the one that must run before anything is installed.
    ("kvsim/files.py", "whole_file", "tempfile.mkstemp"): "the writer",
    ("kvsim/files.py", "whole_file", "os.fdopen"): "the writer",
    ("kvsim/files.py", "whole_file", "replace"): "the writer",
    ("experiment/vllm_setup.py", "_write", "write_text"): "beside its place; no package is there",
    ("experiment/vllm_setup.py", "_write", "replace"): "over it",
    # Appended to: a line is whole or not there, or belongs to someone else's file.
    ("experiment/record/log.py", "_opened", "open"): "the event log",
    ("experiment/process/child.py", "Child._start", "open"): "what a process prints",
    ("experiment/report/files/markdown.py", "write_step_summary", "open"): "the CI job's own file",
    # A directory of a model: written beside its place, renamed when it is whole.
    ("experiment/model/builtin.py", "_work_directory", "tempfile.mkdtemp"): "beside its place",
    ("experiment/files/locks.py", "abandoned", "os.open"): "a directory, to lock it",
    ("experiment/model/builtin.py", "_write_model", "save_pretrained"): "into that",
    ("experiment/model/builtin.py", "_write_model", "shutil.copy"): "into that",
    ("experiment/model/builtin.py", "_write_model", "write_text"): "into that, last",
    ("experiment/model/builtin.py", "_put_in_place", "rename"): "to its place",
    ("experiment/gpucheck/archive.py", "write_archive", "tarfile.open"): "into memory",
    # Files that a profiler writes itself; the record names one when it is whole.
    ("experiment/arms/step_profile.py", "StepProfiler._write", "export_chrome_trace"): "whole",
    ("experiment/memory/cuda_history.py", "cuda_history", "_dump_snapshot"): "read by people",
    # Nobody's result.
    ("experiment/record/checksums.py", "_Budget._sha256", "os.open"): "to look at alone",
    ("experiment/process/streams.py", "redirect_to_devnull", "os.open"): "nowhere",
    ("experiment/process/streams.py", "reopen_closed_fds", "os.open"): "nowhere",
    ("experiment/process/streams.py", "reopen_closed_fds", "os.fdopen"): "what is printed",
    ("experiment/files/locks.py", "is_locked", "os.open"): "to look at alone",
    ("experiment/files/locks.py", "turn", "os.open"): "a directory, to be held",
    ("experiment/memory/process_tree.py", "ProcessTree.reset_high_water", "write_text"): "/proc",
    ("experiment/files/scratch.py", "OwnPackages.__init__", "symlink_to"): "links for one process",
    ("experiment/report/files/plots.py", "_render", "savefig"): "into memory",
    ("experiment/files/scratch.py", "make_scratch", "tempfile.mkdtemp"): "files of a child",
    ("experiment/selfcheck/checks.py", "scratch_directory", "tempfile.mkdtemp"): "logs of a check",
    ("experiment/selfcheck/checks.py", "_Examination.run", "tempfile.TemporaryDirectory"): "data",
    ("experiment/files/user_cache.py", "temporary_files", "tempfile.gettempdir"): "a name alone",
    ("experiment/process/wire.py", "Wire.__init__", "os.fdopen"): "the pipe to the runner",
    ("kvsim/sweep/by_ray.py", "_compute_here", "tempfile.TemporaryDirectory"): "a trace, for Ray",
    ("kvsim/sweep/by_ray.py", "_compute_here", "write_bytes"): "into that",
}  # fmt: skip
OPENERS = {
    "open", "io.open", "os.fdopen", "codecs.open", "gzip.open", "bz2.open", "lzma.open",
    "zipfile.ZipFile", "tarfile.open", "NamedTemporaryFile", "logging.FileHandler",
}  # fmt: skip
# Whatever they are called on, and whatever they are given.
WRITERS = {
    "write_text", "write_bytes", "savefig", "save_pretrained", "save_file", "savez",
    "savez_compressed", "savetxt", "tofile", "symlink_to", "hardlink_to", "rename", "mkstemp",
    "mkdtemp", "TemporaryFile", "TemporaryDirectory", "NamedTemporaryFile", "SpooledTemporaryFile",
    "export_chrome_trace", "_dump_snapshot", "export_html", "save_html", "save_svg", "save_text",
    "imsave", "copyfile", "copyfileobj", "copytree", "copy2", "make_archive",
    "unpack_archive", "mknod", "mkfifo",
}  # fmt: skip
OF_MODULES = {
    "shutil.copy", "shutil.move", "torch.save", "np.save", "numpy.save", "os.replace", "os.rename",
    "os.link", "os.symlink", "os.truncate", "sqlite3.connect", "shelve.open",
}  # fmt: skip
# Frames give their text where no path is named.
FRAMES = {"to_csv", "to_json", "to_html", "to_markdown", "to_parquet", "to_excel", "to_feather"}


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_for_writing(call: ast.Call, name: str) -> bool:
    """Whether an ``open`` may write: its mode says so, or is not written there."""
    words = {each.arg: each.value for each in call.keywords}
    if name == "os.open":
        return len(call.args) < 2 or dotted(call.args[1]) != "os.O_RDONLY"
    place = 1 if name in OPENERS else 0  # a path's own open has no path before the mode
    mode = words.get("mode", call.args[place] if len(call.args) > place else None)
    if mode is None:
        return name == "logging.FileHandler"
    return not isinstance(mode, ast.Constant) or bool(set("wax+") & set(str(mode.value)))


def writes(call: ast.Call) -> str | None:
    """The name of a call that writes, renames or makes a file."""
    name = dotted(call.func)
    last = call.func.attr if isinstance(call.func, ast.Attribute) else name
    if name in OPENERS or name == "os.open" or last == "open":
        known = name if name in OPENERS or name == "os.open" else "open"
        return known if is_for_writing(call, known if known != "open" else name) else None
    if name in OF_MODULES or name.startswith("tempfile."):
        return name
    if last in WRITERS:
        return last
    if last == "touch":
        return last if not call.args else None  # a cache's own has a block to touch
    if last == "replace" and isinstance(call.func, ast.Attribute):
        # Of a text there are two arguments, of a datetime and a dataclass there are names.
        return last if len(call.args) == 1 and not call.keywords else None
    if last in FRAMES and isinstance(call.func, ast.Attribute):
        named = {"path_or_buf", "path", "buf", "excel_writer"} & {k.arg for k in call.keywords}
        return last if call.args or named else None
    return None


def renames(node: ast.AST) -> Iterator[str]:
    """Functions that would be called without the name of their module."""
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            if name in OF_MODULES | OPENERS | {"os.open"}:
                yield f"from {node.module} import {alias.name}"


def found_in(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """Function and call, for each call that writes."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        name = f"{inside}.{node.name}".lstrip(".") if named else inside  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and (what := writes(node)):
            yield inside, what
        yield from ((inside, what) for what in renames(node))
        yield from found_in(node, name)


def test_nothing_is_written_but_by_the_writer_of_whole_files() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), *each)
        for path in SOURCES
        for each in found_in(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found - ALLOWED.keys() == set(), "write it with kvsim.files"
    assert ALLOWED.keys() - found == set(), "the list names what is not there any more"
    assert len(SOURCES) > 250


@pytest.mark.parametrize(
    "line",
    [
        "open(p, 'w')", "open(p, mode='a')", "p.open('xb')", "p.open(mode)", "open(p, 'r+')",
        "os.fdopen(n, 'w')", "os.open(p, os.O_WRONLY | os.O_CREAT)", "gzip.open(p, 'wt')",
        "p.write_text(t)", "(a / b).write_bytes(t)", "shutil.copy(a, b)", "shutil.copytree(a, b)",
        "frame.to_csv(p)", "frame.to_json(path_or_buf=p)", "figure.savefig(p)", "a.replace(b)",
        "profiler.export_chrome_trace(p)",
        "os.replace(a, b)", "model.save_pretrained(d)", "torch.save(x, p)", "p.touch()",
        "tempfile.mkstemp()", "tempfile.NamedTemporaryFile()", "np.savez(p, x)",
        "zipfile.ZipFile(p, 'w')", "logging.FileHandler(p)", "Path(p).open(mode='w+b')",
        "from os import replace", "from shutil import copy as c", "from io import open",
        "def f():\n  class A:\n    x = lambda: p.open('w')",
    ],
)  # fmt: skip
def test_a_line_that_writes_past_the_writer_is_seen(line: str) -> None:
    assert list(found_in(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "open(p)", "open(p, 'rb')", "p.open()", "p.open('rb', buffering=0)", "t.replace('a', 'b')",
        "moment.replace(tzinfo=UTC)", "replace(x, a=1)", "frame.to_csv(index=False)",
        "to_csv(frame)", "os.open(p, os.O_RDONLY)", "safe_open(p, framework='pt')", "a.copy()",
        "cache.touch(at, block)", "from os import getpid",
    ],
)  # fmt: skip
def test_the_check_lets_reading_pass(line: str) -> None:
    assert list(found_in(ast.parse(line))) == []


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
