"""The simulator's benchmark."""
