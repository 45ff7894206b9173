"""What processes inherit that the program starts without a way of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from experiment.process.environment import without_secrets


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
