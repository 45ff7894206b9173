"""The experiments as a list, and the menu of a person at a terminal who asked for nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import get_terminal_size

from experiment.commands.values import whole
from experiment.experiments.findings import note
from experiment.experiments.registry import EXPERIMENTS
from experiment.files.shipped import CONFIGS, program
from experiment.model.families import counted, described, families
from experiment.process.interrupts import read_answer
from experiment.report.console.wrap import wrap
from experiment.simulate.names import gpu_of, model_of, unknown_trace
from experiment.text import Translator
from experiment.text.errors import UserError
from kvsim.traces.generate import PRESETS

_DIGITS = 9  # of thousands Python makes no number
_LEAVE = ("q", "quit", "exit")
_QUICK = {"": True, "quick": True, "f": False, "full": False}
# What the two questions about a model ask, with an answer for whoever has none.
_MODEL = {"--model": "llama-3.1-8b", "--gpu": "rtx-4090", "--gpus": "1"}
_PLAN = {**_MODEL, "--prompt-tokens": "1000", "--new-tokens": "300"}
_SIMULATE = {"--trace": "sharegpt-like", **_MODEL}


def _trace(name: str) -> None:
    if name not in PRESETS and not Path(name).exists():
        raise unknown_trace(name)


# What checks a name; the other values are whole numbers.
_NAMES: dict[str, Callable[[str], object]] = {
    "--model": model_of,
    "--gpu": gpu_of,
    "--trace": _trace,
}


def shipped() -> list[tuple[str, Path]]:
    """Names of the experiments and the configs that they have here."""
    paths = [(name, CONFIGS / f"{name}.toml") for name in EXPERIMENTS]
    return [(name, path) for name, path in paths if path.exists()]


def list_experiments(t: Translator) -> None:
    """Print a line for each experiment: its name and what it asks."""
    for name, _ in shipped():
        print(f"{name:<{_width()}}{t.message(note(name, 'question'))}")
    print(t("experiments.command", program=" ".join(program())))


def list_families(t: Translator) -> None:
    """Print a line for each family of models: whether it runs, and why not."""
    rows = families()
    wide = max(len(row.family) for row in rows) + 2
    width = get_terminal_size((1_000, 24)).columns  # a row stays on one line in a pipe
    print(wrap(t("families.about", version=rows[0].transformers), width))
    print(counted(rows, t))
    for row in rows:
        lines = wrap(": ".join(described(row, t)), max(20, width - wide)).split("\n")
        print(f"{row.family:<{wide}}" + f"\n{'':<{wide}}".join(lines))


def choose(t: Translator) -> tuple[str, ...] | None:
    """Ask what to run: the words of a command line, none for the walkthrough; None: leave."""
    names = [name for name, _ in shipped()]
    print(t("menu.head"))
    print(f"  0  {t('menu.walkthrough')}")
    for number, name in enumerate(names, 1):
        print(f" {number:>2}  {name:<{_width()}}{t.message(note(name, 'question'))}")
    for letter, key in (("f", "menu.plan"), ("t", "menu.simulate"), ("r", "menu.report")):
        print(f"  {letter}  {t(key)}")
    while True:
        said = _ask(t("menu.ask"))
        if said in _LEAVE:
            return None
        if said in ("", "0"):
            return ()
        if said == "f":
            return _command(t, "plan", _PLAN)
        if said == "t":
            return _command(t, "simulate", _SIMULATE)
        if said == "r":
            print(_last_report(t))
            return None
        if said.isdecimal() and len(said) < _DIGITS and 0 < int(said) <= len(names):
            said = names[int(said) - 1]
        if said in names:
            return _sized(t, said)
        print(t("menu.again", n=len(names)))


def _sized(t: Translator, name: str) -> tuple[str, ...] | None:
    """An experiment in the size that is asked for."""
    while (size := _ask(t("menu.size"))) not in _QUICK:
        if size in _LEAVE:
            return None
        print(t("menu.size_again"))
    return (name, "--quick") if _QUICK[size] else (name,)


def _command(t: Translator, command: str, values: Mapping[str, str]) -> tuple[str, ...] | None:
    """A command with a value for each option, that of ``values`` where none is named."""
    words = [command]
    for flag, value in values.items():
        said = _value(t, flag, value)
        if said is None:
            return None
        words += [flag, said]
    if command == "simulate":
        is_preset = words[words.index("--trace") + 1] in PRESETS
        words += ["--policy", "all", *(("--rate", "10") if is_preset else ())]
    return tuple(words)


def _value(t: Translator, flag: str, value: str) -> str | None:
    """A value that the command takes, asked for until it is one; None: leave."""
    question = t(f"menu.value_{flag.removeprefix('--').replace('-', '_')}", value=value)
    while (said := _ask(question, True) or value).lower() not in _LEAVE:
        try:
            if flag in _NAMES:
                _NAMES[flag](said)
            else:
                whole(flag, said)
        except UserError as error:
            print(t("error.prefix") + t.message(error.text))
        else:
            return said
    return None


def _last_report(t: Translator) -> str:
    """Where the newest report lies."""
    found = Path("reports").glob("*/report.html")
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    return t("menu.no_report") if newest is None else f"{t('brief.report')} {newest}"


def _ask(question: str, as_typed: bool = False) -> str:
    """In small letters unless ``as_typed``; digits as wide as Chinese signs are digits.

    The input's end is a leave.
    """

    def read() -> str:
        try:
            return input()
        except EOFError:
            print()
            return _LEAVE[0]

    print(question, end=" ", flush=True)
    said = unicodedata.normalize("NFKC", read_answer(read)).strip()
    return said if as_typed else said.lower()


def _width() -> int:
    return max(map(len, EXPERIMENTS)) + 2
