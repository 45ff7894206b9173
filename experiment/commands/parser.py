"""Parsers of all commands, in the user's language.

argparse splits the words; readers of :mod:`experiment.commands.values` convert the values.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from rich.cells import cell_len

import experiment
from experiment.config.schema import config_keys
from experiment.files.shipped import config_names, program
from experiment.report.console.wrap import wrap
from experiment.text import Translator
from experiment.text.errors import unknown, user_error

# Each is a function in a module of the same name.
COMMANDS = (
    "run", "render", "selfcheck", "simulate", "plan", "paper", "calibrate", "sweep", "claims",
    "bench", "compare", "gpucheck",
)  # fmt: skip
_SIMULATOR = ("simulate", "plan", "calibrate")
# The list in the program's help: with a model, and without.
_LISTED = {
    "commands": (
        "run", "render RUN", "compare RUN RUN", "claims", "bench", "selfcheck", "gpucheck",
    ),
    "commands_alone": ("plan", "simulate", "sweep CONFIG", "calibrate RUN", "paper"),
}  # fmt: skip
_SHORT = {"--yes": "-y", "--quiet": "-q"}
# Metavariable, and what converts flag and text to a value; None: a flag without value.
Option = str | tuple[str, Callable[[str, str], Any]] | None


def make_parser(
    t: Translator, command: str, options: Mapping[str, Option]
) -> argparse.ArgumentParser:
    """Create a parser with common options and those of the command.

    Args:
        options: by name. ``+`` after a name: repeatable. A name without dashes is a positional
            argument, with ``*`` any number of them.
    """
    parser = _Parser(
        prog=_program() if command == "run" else f"{_program()} {command}",
        description=t(f"help.about_{command}") + (_listed(t) if command == "run" else ""),
        epilog=t("help.epilog") if command == "run" else None,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
        formatter_class=_formatter(t),
    )
    parser._optionals.title = t("help.options")
    parser._positionals.title = t("help.arguments")
    parser.add_argument("--lang", metavar="zh|en|auto", help=t("help.lang"))
    parser.add_argument("--ascii", action="store_true", help=t("help.ascii"))
    parser.add_argument(
        "--version",
        action="version",
        version=f"pagedkv-lab {experiment.__version__}",
        help=t("help.version"),
    )
    parser.add_argument("--help", "-h", action="help", help=t("help.help"))
    for name, option in options.items():
        flag = name.rstrip("+*")
        metavar, read = option if isinstance(option, tuple) else (option, None)
        how: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        if read is not None:
            how["type"] = partial(read, flag)
        if not name.startswith("--"):
            how["nargs"] = "*" if name.endswith("*") else "?"
        elif name.endswith("+"):
            how["action"] = "append"
        short = [_SHORT[flag]] if flag in _SHORT else []
        parser.add_argument(flag, *short, help=_help(t, command, attribute(flag)), **how)
    return parser


def _listed(t: Translator) -> str:
    """The commands, one a line."""
    lines = ["\n"]
    for heading, commands in _LISTED.items():
        lines.append(t(f"help.{heading}"))
        lines += [f"  {each:<18}{t(f'help.command_{each.split()[0]}')}" for each in commands]
    return "\n".join(lines)


def _help(t: Translator, command: str, name: str) -> str:
    """Help of an option; options of the simulator may share names with others."""
    keys = [f"help.{command}_{name}", f"help.{name}", f"help.sim.{name}"]
    if command in _SIMULATOR:
        keys = [f"help.sim.{command}_{name}", keys[2], keys[1]]
    return t(next(key for key in keys if t.has(key)))


def _program() -> str:
    """Name of the installed command, or of the script in a clone."""
    return program()[-1]


class _Parser(argparse.ArgumentParser):
    """Parser that raises instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)


