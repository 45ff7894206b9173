"""No code from the working directory, data or caches of others; no secret for a child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_place import ROOT, SECRET, holding, make_hostile, run_in

from experiment.arms.launch import VLLM_PYTHON, vllm_python
from experiment.config.schema import VLLM_ARGUMENTS, make_config
from experiment.files.code_cache import code_cache
from experiment.process.environment import child_environment
from experiment.text.errors import ExitCode, UserError

SWEEP = (
    "sweep", "--workers", "2", "--set", "policy=['paged','slabs']", "--set", "model='gpt2'",
    "--set", "gpu='a100-80gb'", "--set", "trace='trace.jsonl'",
)  # fmt: skip


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return make_hostile(tmp_path)


def test_a_sweep_runs_nothing_from_the_working_directory_and_its_processes_have_no_secret(
    hostile: Path, tmp_path: Path
) -> None:
    """Of a run: test_whole_run.py."""
    variables = dict.fromkeys(("HF_TOKEN", "MYSQL_PWD", "A_PAT", "MINE"), SECRET)
    ended = run_in(hostile, tmp_path, (*SWEEP, "--out", tmp_path / "out"), variables)
    assert ended.code == ExitCode.OK, ended.errors
    assert "\x1b" not in ended.errors
    assert ended.marks == ""
    assert holding(tmp_path / "out", SECRET) == []
    assert ended.children
    assert not [line for line in ended.children if any(name in line.split() for name in variables)]


SETTINGS = """
import experiment, os, matplotlib, numba
here = os.getcwd()
assert numba.njit(lambda x: x + 1)(2) == 3  # Numba reads its settings again
print(here == os.getcwd(), matplotlib.rcParams["savefig.dpi"], matplotlib.rcParams["text.usetex"])
print(numba.config.DISABLE_JIT, int(numba.config.OPT))
"""


@pytest.mark.parametrize("yaml", ["a: [1\n", "disable_jit: 1\nopt: 0\n"])
def test_no_library_takes_settings_from_the_working_directory(yaml: str, hostile: Path) -> None:
    for path in hostile.rglob("*.py"):
        path.unlink()
    (hostile / ".numba_config.yaml").write_text(yaml, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-c", SETTINGS], cwd=hostile, capture_output=True, check=False,
        encoding="utf-8", env=child_environment({}),
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == ["True", "figure", "False", "0", "3"]


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        *((name, True) for name in (
            "PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_X",
            "PYTORCH_X", "TRITON_X", "OMP_X", "https_proxy", "SSL_CERT_FILE", "HF_HOME",
            "PAGEDKV_CACHE", "VLLM_CPU_KVCACHE_SPACE",
        )),
        *((name, False) for name in (
            "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_PLUGINS", "VLLM_API_KEY", "MYSQL_PWD",
            "A_PAT", "OPENAI_KEY", "PGPASSWORD", "AWS_PROFILE", "OLDPWD", "EDITOR",
        )),
    ],
)  # fmt: skip
def test_a_child_inherits_an_allow_list_of_variables(
    name: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "/x")
    assert (child_environment({}).get(name) == "/x") is is_there


def test_vllms_interpreter_is_named_by_the_environment_and_not_by_the_working_directory(
    hostile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    monkeypatch.delenv(VLLM_PYTHON, raising=False)
    assert vllm_python() in (None, str(ROOT / ".venv-vllm" / "bin" / "python"))
    monkeypatch.setenv(VLLM_PYTHON, ".venv-vllm/bin/python")
    assert vllm_python() == str(hostile / ".venv-vllm" / "bin" / "python")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("worker_cls", "evil.Worker"), ("scheduler_cls", "evil.Scheduler"), ("load_format", "pt"),
        ("logits_processors", ["evil:Processor"]), ("tokenizer", "evil/tokenizer"),
        ("kv_transfer_config", {"kv_connector_module_path": "evil"}), ("hf_overrides", {}),
        ("structured_outputs_config", {"reasoning_parser_plugin": "evil.py"}),
        ("trust_remote_code", True), ("kv_cache_memory_bytes", 1), ("swap-space", 1),
        ("kv_cache_dtype", "evil.module"), ("attention_backend", "../evil"),
        ("cudagraph_capture_sizes", ["evil"]), ("moe_backend", {"a": 1}), ("moe_backend", None),
    ],
)  # fmt: skip
def test_vllm_is_told_plain_values_alone(argument: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        make_config({"vllm": {"args": {argument: value}}})
    assert caught.value.text.params["argument"] == argument
    assert "worker_cls" not in VLLM_ARGUMENTS
    plain = {"kv_cache_dtype": "fp8_e4m3", "max_logprobs": 1, "cudagraph_capture_sizes": [1, 2]}
    assert make_config({"vllm": {"args": plain}}).vllm.args == plain


def test_compiled_code_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    path = code_cache("numba")
    assert path == tmp_path / "own" / "pagedkv-lab" / "numba"
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o770)
    words = ("--yes", "--offline", "--model", "tiny-gpt2", "--arms", "paged")
    assert str(path) in refused(*words, "--out", tmp_path / "out")


def test_compiled_code_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code_cache("numba")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UserError):
        code_cache("numba")
