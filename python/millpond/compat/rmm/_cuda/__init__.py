"""RMM's package `rmm._cuda`: questions about CUDA's devices."""

from . import gpu, stream

__all__ = ["gpu", "stream"]
