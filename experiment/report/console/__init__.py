"""Consoles of all commands."""
