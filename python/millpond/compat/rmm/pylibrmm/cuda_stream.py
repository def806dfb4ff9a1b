"""RMM's module `rmm.pylibrmm.cuda_stream`, where its versions up to 26.02 have the flags of a stream."""

from .stream import CudaStreamFlags

__all__ = ["CudaStreamFlags"]
