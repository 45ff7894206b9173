"""Pages of other commands, and the index of all."""
