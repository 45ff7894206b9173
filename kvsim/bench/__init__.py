"""Benchmark of the simulator's speed."""
