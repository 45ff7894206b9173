"""The command line: bad input ends in one clear line of the chosen language, never a traceback."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from parsed_commands import parsed

import experiment
from experiment.commands.main import main
from experiment.config.reading import load_config
from experiment.config.schema import Config
from experiment.files.shipped import CONFIGS, config_names
from experiment.text import LANGUAGES
from experiment.text.errors import ExitCode

ROOT = Path(__file__).parent.parent
DOOR = ROOT / "run_experiment.py"
HAN = re.compile(r"[\u4e00-\u9fff]")


def door(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program as a person would, in a process of its own."""
    return subprocess.run(
        [sys.executable, str(DOOR), *words],
        capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=300,
        check=False, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


WRONG = {
    "unknown flag": ("--blok-size", "16"),
    "flag without value": ("--block-size",),
    "flag that takes none": ("--yes=3",),
    "stray word": ("run", "gpt2"),
    "unknown command": ("rnu",),
    "unknown key": ("--set", "cache.blocksize=3"),
    "no assignment": ("--set", "cache"),
    "missing config": ("--config", "none.toml"),
    "missing prompts": ("--prompts", "none.jsonl"),
    "unknown arm": ("--arms", "pagedd"),
    "no arm": ("--arms", ","),
    "bad number": ("--max-new-tokens", "few"),
    "zero": ("--block-size", "0"),
    "bad size": ("--kv-budget", "much"),
    "bad choice": ("--device", "tpu"),
    "empty prompt": ("--prompt", ""),
    "no new tokens": ("--max-new-tokens", "0"),
    "unknown policy": ("--set", "engine.policy=lifo"),
    "unknown preemption": ("--set", "engine.preemption=drop"),
    "unknown kernel": ("--set", "engine.kernel=magic"),
    "top-p of nothing": ("--set", "sampling.top_p=0"),
    "top-p over all": ("--set", "sampling.top_p=1.01"),
    "negative top-k": ("--set", "sampling.top_k=-1"),
    "negative temperature": ("--set", "sampling.temperature=-0.5"),
    "infinite temperature": ("--set", "sampling.temperature=inf"),
    "low temperature": ("--set", "sampling.temperature=1e-6"),
    "no sample": ("--set", "sampling.n=0"),
    "half a sample": ("--set", "sampling.n=1.5"),
    "stop token that is no list": ("--set", "sampling.stop_token_ids=5"),
    "negative stop token": ("--set", "sampling.stop_token_ids=[-1]"),
    "least above most": ("--set", "sampling.min_new_tokens=51"),
    "render nothing": ("render",),
    "render no run": ("render", "none"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_ends_in_one_line_of_the_language(
    name: str, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    english = refused(*WRONG[name])
    chinese = refused(*WRONG[name], lang="zh")
    assert english.startswith("Error:")
    assert not HAN.search(english)
    assert HAN.search(chinese)
    assert not list(tmp_path.iterdir())  # a refused run leaves nothing behind


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("plan", "--kv-cache-memory-bytes", "9"), "--kv-budget"),
        (("bench", "--worklods", "A"), "--workloads"),
        (("run", "--temperature", "1"), "sampling.temperature"),
        (("--max-num-seqs=4",), "engine.max_num_seqs"),
        (("--set", "block_size=8"), "cache.block_size"),
        (("capcity",), "capacity"),
        (("plna",), "plan"),
        (("help",), "--help"),
        (("--config", "configs/capcity.toml"), "capacity"),
        (("--config", "quick.toml"), "quick"),
        (("run", "capacity"), "capacity"),
    ],
)
def test_the_right_word_is_named(
    words: tuple[str, ...], near: str, refused: Callable[..., str]
) -> None:
    line = refused(*words)
    assert near in re.findall(r"[\w.-]+", line)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("plan", "--tp", "9"), "tensor_parallel_size"),
        (("calibrate", "--tensor-parallel-size=9"), "gpus"),
        (("simulate", "--max-model-len", "9"), "max_length"),
        (("plan", "--max-tokens", "9"), "new_tokens"),
        (("run", "--max-tokens", "9"), "max_new_tokens"),
        (("simulate", "--request_rate", "9"), "rate"),
    ],
)
def test_options_are_taken_by_vllms_names(words: tuple[str, ...], name: str) -> None:
    assert str(getattr(parsed(words).options, name)) == ("(9.0, None)" if name == "rate" else "9")


