"""RMM's allocator for CuPy. It runs Python code in each allocation; `millpond.cupy.use()` avoids this."""

from typing import Any

from .... import Stream, _arguments, _library
from ..pylibrmm.device_buffer import DeviceBuffer


def rmm_cupy_allocator(nbytes: int) -> Any:
    """Allocate from the current device's default resource, for CuPy's current stream.

    Args:
        nbytes: The size in bytes.

    Returns:
        The memory; a `DeviceBuffer` owns it.

    Raises:
        MemoryError: The resource is out of memory.
        ImportError: CuPy is not installed.

    Example:
        >>> import cupy, millpond.compat.rmm as rmm  # doctest: +SKIP
        >>> cupy.cuda.set_allocator(rmm.rmm_cupy_allocator)  # doctest: +SKIP
    """
    size = _arguments.whole(nbytes, "nbytes", "a number of bytes")
    cuda = _library.framework("cupy", "cupy-cuda13x (or cupy-cuda12x)").cuda
    buffer = DeviceBuffer(size=size, stream=Stream(cuda.get_current_stream()))
    # Without the device's number, CuPy would ask the driver for the device of each address.
    memory = cuda.UnownedMemory(buffer.ptr, buffer.size, buffer, cuda.runtime.getDevice())
    return cuda.MemoryPointer(memory, 0)


__all__ = ["rmm_cupy_allocator"]