def _formatter(t: Translator) -> type[argparse.HelpFormatter]:
    class Formatter(argparse.RawDescriptionHelpFormatter):
        def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
            super().add_usage(usage, actions, groups, prefix or t("help.usage") + " ")

        def __init__(self, prog: str, **kwargs: Any) -> None:
            super().__init__(prog, max_help_position=30, **kwargs)
            # argparse counts characters; a Chinese one is two cells wide.
            self._width -= cell_len(t("help.usage")) - len(t("help.usage"))

        def _split_lines(self, text: str, width: int) -> list[str]:
            return wrap(text, width).split("\n")

        def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002
            return wrap(text, width)

        def format_help(self) -> str:
            text = super().format_help()
            for heading in (t("help.options"), t("help.arguments")):  # argparse ends them in ":"
                text = text.replace(f"\n{heading}:\n", f"\n{t('help.heading', name=heading)}\n")
            return text

    return Formatter


# Options of vLLM and its benchmarks, taken as ours; the first that the command has is used.
VLLM_OPTIONS = {
    "tp": ("--tensor-parallel-size", "--gpus"),
    "pp": ("--pipeline-parallel-size",),
    "dp": ("--data-parallel-size",),
    "tensor-parallel-size": ("--gpus",),
    "quantization": ("--weights",),
    "num-gpus": ("--gpus",),
    "max-model-len": ("--max-length",),
    "kv-cache-dtype": ("--kv-dtype",),
    "max-tokens": ("--max-new-tokens", "--new-tokens"),
    "input-len": ("--prompt-tokens",),
    "random-input-len": ("--prompt-tokens",),
    "output-len": ("--max-new-tokens", "--new-tokens"),
    "random-output-len": ("--new-tokens",),
    "request-rate": ("--rate",),
    "num-prompts": ("--requests",),
    "dataset-path": ("--trace", "--prompts"),
}


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the options of a command.

    Raises:
        UserError: unknown option, missing or invalid value, or extra word.
    """
    flags = [flag for action in parser._actions for flag in action.option_strings]
    try:
        options, rest = parser.parse_known_args([_ours(word, flags) for word in words])
    except argparse.ArgumentError as error:
        # Readers raise user errors, so only the number of values can be wrong.
        raise user_error("error.flag_value", flag=error.argument_name or " ".join(words)) from error
    if rest:
        word = rest[0].split("=")[0]
        if word.startswith("-"):
            name = word.lstrip("-").replace("-", "_")
            keys = [key for key in config_keys() if key.endswith("." + name)]
            near = [f"--set {key}=..." for key in keys if "--set" in flags][:1] or None
            if name == "kv_cache_memory_bytes" and "--kv-budget" in flags:  # of one GPU
                near = ["--kv-budget"]
            raise unknown("option", word, flags, near=near, see="--help")
        if rest[0] in (*COMMANDS, *config_names()):
            raise user_error("error.command_first", program=_program(), word=rest[0])
        raise user_error("error.stray_word", word=rest[0])
    return options


def _ours(word: str, flags: Sequence[str]) -> str:
    """Our option for one of vLLM's that the command does not have; other words as they are."""
    flag, equals, value = word.partition("=")
    if not flag.startswith("-") or flag in flags:
        return word
    names = VLLM_OPTIONS.get(flag.lstrip("-").replace("_", "-"), ())
    return next((f"{ours}{equals}{value}" for ours in names if ours in flags), word)


def attribute(flag: str) -> str:
    """Attribute of argparse's namespace for a flag."""
    return flag.removeprefix("--").replace("-", "_")


def given(options: argparse.Namespace, *flags: str) -> list[tuple[str, Any]]:
    """Those flags that were given, with their values; options of another command are not."""
    values = ((flag, getattr(options, attribute(flag), None)) for flag in flags)
    return [(flag, value) for flag, value in values if value is not None and value is not False]


def fields(options: argparse.Namespace, *flags: str) -> dict[str, Any]:
    """The same by attribute, as keyword arguments."""
    return {attribute(flag): value for flag, value in given(options, *flags)}


def refuse_given(
    options: argparse.Namespace, flags: Sequence[str], *, beside: str = "", without: str = ""
) -> None:
    """Refuse the first of ``flags`` that was given: it has no effect.

    Args:
        beside: an option that was given and takes its place.
        without: an option that was not given and that it needs.

    Raises:
        UserError: one of them was given.
    """
    for flag, _ in given(options, *flags):
        key = "error.either_flag" if beside else "error.needs_flag"
        raise user_error(key, flag=flag, other=beside or without)
