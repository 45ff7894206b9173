"""The simulator's commands: words → kvsim's questions → a record that reports read.

words ─► values, names ─► trace, setup ─► cells ─► sim.json ─► console, CSV, HTML
"""
