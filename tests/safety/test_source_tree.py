"""What the source never does: run a shell, unpickle, run code of data, or write half a file."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiment.process.environment import without_secrets
from kvsim.base.files import PART, whole_file, write_whole

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    [*ROOT.glob("*.py"), *ROOT.glob("experiment/**/*.py"), *ROOT.glob("kvsim/**/*.py")]
)


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults(tree: ast.AST) -> Iterator[str]:
    """What a source must not do and ruff has no rule for, one line for each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
            option = node.elts[1]
            if isinstance(option, ast.Constant) and option.value in ("-m", "-c"):
                yield "an interpreter that imports from the working directory: add -P"
        if not isinstance(node, ast.Call):
            continue
        name, words = dotted(node.func), {k.arg: k.value for k in node.keywords}
        if name.endswith("torch.load"):
            safe = words.get("weights_only")
            if not (isinstance(safe, ast.Constant) and safe.value is True):
                yield "torch.load without weights_only=True"
        if name.endswith(".load") and "allow_pickle" in words:
            yield "allow_pickle"
        remote = words.get("trust_remote_code")
        if remote is not None and not (isinstance(remote, ast.Constant) and remote.value is False):
            yield "trust_remote_code"
        if name.endswith(".from_pretrained") and remote is None:
            yield f"{name} does not refuse remote code"
        builds = name.startswith("AutoModel") and name.endswith(
            (".from_pretrained", ".from_config")
        )
        if builds and "attn_implementation" not in words:
            yield f"{name} takes the attention of a config"


def test_no_source_runs_what_others_wrote() -> None:
    assert len(SOURCES) > 250
    found = {
        path.relative_to(ROOT).as_posix(): list(faults(ast.parse(path.read_text(encoding="utf-8"))))
        for path in SOURCES
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "torch.load(f)", "torch.load(f, weights_only=False)",
        "AutoTokenizer.from_pretrained(d)", "M.from_pretrained(d, trust_remote_code=flag)",
        "numpy.load(f, allow_pickle=True)", "x = [sys.executable, '-m', name]",
        "run((python, '-c', code))", "AutoModelForCausalLM.from_config(config)",
    ],
)  # fmt: skip
def test_a_line_that_is_not_safe_is_seen(line: str) -> None:
    assert list(faults(ast.parse(line)))


# Who may ask for the time of day, and why: of durations the monotonic clock is asked.
CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
OF_DAY = {
    "experiment/bench/run.py": "when a benchmark began",
    "experiment/record/directories.py": "the name of a directory",
    "experiment/model/builtin.py": "how old a file is, by the clock of its file system",
    "experiment/events/wall_clock.py": "when a record began",
}


def test_the_time_of_day_is_asked_for_dates_alone() -> None:
    """It may jump; a duration that is the difference of two such times would jump with it."""
    asked = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and dotted(node) in CLOCKS)
        or (isinstance(node, ast.ImportFrom) and node.module == "time"
        and {alias.name for alias in node.names} & {"time", "time_ns"})
    }  # fmt: skip
    assert asked == OF_DAY.keys()


# How processes are started, and why nothing of the working directory is imported. Every other
# process of ours is a Child, whose environment is built in experiment/process/environment.py.
STARTERS = {
    "experiment/gpucheck/walkthrough.py": "-P",
    "experiment/arms/launch.py": "-P",
    "experiment/process/process_tree.py": "-I",
    "experiment/children/probe.py": "/usr/sbin/sysctl",
    "experiment/process/child.py": "-P",
    "experiment/children/selfcheck.py": "-P",
    "experiment/vllm_setup.py": "-P",
    "kvsim/bench.py": "-P",
    "kvsim/sweep/processes.py": "PYTHONSAFEPATH",
    "run_experiment.py": "a script",
}
STARTS = {
    "subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call",
    "subprocess.check_output", "ProcessPoolExecutor", "multiprocessing.Process", "Process",
}  # fmt: skip


def test_every_start_of_a_process_is_known() -> None:
    starters = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (dotted(node.func) in STARTS or dotted(node.func).startswith(("os.exec", "os.spawn",
             "os.posix_spawn", "os.fork", "asyncio.create_subprocess")))
    }  # fmt: skip
    assert starters == STARTERS.keys()
    for name, reason in STARTERS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert reason.startswith("a script") or f'"{reason}"' in text, name


