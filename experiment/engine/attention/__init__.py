"""Attention over block tables: one signature, several kernels."""
