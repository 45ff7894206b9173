"""The experiments as a list, and as a menu for whoever sits at a terminal and asked for nothing."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from experiment.experiments.registry import EXPERIMENTS
from experiment.i18n import Translator
from experiment.interrupts import answer
from experiment.shipped import CONFIGS, program

_DIGITS = 9  # of thousands Python makes no number
_LEAVE = ("q", "quit", "exit")
_QUICK = {"": True, "quick": True, "f": False, "full": False}


def shipped() -> list[tuple[str, Path]]:
    """Names of the experiments and the configs that they have here."""
    paths = [(name, CONFIGS / f"{name}.toml") for name in EXPERIMENTS]
    return [(name, path) for name, path in paths if path.exists()]


def list_experiments(t: Translator) -> None:
    """Print a line for each experiment: its name and what it asks."""
    for name, _ in shipped():
        print(f"{name:<{_width()}}{t(_key(name, 'title'))}")
    print(t("experiments.command", program=" ".join(program())))


def choose(t: Translator) -> tuple[Path | None, bool] | None:
    """Ask which experiment; (its config, whether in quick size). None: the person leaves.

    The walkthrough has no config of its own.
    """
    offered = shipped()
    names = [name for name, _ in offered]
    print(t("experiments.menu_head"))
    print(f"  0  {t('experiments.menu_walkthrough')}")
    for number, (name, _) in enumerate(offered, 1):
        print(f" {number:>2}  {name:<{_width()}}{t(_key(name, 'title'))}")
    while True:
        said = _ask(t("experiments.menu_ask"))
        if said in _LEAVE:
            return None
        if said in ("", "0"):
            return None, False
        if said.isdecimal() and len(said) < _DIGITS and 0 < int(said) <= len(offered):
            said = names[int(said) - 1]
        if said in names:
            break
        print(t("experiments.menu_again", n=len(offered)))
    while (size := _ask(t("experiments.menu_size"))) not in _QUICK:
        if size in _LEAVE:
            return None
        print(t("experiments.menu_size_again"))
    return offered[names.index(said)][1], _QUICK[size]


def chosen_words(path: Path, quick: bool) -> tuple[str, ...]:
    """The words of a command line that asks for what was chosen."""
    return ("--config", f"configs/{path.name}", *(("--quick",) if quick else ()))


def _ask(question: str) -> str:
    """In small letters; digits as wide as Chinese signs are digits. The input's end is a leave."""

    def read() -> str:
        try:
            return input()
        except EOFError:
            print()
            return _LEAVE[0]

    print(question, end=" ", flush=True)
    return unicodedata.normalize("NFKC", answer(read)).strip().lower()


def _key(name: str, part: str) -> str:
    return f"experiments.{name.replace('-', '_')}.{part}"


def _width() -> int:
    return max(map(len, EXPERIMENTS)) + 2
