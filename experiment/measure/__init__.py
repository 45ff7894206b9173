"""Measures a run or an experiment, or what is missing of one, into a record."""
