"""The interactive menu."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from experiment.commands.lists import questions
from experiment.commands.values import whole
from experiment.experiments.registry import EXPERIMENTS
from experiment.process.interrupts import read_answer
from experiment.simulate.names import gpu_of, model_of, unknown_trace
from experiment.text import Translator
from experiment.text.errors import UserError, user_error
from kvsim.traces.generate import PRESETS

T = TypeVar("T")
_DIGITS = 9  # Python refuses to convert thousands of digits
_LEAVE = ("q", "quit", "exit")
_SIZES = {"": ("--quick",), "quick": ("--quick",), "f": (), "full": ()}
# Commands by letter: their options that the menu asks for, with defaults.
_MODEL = {"--model": "llama-3.1-8b", "--gpu": "rtx-4090", "--gpus": "1"}
_COMMANDS: Mapping[str, tuple[str, dict[str, str]]] = {
    "f": ("plan", {**_MODEL, "--prompt-tokens": "1000", "--new-tokens": "300"}),
    "t": ("simulate", {"--trace": "sharegpt-like", **_MODEL}),
}


def _trace(name: str) -> None:
    if name not in PRESETS and not Path(name).exists():
        raise unknown_trace(name)


# Validation of names; other values are integers.
_NAMES: dict[str, Callable[[str], object]] = {
    "--model": model_of,
    "--gpu": gpu_of,
    "--trace": _trace,
}


def choose(t: Translator) -> tuple[str, ...] | None:
    """Show the menu; return the words of a command line, or None to leave."""
    print(t("menu.head"))
    print(f"  0  {t('menu.walkthrough')}")
    for number, row in enumerate(questions(t), 1):
        print(f" {number:>2}  {row}")
    for letter, key in (("f", "menu.plan"), ("t", "menu.simulate"), ("r", "menu.report")):
        print(f"  {letter}  {t(key)}")
    try:
        chosen = _ask(t, t("menu.ask"), _entry)
        if chosen in _COMMANDS:
            return _ask_values(t, *_COMMANDS[chosen])
        if chosen in EXPERIMENTS:
            return (chosen, *_ask(t, t("menu.size"), _size))
    except EOFError:
        return None
    if chosen == "0":
        return ()
    print(_last_report(t))
    return None


def _entry(answer: str) -> str:
    """The name of an experiment, or a letter or 0 of the menu."""
    answer, names = answer.lower() or "0", list(EXPERIMENTS)
    if answer.isdecimal() and len(answer) < _DIGITS and 0 < int(answer) <= len(names):
        return names[int(answer) - 1]
    if answer not in (*names, *_COMMANDS, "0", "r"):
        raise user_error("menu.again", n=len(names))
    return answer


def _size(answer: str) -> tuple[str, ...]:
    if answer.lower() not in _SIZES:
        raise user_error("menu.size_again")
    return _SIZES[answer.lower()]


def _ask_values(t: Translator, command: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """Ask for the value of each option, with defaults in ``values``."""
    words = [command]
    for flag, value in values.items():

        def read(answer: str, flag: str = flag, value: str = value) -> str:
            answer = answer or value
            if flag in _NAMES:
                _NAMES[flag](answer)
            else:
                whole(flag, answer)
            return answer

        words += [flag, _ask(t, t("menu.value", flag=flag, value=value), read)]
    if command == "simulate":
        is_preset = words[words.index("--trace") + 1] in PRESETS
        words += ["--policy", "all", *(("--rate", "10") if is_preset else ())]
    return tuple(words)


def _last_report(t: Translator) -> str:
    """Message with the path of the newest report."""
    reports = Path("reports").glob("*/report.html")
    newest = max(reports, key=lambda path: path.stat().st_mtime, default=None)
    return t("menu.no_report") if newest is None else f"{t('brief.report')} {newest}"


def _ask(t: Translator, question: str, read: Callable[[str], T]) -> T:
    """Ask until ``read`` accepts the answer; full-width characters are normalised.

    Raises:
        EOFError: the user leaves, or the input ends.
    """

    def line() -> str:
        try:
            return input()
        except EOFError:
            print()
            return _LEAVE[0]

    while True:
        print(question, end=" ", flush=True)
        answer = unicodedata.normalize("NFKC", read_answer(line)).strip()
        if answer.lower() in _LEAVE:
            raise EOFError
        try:
            return read(answer)
        except UserError as error:
            print(t.message(error.text))
