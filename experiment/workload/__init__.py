"""Requests of a run: their tokens, their arrivals and their times."""
