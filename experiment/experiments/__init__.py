"""Experiments: each is a module that declares its cells, figures and findings.

    configs/NAME.toml ─► cells ─► lead: one process per arm, cell ──► record
                                                                         │
    figures, findings ◄── evaluate ◄── measured (repeats) ◄──────────────┤
                              ▲                                          │
                              └── predicted (kvsim, same lengths) ◄──────┘

A module here imports neither torch nor an arm: its cells are needed before a run, its findings
after it and whenever the run is rendered again. docs/experiments.md shows how to add one.
"""
