"""Draws the packages with their imports, of two checkouts side by side.

    python tests/import_matrix.py BEFORE AFTER docs/pictures/imports.png

A row imports the columns of its dots. Whoever imports more, directly or not, stands further up, so
that a dot below the diagonal, in red, closes a cycle.
"""

import importlib
import sys
from pathlib import Path

import grimp
import matplotlib.pyplot as plt


def imports(checkout: Path) -> tuple[list[str], set[tuple[int, int]]]:
    """Returns packages and loose modules of ``checkout``, and pairs (importer, imported)."""
    sys.path.insert(0, str(checkout))
    importlib.invalidate_caches()
    graph = grimp.build_graph("experiment", "kvsim", cache_dir=None)
    sys.path.pop(0)
    units = sorted(m for m in graph.modules if m.count(".") == 1)
    for unit in units:
        graph.squash_module(unit)
    units.sort(key=lambda unit: -len(graph.find_upstream_modules(unit)))
    place = {unit: k for k, unit in enumerate(units)}
    pairs = {
        (place[a], place[b])
        for a in units
        for b in graph.find_modules_directly_imported_by(a)
        if b in place
    }
    return units, pairs


def draw(before: Path, after: Path, picture: Path) -> None:
    """Writes ``picture``: one matrix for each checkout, dots below the diagonal in red."""
    figure, panels = plt.subplots(1, 2, figsize=(13, 6.6), layout="constrained")
    for panel, checkout, when in zip(panels, (before, after), ("before", "after"), strict=True):
        units, pairs = imports(checkout)
        upward = {pair for pair in pairs if pair[0] > pair[1]}
        for some, colour in ((pairs - upward, "#2b6cb0"), (upward, "#c53030")):
            panel.scatter(
                [b for _, b in some], [a for a, _ in some], s=900 / len(units), c=colour, marker="s"
            )
        counts = f"{len(units)} packages and modules, {len(pairs)} imports, {len(upward)} upwards"
        panel.set(title=f"{when}: {counts}")
        panel.set(
            xlim=(-1, len(units)), ylim=(len(units), -1), aspect="equal", xticks=[], yticks=[]
        )
        panel.plot([-1, len(units)], [-1, len(units)], color="#cbd5e0", linewidth=0.8)
        if len(units) < 60:
            names = [unit.removeprefix("experiment.") for unit in units]
            panel.set_yticks(range(len(units)), names, fontsize=8)
    figure.savefig(picture, dpi=90)


if __name__ == "__main__":
    draw(*(Path(word) for word in sys.argv[1:]))