# Where files may be written, renamed or made at all: source, call; and why.
ALLOWED = {
    # The writer itself, and the one that must run before anything is installed.
    ("kvsim/base/files.py", "tempfile.mkstemp"): "the writer",
    ("kvsim/base/files.py", "os.fdopen"): "the writer",
    ("kvsim/base/files.py", "replace"): "the writer",
    ("experiment/vllm_setup.py", "write_text"): "beside its place; no package is there",
    ("experiment/vllm_setup.py", "replace"): "over it",
    # Appended to: a line is whole or not there, or belongs to someone else's file.
    ("experiment/record/log.py", "open"): "the event log",
    ("experiment/process/child.py", "open"): "what a process prints",
    ("experiment/report/files/markup.py", "open"): "the CI job's own file",
    # A directory of a model: written beside its place, renamed when it is whole.
    ("experiment/model/builtin.py", "tempfile.TemporaryDirectory"): "beside its place",
    ("experiment/model/builtin.py", "save_pretrained"): "into that",
    ("experiment/model/builtin.py", "shutil.copy"): "into that",
    ("experiment/model/builtin.py", "write_text"): "into that, last",
    ("experiment/model/builtin.py", "rename"): "to its place",
    ("experiment/gpucheck/archive.py", "tarfile.open"): "into memory",
    # Files that a profiler writes itself; the record names one when it is whole.
    ("experiment/arms/step_profile.py", "export_chrome_trace"): "whole",
    ("experiment/memory/cuda_history.py", "_dump_snapshot"): "read by people",
    # Nobody's result.
    ("experiment/record/checksums.py", "os.open"): "to look at alone",
    ("experiment/process/streams.py", "os.open"): "nowhere",
    ("experiment/process/streams.py", "os.fdopen"): "what is printed",
    ("experiment/files/locks.py", "os.open"): "a directory, to be held or looked at",
    ("experiment/memory/process_tree.py", "write_text"): "/proc",
    ("experiment/files/scratch.py", "symlink_to"): "links for one process",
    ("experiment/report/files/plots.py", "savefig"): "into memory",
    ("experiment/files/scratch.py", "tempfile.mkdtemp"): "files of a child",
    ("experiment/process/scratch_directory.py", "tempfile.mkdtemp"): "logs of a child",
    ("experiment/vllm_worker/check_layout.py", "tempfile.TemporaryDirectory"): "a config for vLLM",
    ("experiment/vllm_worker/configs.py", "write_text"): "into that",
    ("experiment/selfcheck/checks.py", "tempfile.TemporaryDirectory"): "data",
    ("experiment/files/user_cache.py", "tempfile.gettempdir"): "a name alone",
    ("experiment/process/wire.py", "os.fdopen"): "the pipe to the runner",
    ("kvsim/sweep/ray_cluster.py", "tempfile.TemporaryDirectory"): "a trace, for Ray",
    ("kvsim/sweep/ray_cluster.py", "write_bytes"): "into that",
}  # fmt: skip
# A mode of an open that may write, or that is not written there.
MODE = r"""(?:mode=)?(?:r?['"][\w:]*[wax+][\w:+]*['"]|\w+(?=[,)]))"""
WRITES = re.compile(
    rf"""
    \b(?P<opener>os\.fdopen|(?:gzip|bz2|lzma|codecs|io|tarfile)\.open|(?<!os\.)open|ZipFile)
        \((?:[^()]|\([^()]*\))*?(?:,\s*|(?<=\.open\()){MODE}
    | \b(?P<known>os\.open(?!\([^()]*O_RDONLY\))|tempfile\.\w+|\w*TemporaryFile|TemporaryDirectory
        |mk(?:stemp|dtemp|nod|fifo)|shutil\.(?:copy\w*|move|make_archive|unpack_archive)
        |(?:torch|np|numpy)\.save\w*|os\.(?:replace|rename|link|symlink|truncate)
        |sqlite3\.connect|shelve\.open|logging\.FileHandler)\(
    | \.(?P<method>write_text|write_bytes|save\w+|tofile|(?:sym|hard)link_to|rename
        |export_\w+|_dump_snapshot|imsave)\(
    | \.(?P<pathlike>replace(?=\([^,=()]+\))|touch(?=\(\)))
    | \.(?P<frame>to_(?:csv|json|html|markdown|parquet|excel|feather)
        (?=\((?:[\w.]+[,)]|['"]|path|buf|excel_writer)))
    | (?P<renamed>from\ (?:os|shutil|io)\ import\ .*\b(?:replace|rename|copy|move|open|fdopen)\b)
    """,
    re.VERBOSE,
)


def found_in(text: str) -> set[str]:
    """Calls that write, rename or make a file."""
    return {found for match in WRITES.finditer(text) for found in match.groups() if found}


def test_nothing_is_written_but_by_the_writer_of_whole_files() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), each)
        for path in SOURCES
        for each in found_in(path.read_text(encoding="utf-8"))
    }
    assert found - ALLOWED.keys() == set(), "write it with kvsim.base.files"
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
    assert found_in(line)


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
    assert not found_in(line)


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
from kvsim.base.files import write_whole
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
    code = "import sys; from pathlib import Path; from kvsim.base.files import write_whole; "
    code += "write_whole(Path(sys.argv[1]), b'x'); Path(sys.argv[1] + '-').touch()"
    path = tmp_path / "file"
    subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, check=True, umask=mask, timeout=60
    )
    assert [each.stat().st_mode & 0o777 for each in (path, tmp_path / "file-")] == [mode, mode]


def test_processes_started_meanwhile_know_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HF_TOKEN": "zqtoken", "MYSQL_PWD": "zqword", "HTTPS_PROXY": "http://u:zqword@proxy:8"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with without_secrets():
        words = [sys.executable, "-c", "import os; print(dict(os.environ))"]
        told = subprocess.run(words, capture_output=True, encoding="utf-8", check=True).stdout
    assert "zq" not in told
    assert "http://proxy:8" in told
    assert {name: os.environ[name] for name in given} == given
