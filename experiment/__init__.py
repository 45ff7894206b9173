"""Measures a contiguous and a paged KV cache side by side; see README.md."""

from experiment.local_settings import ignore_local_settings

ignore_local_settings()
__version__ = "0.1.0"
