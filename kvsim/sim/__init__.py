"""Simulation of one policy on a virtual clock."""
