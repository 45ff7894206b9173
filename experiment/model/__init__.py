"""The model that every arm loads: where it comes from, what is refused, how it is loaded."""