BARE = {
    "run": ("--kv-budget", "4"),
    "key": ("--set", "cache.budget=4"),
    "swap": ("--set", "engine.swap_space=4"),
    "quick config": ("capacity", "--quick", "--kv-budget", "4"),
    "plan": ("plan", "--model", "opt-13b", "--gpu", "h100", "--prompt-tokens", "9",
             "--new-tokens", "9", "--kv-budget", "4"),
    "overhead": ("plan", "--model", "opt-13b", "--gpu", "h100", "--prompt-tokens", "9",
                 "--new-tokens", "9", "--overhead", "4"),
    "simulate": ("simulate", "--model", "opt-13b", "--gpu", "h100", "--trace", "alpaca-like",
                 "--budgets", "8GiB,4"),
    "host": ("simulate", "--model", "opt-13b", "--gpu", "h100", "--trace", "alpaca-like",
             "--preemption", "swap", "--swap-space", "4"),
    "sweep": ("sweep", "sweep-rate", "--set", "kv_budget=[4]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BARE)
def test_a_size_that_lacks_its_unit_is_asked_for_with_one(
    name: str, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for lang in LANGUAGES:
        line = refused(*BARE[name], lang=lang)
        assert "4GiB" in line
        assert "4MiB" in line


@pytest.mark.parametrize("name", config_names())
def test_a_shipped_config_is_run_by_its_name_alone(
    name: str, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name.startswith("sweep-"):
        for words in ((name,), ("sweep", name)):
            assert "--workers" in refused(*words, "--workers", "0")
        return
    ran: list[Config] = []
    monkeypatch.setattr(
        "experiment.commands.walkthrough.run_walkthrough", lambda config, _: ran.append(config) or 0
    )
    for words in ((name,), ("--config", name), ("--config", f"configs/{name}.toml")):
        assert main([*words, "--yes", "--lang", "en"]) == ExitCode.OK
    assert ran == [load_config(CONFIGS / f"{name}.toml", {})] * 3


def test_a_wrong_language_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--lang", "fr"])
    assert stopped.value.code == ExitCode.USAGE
    assert "--lang" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "more"),
    [([], "numba numpy"), (["bench"], "numba numpy"), (["simulate"], ""), (["plan"], "")],
)
def test_help_imports_nothing_heavy(command: list[str], more: str) -> None:
    code = (
        "import sys; sys.argv = ['x']; sys.path.insert(0, '.')\n"
        "from experiment.commands.main import main\n"
        f"try: main([*{command}, '--help', '--lang', 'en'])\n"
        "except SystemExit: pass\n"
        f"heavy = {{'torch', 'transformers', 'pandas', 'rich.console', *'{more}'.split()}}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(1 if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0


def test_version_is_printed() -> None:
    assert experiment.__version__ in door("--version").stdout


def test_before_anything_is_installed_one_line_says_what_to_do() -> None:
    for lang, part in (("en", "make run"), ("zh", "请运行")):
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(DOOR), "--lang", lang],
            capture_output=True, text=True, encoding="utf-8", check=False,
            env={**os.environ, "PAGEDKV_IN_VENV": "1", "PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
        assert done.returncode == ExitCode.USAGE
        assert len(done.stderr.strip().splitlines()) == 1
        assert part in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        DOOR.name,
        "experiment/__init__.py",
        "experiment/local_settings.py",
        "experiment/machine/packages.py",
    ],
)
def test_an_old_python_can_read_the_front_door(name: str) -> None:
    ast.parse((ROOT / name).read_text(encoding="utf-8"), feature_version=(3, 4))


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
def test_no_encoding_of_the_terminal_ends_the_program(encoding: str) -> None:
    done = door("--help", "--lang", "zh", env={"PYTHONIOENCODING": encoding})
    assert done.returncode == ExitCode.OK
    assert "Traceback" not in done.stderr
