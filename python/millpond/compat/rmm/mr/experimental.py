"""RMM's module `rmm.mr.experimental`."""

from ....mr import CudaAsyncManagedMemoryResource

__all__ = ["CudaAsyncManagedMemoryResource"]
