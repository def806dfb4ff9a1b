"""Types for annotations: the streams, devices and sizes that millpond's functions accept.

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
    """An object with CUDA's stream protocol, such as a stream of cuda.core or CuPy.

    Example:
        >>> import millpond
        >>> from millpond.typing import CudaStream
        >>> stream: CudaStream = millpond.Stream()
    """

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version, 0, and the handle (`cudaStream_t`) as a number."""
        ...


class CupyStream(Protocol):
    """A stream of CuPy, such as `Stream` or `ExternalStream`. Its `ptr` is the handle.

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
    """A stream of PyTorch. Its `cuda_stream` is the handle.

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
    """A stream of Numba.

    Its attribute `handle` is the `cudaStream_t`: a number, or a ctypes object whose `value` is the number.

    Example:
        >>> from millpond.typing import NumbaStream
        >>> from numba import cuda  # doctest: +SKIP
        >>> stream: NumbaStream = cuda.stream()  # doctest: +SKIP
    """

    @property
    def handle(self) -> object:
        """The handle as a number, or a ctypes object whose `value` is the number."""
        ...


class HostBuffer(Protocol):
    """An object with the buffer protocol, like `collections.abc.Buffer` of Python 3.12.

    Example:
        >>> from millpond.typing import HostBuffer
        >>> data: HostBuffer = bytearray(3)
    """

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return the memory."""
        ...


class HostArray(Protocol):
    """A NumPy array. Before Python 3.12, type checkers do not know that arrays have the buffer protocol.

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


#: A stream of millpond or another library, or a handle (`cudaStream_t`) as a number.
StreamLike: TypeAlias = Stream | CudaStream | CupyStream | TorchStream | NumbaStream | int

#: A device of millpond, or its number.
DeviceLike: TypeAlias = Device | int

#: A device of any library, or its number; None means the current device.
FrameworkDevice: TypeAlias = Device | CudaCoreDevice | TorchDevice | int | None

#: Contiguous host memory: an object with the buffer protocol, such as bytes or a NumPy array.
HostMemory: TypeAlias = HostBuffer | HostArray

#: A stack for a framework: a text such as "cuda+pool", or a resource. None means the device's default.
StackLike: TypeAlias = str | Resource | None

#: A size: a number of bytes, or a text such as "4GiB". Some functions also accept a share such as "50%".
Size: TypeAlias = float | str

#: A path of a file.
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
