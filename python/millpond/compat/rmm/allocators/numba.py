"""RMM's memory manager for Numba, `RMMNumbaManager`: each allocation asks for the current resource.

>>> import millpond.compat.rmm
>>> from numba import cuda  # doctest: +SKIP
>>> cuda.set_memory_manager(millpond.compat.rmm.allocators.numba.RMMNumbaManager)  # doctest: +SKIP

or `NUMBA_CUDA_MEMORY_MANAGER=millpond.compat.rmm.allocators.numba`. As with RMM, memory goes back in the
order of the default stream. `millpond.numba.use()` also knows streams and deferred frees, and its IPC knows
pools; it takes the resource of its first use.
"""

import functools
import sys
import weakref
from typing import Any

from .... import mr as _mr
from ...._errors import DriverError
from ....numba import _driver_asking
from ..pylibrmm.device_buffer import DeviceBuffer

RMMNumbaManager: Any
_numba_memory_manager: Any


@functools.cache
def manager_class(driver: Any) -> Any:
    """Return the memory manager's class for a driver module: numba-cuda's or numba-cuda-mlir's.

    Args:
        driver: The module `numba.cuda.cudadrv.driver`.

    Example:
        >>> from numba.cuda.cudadrv import driver  # doctest: +SKIP
        >>> from millpond.compat.rmm.allocators import numba
        >>> driver.set_memory_manager(numba.manager_class(driver))  # doctest: +SKIP
    """

    class RMMNumbaManager(
        driver.GetIpcHandleMixin,  # type: ignore[misc]
        driver.HostOnlyCUDAMemoryManager,  # type: ignore[misc]
    ):
        """Device memory from the resource that is the current one at each allocation."""

        interface_version = 1

        def initialize(self) -> None:
            """Nothing is prepared: the current resource is as the program has set it."""

        def memalloc(self, size: int) -> Any:
            """Allocate `size` bytes. Memory that is out, and what else the driver refuses, is MemoryError."""
            try:
                buffer = DeviceBuffer(size=size)
            except DriverError as error:
                raise MemoryError(str(error)) from error
            # A reset of the context empties the dict. The key is not the address, which others get after it.
            key = object()
            self.allocations[key] = buffer
            end = functools.partial(self.allocations.pop, key, None)
            context, pointer = weakref.proxy(self.context), driver.binding.CUdeviceptr(buffer.ptr)
            return driver.MemoryPointer(context, pointer, size, finalizer=end)

        def get_memory_info(self) -> Any:
            """Return the free and total bytes that the current resource knows of."""
            free, total = _mr.get_current_device_resource().memory_info()
            return driver.MemoryInfo(free=free, total=total)

    return RMMNumbaManager


def __getattr__(name: str) -> Any:
    if name in ("RMMNumbaManager", "_numba_memory_manager"):
        return manager_class(_driver_asking(sys._getframe(1)))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
