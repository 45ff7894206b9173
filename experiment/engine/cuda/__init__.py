"""Triton kernels and CUDA graphs."""
