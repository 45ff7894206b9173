"""What the source never does: run a shell, unpickle, or run code out of a model or of data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    [*ROOT.glob("*.py"), *ROOT.glob("experiment/**/*.py"), *ROOT.glob("kvsim/**/*.py")]
)
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
SHELLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "pty.spawn",
}
RUNNERS = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"}


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield (node.module or "").split(".")[0]


def faults(tree: ast.AST) -> Iterator[str]:
    """What a source must not do, one line for each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
            option = node.elts[1]
            if isinstance(option, ast.Constant) and option.value in ("-m", "-c"):
                yield "an interpreter that imports from the working directory: add -P"
        yield from (f"imports {name}" for name in imported(node) if name in UNPICKLERS)
        if not isinstance(node, ast.Call):
            continue
        name, words = dotted(node.func), {k.arg: k.value for k in node.keywords}
        if name in SHELLS | RUNNERS:
            yield f"calls {name}"
        shell = words.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield "asks for a shell"
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


def test_no_shell_no_pickle_no_foreign_code() -> None:
    assert len(SOURCES) > 250
    found = {
        path.relative_to(ROOT).as_posix(): list(faults(ast.parse(path.read_text(encoding="utf-8"))))
        for path in SOURCES
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from marshal import loads", "os.system('x')", "eval(text)",
        "subprocess.run(x, shell=1)",
        "torch.load(f)", "torch.load(f, weights_only=False)", "os.popen(x)",
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
    "kvsim/bench/speed.py": "-P",
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
