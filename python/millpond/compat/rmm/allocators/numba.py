"""RMM's memory manager for Numba, `RMMNumbaManager`. It allocates from the current default resource.

>>> import millpond.compat.rmm
>>> from numba import cuda  # doctest: +SKIP
>>> cuda.set_memory_manager(millpond.compat.rmm.allocators.numba.RMMNumbaManager)  # doctest: +SKIP

The environment variable `NUMBA_CUDA_MEMORY_MANAGER=millpond.compat.rmm.allocators.numba` does the same
without a change to the program. As in RMM, memory is freed in the order of the default stream.
`millpond.numba.use()` sets another manager, which also supports other streams, deferred frees, and IPC for
pools. But that manager always uses the resource that was the default at its first allocation.
"""

import functools
import sys
import weakref
from typing import Any

from .... import _arguments
from .... import mr as _mr
from ...._errors import DriverError
from ....numba import _driver_asking
from ..pylibrmm.device_buffer import DeviceBuffer

RMMNumbaManager: Any
_numba_memory_manager: Any


def manager_class(driver: Any) -> Any:
    """Return the class of the memory manager for the driver module of numba-cuda or numba-cuda-mlir.

    Args:
        driver: The module `numba.cuda.cudadrv.driver`.

    Raises:
        TypeError: `driver` is not such a module.

    Example:
        >>> from numba.cuda.cudadrv import driver  # doctest: +SKIP
        >>> from millpond.compat.rmm.allocators import numba
        >>> driver.set_memory_manager(numba.manager_class(driver))  # doctest: +SKIP
    """
    _arguments.has(driver, "driver", "HostOnlyCUDAMemoryManager", "the module `numba.cuda.cudadrv.driver`")
    return _class_of(driver)


@functools.cache
def _class_of(driver: Any) -> Any:
    class RMMNumbaManager(
        driver.GetIpcHandleMixin,  # type: ignore[misc]
        driver.HostOnlyCUDAMemoryManager,  # type: ignore[misc]
    ):
        """Allocates device memory from the resource that is the default at each allocation."""

        interface_version = 1

        def initialize(self) -> None:
            """Do nothing, because the program itself sets the default resource."""

        def memalloc(self, size: int) -> Any:
            """Allocate `size` bytes. Every error of the driver becomes a MemoryError."""
            try:
                buffer = DeviceBuffer(size=size)
            except DriverError as error:
                raise MemoryError(str(error)) from error
            # A reset of the context empties the dict. The address cannot be the key, because a later block
            # may have the same address.
            key = object()
            self.allocations[key] = buffer
            end = functools.partial(self.allocations.pop, key, None)
            context, pointer = weakref.proxy(self.context), driver.binding.CUdeviceptr(buffer.ptr)
            return driver.MemoryPointer(context, pointer, size, finalizer=end)

        def get_memory_info(self) -> Any:
            """Return the free and total bytes that the default resource reports."""
            free, total = _mr.get_current_device_resource().memory_info()
            return driver.MemoryInfo(free=free, total=total)

    return RMMNumbaManager


def __getattr__(name: str) -> Any:
    if name in ("RMMNumbaManager", "_numba_memory_manager"):
        return manager_class(_driver_asking(sys._getframe(1)))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
