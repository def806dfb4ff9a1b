"""RMM's module `rmm.pylibrmm.device_buffer`: the buffer, and functions that copy to and from addresses."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .... import Device, _arguments, _library
from .... import DeviceBuffer as _DeviceBuffer
from ....typing import StreamLike
from .stream import DEFAULT_STREAM
from .utils import as_stream


class DeviceBuffer(_DeviceBuffer):
    """Stream-ordered bytes from a memory resource: `millpond.DeviceBuffer` with RMM's methods.

    As in RMM, its `__cuda_array_interface__` has version 0 and names no stream. So the program must order its
    own work after the work on the buffer's stream.

    Args:
        ptr: The address to copy from, on the device or the host; 0 copies nothing.
        size: The size in bytes.
        stream: The stream in whose order the memory is allocated, used and freed.
        mr: The resource; None means the current device's default resource.

    Raises:
        MemoryError: The resource is out of memory.

    Example:
        >>> import millpond.compat.rmm as rmm
        >>> rmm.DeviceBuffer(size=100).nbytes
        100
    """

    __slots__ = ()

    @staticmethod
    def to_device(b: Any, stream: StreamLike = DEFAULT_STREAM) -> "DeviceBuffer":
        """Return a new buffer with a copy of host bytes, as the function `to_device` does.

        Args:
            b: An object with the buffer protocol: one-dimensional, contiguous, with items of one byte.
            stream: The buffer's stream.

        Example:
            >>> import millpond.compat.rmm as rmm
            >>> rmm.DeviceBuffer.to_device(b"abc").size
            3
        """
        return to_device(b, stream)

    def copy(self) -> "DeviceBuffer":
        """Return a copy of the buffer, in new memory of the same resource and on the same stream.

        Example:
            >>> import millpond.compat.rmm as rmm
            >>> rmm.to_device(b"abc").copy().tobytes()
            b'abc'
        """
        copy = DeviceBuffer(size=self.size, stream=self.stream, mr=self.mr)
        copy.copy_from_device(self)
        return copy

    def __copy__(self) -> "DeviceBuffer":
        return self.copy()

    def __deepcopy__(self, _memo: dict[int, Any]) -> "DeviceBuffer":
        return self.copy()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        _, arguments = super().__reduce_ex__(protocol)
        return to_device, arguments

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 0 of the CUDA array interface, as in RMM. It names no stream."""
        interface = super().__cuda_array_interface__
        del interface["stream"]
        return interface | {"version": 0}


def to_device(b: Any, stream: StreamLike = DEFAULT_STREAM) -> DeviceBuffer:
    """Return a new buffer with a copy of host bytes, and wait for the copy.

    Args:
        b: An object with the buffer protocol: one-dimensional, contiguous, with items of one byte.
        stream: The buffer's stream.

    Raises:
        TypeError: `b` does not support the buffer protocol, or the stream is None.
        ValueError: `b` has several dimensions, gaps, or items of several bytes. For a NumPy array with such
            items, pass `b.view("u1")`.
        MemoryError: The resource is out of memory.

    Example:
        >>> import millpond.compat.rmm as rmm
        >>> bytes(rmm.to_device(b"abc"))
        b'abc'
    """
    host = _bytes_of(b, "b")
    made = DeviceBuffer(size=len(host), stream=as_stream(stream))
    made.copy_from_host(host)
    return made


def _bytes_of(host: Any, name: str) -> memoryview:
    try:
        view = memoryview(host)
    except TypeError:
        allowed = "an object with the buffer protocol, such as bytes or a NumPy array"
        raise _arguments.wrong(TypeError, name, allowed, host) from None
    if view.ndim != 1 or view.itemsize != 1 or not view.c_contiguous:
        raise ValueError(
            f"`{name}` must be one contiguous dimension of bytes, but its number of dimensions is "
            f"{view.ndim}, its format is {view.format!r}, and its strides are {view.strides}"
        )
    return view.cast("B")


@contextmanager
def _device() -> Iterator[int | None]:
    """Yield libmillpond's handle of the current device."""
    device = _library.find_device(Device().ordinal)
    try:
        yield device
    finally:
        _library.device_free(device)


