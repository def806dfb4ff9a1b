"""RMM's module `rmm.pylibrmm.cuda_stream`. RMM has its stream flags there in versions up to 26.02."""

from .stream import CudaStreamFlags

__all__ = ["CudaStreamFlags"]
