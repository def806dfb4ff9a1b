"""RMM's allocator for CuPy; `millpond.cupy.use()` serves CuPy without Python's part in each allocation."""

from typing import Any

from .... import Stream, _library
from ..pylibrmm.device_buffer import DeviceBuffer


def rmm_cupy_allocator(nbytes: int) -> Any:
    """Allocate from the current resource, for CuPy's current stream.

    Args:
        nbytes: The size in bytes.

    Returns:
        The memory, whose owner is a `DeviceBuffer`.

    Raises:
        MemoryError: Memory is out.
        ImportError: CuPy is not installed.

    Example:
        >>> import cupy, millpond.compat.rmm as rmm  # doctest: +SKIP
        >>> cupy.cuda.set_allocator(rmm.rmm_cupy_allocator)  # doctest: +SKIP
    """
    cuda = _library.framework("cupy", "cupy-cuda13x (or cupy-cuda12x)").cuda
    buffer = DeviceBuffer(size=nbytes, stream=Stream(cuda.get_current_stream()))
    # The number of the device is given, as CuPy asks the driver for each address otherwise.
    memory = cuda.UnownedMemory(buffer.ptr, buffer.size, buffer, cuda.runtime.getDevice())
    return cuda.MemoryPointer(memory, 0)


__all__ = ["rmm_cupy_allocator"]
