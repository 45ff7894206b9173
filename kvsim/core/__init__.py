"""Block pool, scheduler and the step plan that engine and simulator share."""
