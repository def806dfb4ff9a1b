"""Types for annotations: what the functions of millpond take as a stream, as a device and as a size.

>>> import millpond
>>> from millpond.typing import Size, StreamLike
>>> def zeros(size: Size, stream: StreamLike) -> millpond.DeviceBuffer:
...     buffer = millpond.DeviceBuffer(size=millpond.mr.parse_bytes(size), stream=stream)
...     buffer.fill(0)
...     return buffer
>>> bytes(zeros("4B", millpond.DEFAULT_STREAM))
b'\\x00\\x00\\x00\\x00'
"""

import os
from typing import Any, Protocol, TypeAlias

from ._native import Device, Resource, Stream


class CudaStream(Protocol):
    """An object with CUDA's protocol for streams, as a stream of cuda.core and of CuPy has it.

    Example:
        >>> import millpond
        >>> from millpond.typing import CudaStream
        >>> stream: CudaStream = millpond.Stream()
    """

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version, 0, and the handle (`cudaStream_t`) as a number."""
        ...


class CupyStream(Protocol):
    """A stream of CuPy, or an external one: `ptr` is its handle.

    Example:
        >>> import millpond
        >>> from millpond.typing import CupyStream
        >>> stream: CupyStream = millpond.Stream()
    """

    @property
    def ptr(self) -> int:
        """The handle as a number."""
        ...


class TorchStream(Protocol):
    """A stream of PyTorch: `cuda_stream` is its handle.

    Example:
        >>> from millpond.typing import TorchStream
        >>> import torch  # doctest: +SKIP
        >>> stream: TorchStream = torch.cuda.Stream()  # doctest: +SKIP
    """

    @property
    def cuda_stream(self) -> int:
        """The handle as a number."""
        ...


class NumbaStream(Protocol):
    """A stream of Numba: `handle` is a number, or an object of ctypes with a `value`.

    Example:
        >>> from millpond.typing import NumbaStream
        >>> from numba import cuda  # doctest: +SKIP
        >>> stream: NumbaStream = cuda.stream()  # doctest: +SKIP
    """

    @property
    def handle(self) -> object:
        """The handle, or what holds it."""
        ...


class HostBuffer(Protocol):
    """An object with the buffer protocol: `collections.abc.Buffer` of Python 3.12.

    Example:
        >>> from millpond.typing import HostBuffer
        >>> data: HostBuffer = bytearray(3)
    """

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return the memory."""
        ...


class HostArray(Protocol):
    """An array of NumPy. Before Python 3.12, type checkers do not know that it is a buffer.

    Example:
        >>> import numpy as np
        >>> from millpond.typing import HostArray
        >>> array: HostArray = np.zeros(3)
    """

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's description of the memory."""
        ...


class CudaCoreDevice(Protocol):
    """A device of cuda.core.

    Example:
        >>> from millpond.typing import CudaCoreDevice
        >>> from cuda.core import Device  # doctest: +SKIP
        >>> device: CudaCoreDevice = Device(0)  # doctest: +SKIP
    """

    @property
    def device_id(self) -> int:
        """The device's number."""
        ...


class TorchDevice(Protocol):
    """A device of PyTorch.

    Example:
        >>> from millpond.typing import TorchDevice
        >>> import torch  # doctest: +SKIP
        >>> device: TorchDevice = torch.device("cuda", 0)  # doctest: +SKIP
    """

    @property
    def index(self) -> int | None:
        """The device's number, or None for PyTorch's current device."""
        ...


#: A stream: millpond's, one of another library, or a handle (`cudaStream_t`) as a number.
StreamLike: TypeAlias = Stream | CudaStream | CupyStream | TorchStream | NumbaStream | int

#: A device of millpond, or its number.
DeviceLike: TypeAlias = Device | int

#: A device of any library, or its number; None is the current device.
FrameworkDevice: TypeAlias = Device | CudaCoreDevice | TorchDevice | int | None

#: Contiguous memory of the host: an object with the buffer protocol, as bytes or an array of NumPy.
HostMemory: TypeAlias = HostBuffer | HostArray

#: A stack for a framework: a text as "cuda+pool", a resource, or None for the device's default.
StackLike: TypeAlias = str | Resource | None

#: A size: a number of bytes, or a text as "4GiB". Some functions also take a share, as "50%".
Size: TypeAlias = float | str

#: The path of a file.
FilePath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

__all__ = [
    "CudaCoreDevice",
    "CudaStream",
    "CupyStream",
    "DeviceLike",
    "FilePath",
    "FrameworkDevice",
    "HostArray",
    "HostBuffer",
    "HostMemory",
    "NumbaStream",
    "Size",
    "StackLike",
    "StreamLike",
    "TorchDevice",
    "TorchStream",
]
