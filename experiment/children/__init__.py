"""Entry points of child processes."""
