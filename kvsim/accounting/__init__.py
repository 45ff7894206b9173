"""Slot accounting: states, ledger, recount."""
