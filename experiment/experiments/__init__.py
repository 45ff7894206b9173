"""The experiments: each a small module that says what varies, what is looked at, what it shows.

    configs/NAME.toml ─► cells ─► lead: one process an arm and cell ─► record
                                                                         │
    figures, findings ◄── evaluate ◄── measured (repeats) ◄──────────────┤
                              ▲                                          │
                              └── foretold (kvsim, the same lengths) ◄───┘

A module here imports neither torch nor an arm: it is asked before a run for its cells and after
it for its findings, also when an old run is drawn again. docs/experiments.md has the recipe.
"""
