"""Consoles: of a run, an experiment, and each other command."""
