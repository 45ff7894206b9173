"""Requests of a run: tokens, arrivals and times."""
