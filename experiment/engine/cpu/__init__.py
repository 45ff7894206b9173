"""Compiled loops and packed weights for the CPU."""
