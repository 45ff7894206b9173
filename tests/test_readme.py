"""Every command of README and guides is one that the program takes, in both languages alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guide_pages import TRANSLATED, WITH_COMMANDS, commands, program_words, read, spans
from parsed_commands import parsed

from experiment.commands.main import main
from experiment.commands.parser import COMMANDS, VLLM_OPTIONS
from experiment.commands.run import _overrides
from experiment.config.reading import load_config
from experiment.config.schema import Config, config_keys
from experiment.files.shipped import CONFIGS, config_names, find_config
from experiment.simulate.names import gpu_of, model_of
from experiment.simulate.policies import policies_of
from experiment.simulate.sweep import make_cells, read_grid
from experiment.text.errors import ExitCode

MAKEFILE = read("Makefile")
VARIABLES = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))
ALL = sorted({tuple(found) for page in WITH_COMMANDS for found in commands(page)})
OURS = [given for found in ALL if (given := program_words(list(found))) is not None]
CHEAP = ("--help", "--list-experiments", "--list")


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED.items())
def test_both_languages_have_the_same_commands(english: str, chinese: str) -> None:
    assert sorted(commands(english)) == sorted(commands(chinese))


@pytest.mark.parametrize("given", [one for one in OURS if "--help" not in one], ids=" ".join)
def test_the_program_takes_every_documented_command(given: list[str]) -> None:
    options = parsed(given).options
    command = given[0] if given and not given[0].startswith("-") else "run"
    command = "run" if command in config_names() else command
    if command == "run":
        if (options.config or "").startswith("kv/"):
            return  # a reader's own file
        path = find_config(options.config) if options.config else None
        config = load_config(path, _overrides(options))
        assert config.arm_names
        assert not options.quick or config.experiment.name
    elif command in ("simulate", "plan") and options.model:
        assert model_of(options.model)
        assert not options.gpu or gpu_of(options.gpu)
        assert policies_of(getattr(options, "policy", None))
    elif command == "sweep" and options.config != "CONFIG":
        assert make_cells(read_grid(options.config, options.set or ()))


def test_every_option_and_key_within_lines_exists() -> None:
    parsers = [parsed([name]).parser for name in COMMANDS]
    flags = {flag for parser in parsers for flag in parser._option_string_actions}
    flags |= {f"--{name}" for name in VLLM_OPTIONS}
    found = {span for page in WITH_COMMANDS for span in spans(page)}
    named = {span.split()[0].partition("=")[0] for span in found if span.startswith("--")}
    assert named <= flags
    sections = "|".join(Config.model_fields)
    dotted = re.compile(rf"^((?:{sections})\.[a-z_]+)\b(?!\.)")
    keys = {match[1] for span in found if (match := dotted.match(span))}
    files = {"run.json", "engine.json", "experiment.csv", "experiment.__version__"}
    assert {key for key in keys if key not in files} <= set(config_keys())


@pytest.mark.parametrize("given", [one for one in OURS if {*CHEAP} & {*one}], ids=" ".join)
def test_the_quick_ones_run(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(given)
    except SystemExit as left:
        code = left.code or ExitCode.OK
    assert code == ExitCode.OK
    assert capsys.readouterr().out.strip()


def test_every_variable_that_make_is_given_exists() -> None:
    words = [word for found in ALL if found[0] == "make" for word in found[1:]]
    assert {word.partition("=")[0] for word in words if "=" in word} <= VARIABLES


def test_ones_own_config_is_found_before_a_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("configs/quick.toml") == CONFIGS / "quick.toml"
    assert find_config("gate-example") == CONFIGS / "gate-example.toml"
    own = tmp_path / "configs" / "quick.toml"
    own.parent.mkdir()
    own.touch()
    assert find_config("configs/quick.toml").resolve() == own
