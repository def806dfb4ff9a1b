"""RMM's module `rmm.pylibrmm.cuda_stream_pool`."""

from ....stream import CudaStreamPool

__all__ = ["CudaStreamPool"]
