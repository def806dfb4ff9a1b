"""RMM's package `rmm._cuda`: functions that ask CUDA about its devices."""

from . import gpu, stream

__all__ = ["gpu", "stream"]
