"""List of the experiments, and the interactive menu."""

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

_DIGITS = 9  # Python refuses to convert thousands of digits
_LEAVE = ("q", "quit", "exit")
_QUICK = {"": True, "quick": True, "f": False, "full": False}
# Options that the menu asks for, with defaults.
_MODEL = {"--model": "llama-3.1-8b", "--gpu": "rtx-4090", "--gpus": "1"}
_PLAN = {**_MODEL, "--prompt-tokens": "1000", "--new-tokens": "300"}
_SIMULATE = {"--trace": "sharegpt-like", **_MODEL}


def _trace(name: str) -> None:
    if name not in PRESETS and not Path(name).exists():
        raise unknown_trace(name)


# Validation of names; other values are integers.
_NAMES: dict[str, Callable[[str], object]] = {
    "--model": model_of,
    "--gpu": gpu_of,
    "--trace": _trace,
}


def shipped() -> list[tuple[str, Path]]:
    """Names of the experiments and paths of their configs."""
    paths = [(name, CONFIGS / f"{name}.toml") for name in EXPERIMENTS]
    return [(name, path) for name, path in paths if path.exists()]


def list_experiments(t: Translator) -> None:
    """Print the name and question of each experiment."""
    for name, _ in shipped():
        print(f"{name:<{_width()}}{t.message(note(name, 'question'))}")
    print(t("experiments.command", program=" ".join(program())))


def list_families(t: Translator) -> None:
    """Print whether each family of models is supported, and why not."""
    rows = families()
    wide = max(len(row.family) for row in rows) + 2
    width = get_terminal_size((1_000, 24)).columns  # a row stays on one line in a pipe
    print(wrap(t("families.about", version=rows[0].transformers), width))
    print(counted(rows, t))
    for row in rows:
        lines = wrap(": ".join(described(row, t)), max(20, width - wide)).split("\n")
        print(f"{row.family:<{wide}}" + f"\n{'':<{wide}}".join(lines))


def choose(t: Translator) -> tuple[str, ...] | None:
    """Show the menu; return the words of a command line, or None to leave."""
    names = [name for name, _ in shipped()]
    print(t("menu.head"))
    print(f"  0  {t('menu.walkthrough')}")
    for number, name in enumerate(names, 1):
        print(f" {number:>2}  {name:<{_width()}}{t.message(note(name, 'question'))}")
    for letter, key in (("f", "menu.plan"), ("t", "menu.simulate"), ("r", "menu.report")):
        print(f"  {letter}  {t(key)}")
    while True:
        answer = _ask(t("menu.ask"))
        if answer in _LEAVE:
            return None
        if answer in ("", "0"):
            return ()
        if answer == "f":
            return _ask_values(t, "plan", _PLAN)
        if answer == "t":
            return _ask_values(t, "simulate", _SIMULATE)
        if answer == "r":
            print(_last_report(t))
            return None
        if answer.isdecimal() and len(answer) < _DIGITS and 0 < int(answer) <= len(names):
            answer = names[int(answer) - 1]
        if answer in names:
            return _ask_size(t, answer)
        print(t("menu.again", n=len(names)))


def _ask_size(t: Translator, name: str) -> tuple[str, ...] | None:
    """Ask for the size of an experiment; return its words, or None to leave."""
    while (size := _ask(t("menu.size"))) not in _QUICK:
        if size in _LEAVE:
            return None
        print(t("menu.size_again"))
    return (name, "--quick") if _QUICK[size] else (name,)


def _ask_values(t: Translator, command: str, values: Mapping[str, str]) -> tuple[str, ...] | None:
    """Ask for the value of each option, with defaults in ``values``; None: leave."""
    words = [command]
    for flag, value in values.items():
        answer = _ask_value(t, flag, value)
        if answer is None:
            return None
        words += [flag, answer]
    if command == "simulate":
        is_preset = words[words.index("--trace") + 1] in PRESETS
        words += ["--policy", "all", *(("--rate", "10") if is_preset else ())]
    return tuple(words)


def _ask_value(t: Translator, flag: str, value: str) -> str | None:
    """Ask for a value until it is valid; None: leave."""
    question = t(f"menu.value_{flag.removeprefix('--').replace('-', '_')}", value=value)
    while (answer := _ask(question, True) or value).lower() not in _LEAVE:
        try:
            if flag in _NAMES:
                _NAMES[flag](answer)
            else:
                whole(flag, answer)
        except UserError as error:
            print(t("error.prefix") + t.message(error.text))
        else:
            return answer
    return None


def _last_report(t: Translator) -> str:
    """Message with the path of the newest report."""
    reports = Path("reports").glob("*/report.html")
    newest = max(reports, key=lambda path: path.stat().st_mtime, default=None)
    return t("menu.no_report") if newest is None else f"{t('brief.report')} {newest}"


def _ask(question: str, as_typed: bool = False) -> str:
    """Read an answer, in lower case unless ``as_typed``; full-width characters are normalised.

    The end of input means leave.
    """

    def read() -> str:
        try:
            return input()
        except EOFError:
            print()
            return _LEAVE[0]

    print(question, end=" ", flush=True)
    answer = unicodedata.normalize("NFKC", read_answer(read)).strip()
    return answer if as_typed else answer.lower()


def _width() -> int:
    return max(map(len, EXPERIMENTS)) + 2