def copy_ptr_to_host(db: int, hb: Any, stream: StreamLike = DEFAULT_STREAM) -> None:
    """Copy from an address of the current device to host bytes, and wait for the copy.

    Args:
        db: The address of device memory that has at least as many bytes as `hb`.
        hb: A writable object with the buffer protocol: one-dimensional, contiguous, with items of one byte.
        stream: The stream of the copy.

    Raises:
        TypeError: `hb` does not support the buffer protocol or is read-only, `db` is not a number, or the
            stream is None.
        ValueError: `hb` is not plain bytes, or `db` is negative or too large.
        millpond.DriverError: The driver does not know the address.

    Example:
        >>> from millpond.compat.rmm.pylibrmm.device_buffer import copy_ptr_to_host, to_device
        >>> buffer, host = to_device(b"abc"), bytearray(3)
        >>> copy_ptr_to_host(buffer.ptr, host)
        >>> host
        bytearray(b'abc')
    """
    raw, view = as_stream(stream).ptr, _bytes_of(hb, "hb")
    db = _arguments.whole(db, "db", _arguments.ADDRESS)
    if view.readonly:
        raise _arguments.wrong(TypeError, "hb", "writable", hb)
    if not view:
        return
    target = (ctypes.c_char * len(view)).from_buffer(view)
    with _device() as device:
        copied = _library.copy_to_host(device, ctypes.addressof(target), db, len(view), raw)
        _library.check(copied)
        _library.check(_library.stream_synchronize(device, raw))


def copy_host_to_ptr(hb: Any, db: int, stream: StreamLike = DEFAULT_STREAM) -> None:
    """Copy host bytes to an address of the current device, and wait for the copy.

    Args:
        hb: An object with the buffer protocol: one-dimensional, contiguous, with items of one byte.
        db: The address of device memory that has at least as many bytes as `hb`.
        stream: The stream of the copy.

    Raises:
        TypeError: `hb` does not support the buffer protocol, `db` is not a number, or the stream is None.
        ValueError: `hb` is not plain bytes, or `db` is negative or too large.
        millpond.DriverError: The driver does not know the address.

    Example:
        >>> from millpond.compat.rmm.pylibrmm.device_buffer import DeviceBuffer, copy_host_to_ptr
        >>> buffer = DeviceBuffer(size=3)
        >>> copy_host_to_ptr(b"abc", buffer.ptr)
        >>> bytes(buffer)
        b'abc'
    """
    raw, view = as_stream(stream).ptr, _bytes_of(hb, "hb")
    db = _arguments.whole(db, "db", _arguments.ADDRESS)
    if not view:
        return
    kind = ctypes.c_char * len(view)
    # ctypes can return the address only of writable memory, so read-only bytes are copied first.
    source = kind.from_buffer_copy(view) if view.readonly else kind.from_buffer(view)
    with _device() as device:
        copied = _library.copy_to_device(device, db, ctypes.addressof(source), len(view), raw)
        _library.check(copied)
        _library.check(_library.stream_synchronize(device, raw))


def copy_device_to_ptr(d_src: int, d_dst: int, count: int, stream: StreamLike = DEFAULT_STREAM) -> None:
    """Copy between two addresses of the current device, in the order of a stream.

    The call does not wait for the copy.

    Args:
        d_src: The address to read.
        d_dst: The address to write.
        count: The number of bytes.
        stream: The stream of the copy.

    Raises:
        TypeError: `stream` is None or not a stream, or another argument is not a number.
        ValueError: An address or `count` is negative or too large.
        millpond.DriverError: The driver does not know an address.

    Example:
        >>> import millpond.compat.rmm as rmm
        >>> from millpond.compat.rmm.pylibrmm.device_buffer import copy_device_to_ptr
        >>> buffer, source = rmm.DeviceBuffer(size=3), rmm.to_device(b"abc")
        >>> copy_device_to_ptr(source.ptr, buffer.ptr, 3)
        >>> bytes(buffer)
        b'abc'
    """
    raw = as_stream(stream).ptr
    source = _arguments.whole(d_src, "d_src", _arguments.ADDRESS)
    target = _arguments.whole(d_dst, "d_dst", _arguments.ADDRESS)
    size = _arguments.whole(count, "count", "a number of bytes")
    if size:
        with _device() as device:
            _library.check(_library.copy_on_device(device, target, source, size, raw))


__all__ = ["DeviceBuffer", "copy_device_to_ptr", "copy_host_to_ptr", "copy_ptr_to_host", "to_device"]
