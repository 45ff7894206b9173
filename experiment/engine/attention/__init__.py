"""Attention through block tables: several kernels with one signature."""
