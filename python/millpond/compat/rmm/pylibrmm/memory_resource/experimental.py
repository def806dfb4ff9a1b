"""RMM's module `rmm.pylibrmm.memory_resource.experimental`."""

from ...mr.experimental import CudaAsyncManagedMemoryResource

__all__ = ["CudaAsyncManagedMemoryResource"]
