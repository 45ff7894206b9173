"""The log of a run: written, read, resumed and checked."""
