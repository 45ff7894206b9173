"""Replay an arm's log step by step."""
