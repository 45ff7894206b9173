"""Capacity planning and preemption cost."""
