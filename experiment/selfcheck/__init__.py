"""Tests the instrument with known amounts of memory."""
