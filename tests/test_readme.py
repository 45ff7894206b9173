"""Every command of README and guides is one that the program takes, in both languages alike."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
from guide_pages import ROOT, TRANSLATED, WITH_COMMANDS, commands, program_words, read, spans

from experiment.commands import main as cli
from experiment.commands import parser as words
from experiment.commands.sweep import _expand, _grid
from experiment.config.reading import load_config
from experiment.config.schema import Config, config_keys
from experiment.files.shipped import CONFIGS, config_names, find_config
from experiment.simulate.names import gpu_of, model_of, policies_of
from experiment.text import Translator
from experiment.text.errors import ExitCode, UserError

PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
MAKEFILE = read("Makefile")
TARGETS = set(re.findall(r"^(?:\.PHONY: )?([a-z-]+)(?::|$)", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))
ALL = sorted({tuple(found) for page in WITH_COMMANDS for found in commands(page)})
OURS = [given for found in ALL if (given := program_words(list(found))) is not None]
CHEAP = ("--help", "--list-experiments", "--list")


class ParsedError(Exception):
    """A command line was split, and what would have come of it is left out."""

    def __init__(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        self.parser, self.options = parser, options


@pytest.fixture
def only_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command ends where it has parsed its words."""

    def stop(parser: argparse.ArgumentParser, given: Sequence[str], known: Sequence[str]) -> None:
        raise ParsedError(parser, words.parse(parser, given, known))

    for place in cli._COMMANDS.values():
        monkeypatch.setattr(import_module(place.partition(":")[0]), "parse", stop)


def parsed(given: Sequence[str]) -> ParsedError:
    with pytest.raises(ParsedError) as caught:
        cli._dispatch(list(given), Translator("en"))
    return caught.value


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED.items())
def test_both_languages_have_the_same_commands(english: str, chinese: str) -> None:
    assert sorted(commands(english)) == sorted(commands(chinese))


def test_there_are_commands_to_look_at() -> None:
    assert len(OURS) > 25
    assert {command[0] for command in ALL} == {"make", "pip", "pagedkv", "python"}


@pytest.mark.usefixtures("only_parsed")
@pytest.mark.parametrize("given", [one for one in OURS if "--help" not in one], ids=" ".join)
def test_the_program_takes_every_documented_command(given: list[str]) -> None:
    options = parsed(given).options
    command = given[0] if given and not given[0].startswith("-") else "run"
    command = "run" if command in config_names() else command
    if command == "run":
        if (options.config or "").startswith("kv/"):
            return  # a reader's own file
        path = find_config(options.config) if options.config else None
        config = load_config(path, cli._overrides(options))
        assert config.arm_names
        assert not options.quick or config.experiment.name
    elif command in ("simulate", "plan") and options.model:
        assert model_of(options.model)
        assert gpu_of(options.gpu)
        assert policies_of(getattr(options, "policy", None))
    elif command == "sweep" and options.config != "CONFIG":
        assert _expand(_grid(options.config, options.set or ()))


@pytest.mark.usefixtures("only_parsed")
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_option_and_key_within_lines_exists(page: str) -> None:
    parsers = [parsed([name]).parser for name in cli.COMMANDS]
    flags = {flag for parser in parsers for flag in parser._option_string_actions}
    named = {span.split()[0].partition("=")[0] for span in spans(page) if span.startswith("--")}
    assert named <= flags
    sections = "|".join(Config.model_fields)
    dotted = re.compile(rf"^((?:{sections})\.[a-z_]+)\b(?!\.)")
    keys = {match[1] for span in spans(page) if (match := dotted.match(span))}
    files = {"run.json", "engine.json", "experiment.csv", "experiment.__version__"}
    assert {key for key in keys if key not in files} <= set(config_keys())


@pytest.mark.parametrize("given", [one for one in OURS if {*CHEAP} & {*one}], ids=" ".join)
def test_the_quick_ones_run(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = cli.main(given)
    except SystemExit as left:
        code = left.code or ExitCode.OK
    assert code == ExitCode.OK
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_documented_plan_runs(lang: str, capsys: pytest.CaptureFixture[str]) -> None:
    plans = [one for one in OURS if one[:1] == ["plan"] and "--model" in one]
    assert plans
    assert cli.main([*plans[0], "--lang", lang]) == ExitCode.OK
    assert "vllm" in capsys.readouterr().out


@pytest.mark.parametrize("found", [one for one in ALL if one[0] == "make"], ids=" ".join)
def test_every_make_target_and_variable_exists(found: tuple[str, ...]) -> None:
    assert {word for word in found[1:] if "=" not in word} <= TARGETS
    assert {word.partition("=")[0] for word in found[1:] if "=" in word} <= VARIABLES


@pytest.mark.parametrize("found", [one for one in ALL if one[0] == "pip"], ids=" ".join)
def test_what_pip_is_told_to_install_is_there(found: tuple[str, ...]) -> None:
    needed = {re.split("[<>=]", wanted)[0] for wanted in PROJECT["dependencies"]}
    for what in found[2:]:
        name, _, extra = what.rstrip("]").partition("[")
        assert name in (".", "--no-deps", PROJECT["name"], *needed)
        assert not extra or extra in PROJECT["optional-dependencies"]


def test_a_shipped_config_is_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("configs/quick.toml") == CONFIGS / "quick.toml"
    assert find_config("quick") == CONFIGS / "quick.toml"
    assert find_config("gate-example") == CONFIGS / "gate-example.toml"
    with pytest.raises(UserError):
        find_config("quick.toml")
    own = tmp_path / "configs" / "quick.toml"
    own.parent.mkdir()
    own.write_text("", encoding="utf-8")
    assert find_config("configs/quick.toml").resolve() == own


def test_the_console_command_is_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = PROJECT["scripts"]["pagedkv"].partition(":")
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/pagedkv", "--version"])
    with pytest.raises(SystemExit) as left:
        getattr(import_module(module), name)()
    assert left.value.code == 0
    assert words.make_parser(Translator("en"), "plan").prog == "pagedkv plan"


def test_packages_are_typed() -> None:
    data = tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]["package-data"]
    for package in ("experiment", "kvsim"):
        assert (ROOT / package / "py.typed").exists()
        assert "py.typed" in data[package]
