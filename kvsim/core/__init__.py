"""Scheduler, block pool and the step plan that both the engine and the simulator follow."""
