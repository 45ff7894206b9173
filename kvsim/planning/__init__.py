"""What fits, and what preemption costs."""
