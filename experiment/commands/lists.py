"""Lists that ``--list`` and ``--list-experiments`` print."""

from __future__ import annotations

import argparse
from shutil import get_terminal_size

from experiment.experiments.findings import note
from experiment.experiments.registry import EXPERIMENTS
from experiment.files.shipped import program
from experiment.model.families import counted, described, families
from experiment.report.console.wrap import wrap
from experiment.text import Translator


def show_list(options: argparse.Namespace, t: Translator) -> None:
    """Print the list that ``--list`` names."""
    if options.list == "families":
        list_families(t)
        return
    from experiment.report.console import simulation
    from experiment.simulate.names import listing, model_notes

    notes = model_notes() if options.list == "models" else []
    simulation.show_list(options.list, listing(options.list), notes, t.lang, options.ascii)


def questions(t: Translator) -> list[str]:
    """Name and question of each experiment, in the order of :data:`EXPERIMENTS`."""
    width = max(map(len, EXPERIMENTS)) + 2
    return [f"{name:<{width}}{t.message(note(name, 'question'))}" for name in EXPERIMENTS]


def list_experiments(t: Translator) -> None:
    """Print the name and question of each experiment."""
    for row in questions(t):
        print(row)
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
