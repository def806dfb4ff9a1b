"""RMM's package `rmm.allocators`: allocators for CuPy, Numba and PyTorch. Each is imported on first use."""

from . import cupy, numba, torch

__all__ = ["cupy", "numba", "torch"]
