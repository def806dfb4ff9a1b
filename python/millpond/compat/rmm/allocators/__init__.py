"""RMM's package `rmm.allocators`: allocators for CuPy, Numba and PyTorch. None is imported before its use."""

from . import cupy, numba, torch

__all__ = ["cupy", "numba", "torch"]
