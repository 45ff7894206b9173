"""What the source never does: run a shell, unpickle, or run code out of a model or of data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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
