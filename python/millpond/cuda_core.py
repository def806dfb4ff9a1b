"""Lets `cuda.core` allocate from a millpond stack.

>>> import millpond.cuda_core
>>> mr = millpond.cuda_core.use()  # doctest: +SKIP

The stack becomes `Device().memory_resource`, which `Device.allocate` uses.
"""

from __future__ import annotations

import functools
from typing import Any

from . import _library
from ._native import Resource
from .typing import FrameworkDevice, StackLike


def _core() -> Any:
    return _library.framework("cuda.core", "cuda-core")


@functools.cache
def _class() -> Any:
    core = _core()
    if not hasattr(core, "MemoryResource"):  # before version 0.5 it is elsewhere
        core = _library.framework("cuda.core.experimental", "'cuda-core>=0.5.1'")

    class MillpondMemoryResource(core.MemoryResource):  # type: ignore[misc, name-defined]
        """Allocates and frees memory of a millpond stack in stream order."""

        def __init__(self, stack: StackLike = None, device: FrameworkDevice = None) -> None:
            ordinal = _library.ordinal_of(device, stack)
            self._resource = _library.prepare(stack, ordinal)
            self._ordinal = ordinal
            self._streams: dict[int, tuple[int, Any]] = {}

        @property
        def resource(self) -> Resource:
            """The millpond resource that serves the memory."""
            return self._resource

        def allocate(self, size: int, stream: Any = None, **options: Any) -> Any:
            handle = _stream_pointer(stream)
            ptr = self._resource.allocate(size, handle)
            self._streams[ptr] = handle, stream  # the stream must outlive the memory
            return self._buffer(ptr, size, stream)

        def _buffer(self, ptr: int, size: int, stream: Any) -> Any:
            # Since cuda.core 1.0, `from_handle` has the keyword `stream`. It accepts only streams of
            # cuda.core's own classes.
            kinds = tuple(getattr(core, name) for name in ("Stream", "GraphBuilder") if hasattr(core, name))
            if isinstance(stream, kinds):
                try:
                    return core.Buffer.from_handle(ptr, size, mr=self, stream=stream)
                except TypeError:  # raised before a buffer is made
                    pass
            return core.Buffer.from_handle(ptr, size, mr=self)

        # cuda.core 0.5 passes the stream by position, and 1.x by keyword.
        def deallocate(self, ptr: Any, size: int, stream: Any = None, **options: Any) -> None:
            ptr = int(ptr)
            handle = self._streams.pop(ptr, (0, None))[0]
            if stream is not None:
                handle = _stream_pointer(stream)
            self._resource.deallocate(ptr, size, handle)

        @property
        def is_device_accessible(self) -> bool:
            return self._resource.is_device_accessible

        @property
        def is_host_accessible(self) -> bool:
            return self._resource.is_host_accessible

        @property
        def is_managed(self) -> bool:
            return "managed" in self._resource.text.split("+")[0]

        @property
        def device_id(self) -> int:
            return self._ordinal

    return MillpondMemoryResource


def _stream_pointer(stream: Any) -> int:
    # The attribute `stream` of a graph builder is the stream that it captures.
    if stream is not None and not hasattr(stream, "__cuda_stream__") and hasattr(stream, "stream"):
        stream = stream.stream
    return _library.stream_pointer(stream)


def memory_resource(stack: StackLike = None, device: FrameworkDevice = None) -> Any:
    """Return a `cuda.core.MemoryResource` that takes memory from a device's stack.

    Args:
        stack: The stack as text, or a resource. It becomes the device's default. With None, the device keeps
            its default, but `cuda+pool` replaces plain CUDA memory.
        device: A device of millpond or cuda.core, or its number; None means the current device.

    Returns:
        The memory resource. Its method `allocate(size, stream=...)` expects the size in bytes.

    Raises:
        ImportError: cuda.core is not installed.
        StackError: `stack` is malformed.
        NoDeviceError: There is no such device.

    Example:
        >>> import millpond.cuda_core
        >>> mr = millpond.cuda_core.memory_resource("cuda+pool")  # doctest: +SKIP
        >>> buffer = mr.allocate(1000)  # doctest: +SKIP
    """
    return _class()(stack, device)


def use(stack: StackLike = None, device: FrameworkDevice = None) -> Any:
    """Use a stack as the `memory_resource` of a cuda.core device.

    Args:
        stack: The stack as text, or a resource. It becomes the device's default. With None, the device keeps
            its default, but `cuda+pool` replaces plain CUDA memory.
        device: A device of millpond or cuda.core, or its number; None means the current device.

    Returns:
        The memory resource, which `Device.allocate` then uses.

    Raises:
        ImportError: cuda.core is not installed.
        StackError: `stack` is malformed.
        NoDeviceError: There is no such device.

    Example:
        >>> import millpond.cuda_core
        >>> millpond.cuda_core.use("cuda+pool")  # doctest: +SKIP
        >>> from cuda.core import Device  # doctest: +SKIP
        >>> buffer = Device().allocate(1000)  # doctest: +SKIP
    """
    made = memory_resource(stack, device)
    _core().Device(made.device_id).memory_resource = made
    return made
