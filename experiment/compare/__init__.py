"""Compare two runs; baselines of counted figures, and gates on them."""
