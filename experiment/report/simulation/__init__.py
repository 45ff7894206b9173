"""Reporters of simulations and plans: readers of ``sim.json`` and nothing else."""
