"""Bounded reading, locks, caches and shipped files."""
