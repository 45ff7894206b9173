"""Slot accounting: states and ledger."""
