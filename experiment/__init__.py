"""Measures a contiguous and a paged KV cache side by side; see README.md."""

__version__ = "0.1.0"
