"""RMM's package `rmm.pylibrmm`: the classes of `rmm`, for programs that import them from this package."""

from . import (
    cuda_stream,
    cuda_stream_pool,
    device_buffer,
    helper,
    logger,
    memory_resource,
    stream,
    utils,
)
from .cuda_stream_pool import CudaStreamPool
from .device_buffer import DeviceBuffer
from .stream import CudaStreamFlags

__all__ = [
    "CudaStreamFlags",
    "CudaStreamPool",
    "DeviceBuffer",
    "cuda_stream",
    "cuda_stream_pool",
    "device_buffer",
    "helper",
    "logger",
    "memory_resource",
    "stream",
    "utils",
]
