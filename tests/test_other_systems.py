"""Windows and macOS, by what they lack: the simulator works, and a clone finds its environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from guide_pages import ROOT

# What Windows has not. Modules of others that need it on Linux are imported before.
HIDE = """
import concurrent.futures.process, multiprocessing.popen_spawn_posix, os, psutil, signal, sys
from multiprocessing import resource_tracker
for name in ("resource", "fcntl", "termios", "pwd", "_posixsubprocess"):
    if name != "_posixsubprocess" or not PROCESSES:
        sys.modules[name] = None
kept = signal.pthread_sigmask
for name in ("pthread_sigmask", "pthread_kill", "SIGHUP", "SIGKILL"):
    delattr(signal, name)
for name in ("getuid", "getloadavg", "sched_getaffinity", "getsid", "O_NONBLOCK"):
    delattr(os, name)
def missing(): raise ModuleNotFoundError("_posixsubprocess")
resource_tracker.ensure_running = missing
"""
IMPORT = """
import importlib, pkgutil, kvsim
for module in pkgutil.walk_packages(kvsim.__path__, "kvsim."):
    if module.name != "kvsim.sweep.ray_cluster":
        importlib.import_module(module.name)
"""
COMMANDS = """
import kvsim.sweep.processes
signal.pthread_sigmask = kept  # Python's own processes need it on Linux
from experiment.commands.main import main
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
MODEL = ("--model", "gpt2", "--gpu", "a100-80gb")
TRACE = ("--trace", "sharegpt-like", "--requests", "20", "--rate", "5")


def without(code: str, *words: str, cwd: Path, processes: bool = True) -> str:
    """What a program prints where those modules and names are absent."""
    script = cwd / "program.py"
    script.write_text(f"PROCESSES = {processes}\n{HIDE}{code}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), *words], cwd=cwd, capture_output=True, check=False,
        env={"PYTHONPATH": str(ROOT), "HOME": str(cwd)}, encoding="utf-8", timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_module_of_the_simulator_is_imported(tmp_path: Path) -> None:
    without(IMPORT, cwd=tmp_path, processes=False)


def test_the_commands_of_the_simulator_work(tmp_path: Path) -> None:
    axes = {"trace": "sharegpt-like", "policy": "paged", "model": "gpt2", "gpu": "a100-80gb"}
    grid = [word for name, value in axes.items() for word in ("--set", f"{name}='{value}'")]
    grid += ["--set", "requests=[20, 30]", "--workers", "2", "--out", "sweep"]
    for words in (
        ("plan", *MODEL, "--prompt-tokens", "50", "--new-tokens", "30"),
        ("simulate", *TRACE, *MODEL, "--policy", "paged", "--out", "simulation"),
        ("render", "simulation"),
        ("sweep", *grid),
    ):
        assert without(COMMANDS, *words, "--lang", "en", cwd=tmp_path)
    assert len(list((tmp_path / "sweep/cells").iterdir())) == 2


@pytest.mark.parametrize("built", [True, False])
def test_on_windows_a_clone_starts_its_environment_or_says_how_to_install(
    built: bool, tmp_path: Path
) -> None:
    door = tmp_path / "run_experiment.py"
    (tmp_path / "experiment/machine").mkdir(parents=True)
    names = ("__init__.py", "__main__.py", "local_settings.py", "machine/__init__.py")
    for name in (*names, "machine/packages.py"):
        shutil.copy(ROOT / "experiment" / name, tmp_path / "experiment" / name)
    shutil.copy(ROOT / door.name, door)
    if built:
        python = tmp_path / ".venv/Scripts/python.exe"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\necho "$2"; exit 4\n', encoding="utf-8")
        python.chmod(0o755)
    code = "import os, runpy, subprocess, sys; os.name = 'nt'; sys.argv[:] = sys.argv[1:]\n"
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(door), "a b"],
        env={}, capture_output=True, check=False, encoding="utf-8",
    )  # fmt: skip
    if built:
        assert (done.returncode, done.stdout) == (4, "a b\n")
    else:
        (line,) = done.stderr.splitlines()
        assert done.returncode == 2
        assert "pip install ." in line
        assert "WSL" in line
