"""RMM's module `rmm.pylibrmm.cuda_stream`, which holds the flags of a stream in versions up to 26.02."""

from .stream import CudaStreamFlags

__all__ = ["CudaStreamFlags"]
