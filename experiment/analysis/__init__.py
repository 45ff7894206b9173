"""From the log to results."""
