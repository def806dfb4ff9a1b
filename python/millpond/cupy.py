"""Lets CuPy allocate from a millpond stack.

>>> import millpond.cupy
>>> millpond.cupy.use("cuda+pool")  # doctest: +SKIP

When CuPy makes an array, the array belongs to CuPy's current stream. The array's memory is freed in the order
of this stream. If another stream uses the array, call `record_stream`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import _arguments, _errors, _library, _locks
from . import mr as _mr
from ._native import CupyFunctions
from .typing import StackLike, StreamLike

_state: dict[str, Any] = {"stack": None, "prepared": set(), "before": None, "limits": {}, "functions": None}
_lock = _locks.lock()
#: The requests in progress on devices with a limit, each with its device, thread and bytes.
_asked = threading.Condition(_lock)
_requests: list[tuple[int, int, int]] = []
#: The most seconds that a request waits for other requests. The wait must end, because another request may
#: run the program's code, and this code may wait for the first request.
_PATIENCE = 1.0


def _forget_other_threads() -> None:
    # A forked child has only the thread that forked. The requests of this thread continue in the child.
    _requests[:] = [request for request in _requests if request[1] == threading.get_ident()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


class _Block:
    """Owns a block. Keeps the block's stream alive, because the block is freed in the stream's order."""

    __slots__ = ("made_in", "ptr", "stream")

    def __init__(self, ptr: int, stream: Any) -> None:
        self.ptr, self.stream, self.made_in = ptr, stream, _library.generation[0]

    def __del__(self, free: Any = _library.free, generation: list[int] = _library.generation) -> None:
        if self.made_in == generation[0]:
            free(self.ptr, 0, 0, None)


def _allocate(cupy: Any, size: int, device: int) -> tuple[int, Any]:
    """Return the address of a new block, and the block's stream."""
    if device not in _state["prepared"]:
        _prepare(device)
    # The handle 2 means CuPy's per-thread default stream: each thread has its own.
    stream = cupy.cuda.get_current_stream()
    if device in _state["limits"]:
        # No lock is held here, because `_malloc` may wait or run the program's functions.
        with _asking(cupy.cuda.memory, device, size):
            return _malloc(cupy, size, device, stream), stream
    return _malloc(cupy, size, device, stream), stream


def _malloc(cupy: Any, size: int, device: int, stream: Any) -> int:
    ptr: int = _library.malloc(size, device, stream.ptr)
    if not ptr:
        raise _error(cupy.cuda.memory, device, size)
    return ptr


def _current_stream_function() -> Any:
    """Return the address of a C function of CuPy. That function returns the current stream's handle."""
    import cupy_backends.cuda.stream as module

    name, capsule = b"intptr_t (void)", module.__pyx_capi__["get_current_stream_ptr"]
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = ctypes.py_object, ctypes.c_char_p
    return api.PyCapsule_GetPointer(capsule, name)


def _make_allocator(cupy: Any) -> Callable[[int], Any]:
    try:
        # Before version 14, CuPy does not check whether a C function has failed.
        if int(cupy.__version__.split(".")[0]) < 14:
            return _make_python_allocator(cupy)
        function = _current_stream_function()
    except (AttributeError, ImportError, KeyError, ValueError):
        return _make_python_allocator(cupy)

    def otherwise(size: int, device: int) -> int:
        ptr, stream = _allocate(cupy, size, device)
        if stream.ptr > 2:  # a default stream never ends
            CupyFunctions.keep(ptr, stream)
        return ptr

    functions = _state["functions"] = CupyFunctions(function, cupy.cuda.get_current_stream, otherwise)
    for device in _state["prepared"]:
        _note_plain(device)
    made = cupy.cuda.memory.CFunctionAllocator(
        functions.parameter, functions.malloc, functions.free, functions
    )
    malloc: Callable[[int], Any] = made.malloc
    return malloc


def _make_python_allocator(cupy: Any) -> Callable[[int], Any]:
    memory, get_device = cupy.cuda.memory, cupy.cuda.runtime.getDevice

    def allocate(size: int) -> Any:
        # Without the device's number, CuPy would ask the driver for the device of each address.
        device = get_device()
        if size == 0:
            return memory.MemoryPointer(memory.UnownedMemory(0, 0, None, device), 0)
        ptr, stream = _allocate(cupy, size, device)
        return memory.MemoryPointer(memory.UnownedMemory(ptr, size, _Block(ptr, stream), device), 0)

    return allocate


def _note_plain(device: int) -> None:
    """Tell the C functions whether they may serve a device without a call of Python code."""
    if _state["functions"] is not None:
        is_plain = device in _state["prepared"] and device not in _state["limits"]
        _state["functions"].set_plain(device, is_plain)


def _counts(device: int) -> dict[str, int]:
    try:
        return _mr.get_per_device_resource(_library.device_of(device)).counts()
    except _errors.UnsupportedError:
        return {"bytes_in_use": 0, "bytes_reserved": 0, "blocks_free": 0}


@contextlib.contextmanager
def _asking(memory: Any, device: int, size: int) -> Iterator[None]:
    """Hold the memory in use, plus all requests in progress, within the limit of a device.

    This sum counts a request in progress twice if its bytes are already in use. So a new request waits for
    the other requests if it would fit without them. A request inside another request of the same thread does
    not wait, because other threads may wait for the outer request.
    """
    request, deadline = (device, threading.get_ident(), size), time.monotonic() + _PATIENCE
    with _asked:
        while (limit := _state["limits"].get(device)) is not None:
            used = _counts(device)["bytes_in_use"]
            asked = sum(other[2] for other in _requests if other[0] == device)
            if used + asked + size <= limit:
                break
            is_nested = any(other[1] == request[1] for other in _requests)
            patience = deadline - time.monotonic()
            if is_nested or used + size > limit or patience <= 0:
                raise memory.OutOfMemoryError(size, used, limit)
            _asked.wait(patience)
        _requests.append(request)
    try:
        yield
    finally:
        with _asked:
            _requests.remove(request)
            _asked.notify_all()


def _error(memory: Any, device: int, size: int) -> Exception:
    error = _library.malloc_error()
    if not isinstance(error, _errors.OutOfMemoryError):
        return error
    used, limit = _counts(device)["bytes_in_use"], _state["limits"].get(device, 0)
    raised: Exception = memory.OutOfMemoryError(size, used, limit)
    raised.__cause__ = error  # this error has the report
    return raised


def _forget(what: str) -> None:
    devices = list(_state[what])
    _state[what].clear()
    for device in devices:
        _note_plain(device)


def _prepare(device: int) -> None:
    with _lock:
        if device not in _state["prepared"]:
            _library.prepare(_state["stack"], device)
            _state["prepared"].add(device)
            _note_plain(device)


class _Pool:
    """Describes millpond's memory on the current device, with the methods of CuPy's default memory pool."""

    def malloc(self, size: int) -> Any:
        return allocator(size)

    def used_bytes(self) -> int:
        return _counts(_current())["bytes_in_use"]

    def total_bytes(self) -> int:
        return _counts(_current())["bytes_reserved"]

    def free_bytes(self) -> int:
        return self.total_bytes() - self.used_bytes()

    def n_free_blocks(self) -> int:
        return _counts(_current())["blocks_free"]

    def free_all_blocks(self, stream: Any = None) -> None:
        _library.check(_library.empty_cache())

    def free_all_free(self) -> None:
        self.free_all_blocks()

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        if (size is None) == (fraction is None):
            raise ValueError("set_limit needs either `size` or `fraction`, not both")
        device = _current()
        if size is None:
            share = _arguments.real(fraction, "fraction", "a number from 0 to 1", 1)
            size = int(_library.device_of(device).memory_info()[1] * share)
        size = _arguments.whole_bytes(size, "size", "a whole number of bytes; 0 means no limit")
        with _lock:
            if size:
                _state["limits"][device] = size
            else:
                _state["limits"].pop(device, None)
            _note_plain(device)
            _asked.notify_all()

    def get_limit(self) -> int:
        limit: int = _state["limits"].get(_current(), 0)
        return limit


def _current() -> int:
    device: int = _cupy().cuda.runtime.getDevice()
    return device


def _cupy() -> Any:
    return _library.framework("cupy", "cupy-cuda13x (or cupy-cuda12x)")


_made: list[Callable[[int], Any]] = []


def allocator(size: int) -> Any:
    """Allocate memory on CuPy's current device and stream, for `cupy.cuda.set_allocator`.

    Args:
        size: The size in bytes.

    Returns:
        A `cupy.cuda.MemoryPointer`. The memory is freed in the order of the stream.

    Raises:
        ImportError: CuPy is not installed.
        cupy.cuda.memory.OutOfMemoryError: The stack is out of memory. The error's `__cause__` has millpond's
            report.

    Example:
        >>> import cupy, millpond.cupy  # doctest: +SKIP
        >>> with cupy.cuda.using_allocator(millpond.cupy.allocator):  # doctest: +SKIP
        ...     array = cupy.zeros(1000)
    """
    with _lock:
        if not _made:
            _made.append(_make_allocator(_cupy()))
    return _made[0](size)


def use(stack: StackLike = None) -> None:
    """Use millpond as CuPy's allocator. millpond sets up a device when CuPy first allocates on that device.

    `cupy.get_default_memory_pool()` then reports millpond's memory.

    Args:
        stack: The stack as text or, if the program uses one device, a resource. It becomes the default of
            each device. With None, each device keeps its default, but `cuda+pool` replaces plain CUDA memory.

    Raises:
        ImportError: CuPy is not installed.
        TypeError: `stack` is neither a text nor a resource.

    Example:
        >>> import cupy, millpond.cupy  # doctest: +SKIP
        >>> millpond.cupy.use("cuda+pool")  # doctest: +SKIP
        >>> array = cupy.zeros(1000)  # doctest: +SKIP
    """
    _library.check_stack(stack)
    cupy = _cupy()
    with _lock:
        _state["stack"] = stack
        _forget("prepared")
        if not _made:
            _made.append(_make_allocator(cupy))
        if _state["before"] is None:
            before = cupy.cuda.memory.get_allocator()
            _state["before"] = (before, getattr(cupy, "_default_memory_pool", None))
        cupy.cuda.set_allocator(_made[0])
        cupy._default_memory_pool = _Pool()


def disable() -> None:
    """Restore the allocator that CuPy had before `use`. Arrays in millpond's memory stay valid.

    Example:
        >>> import millpond.cupy
        >>> millpond.cupy.disable()
    """
    with _lock:
        if _state["before"] is not None:
            cupy = _cupy()
            before, pool = _state["before"]
            cupy.cuda.set_allocator(before)
            cupy._default_memory_pool = pool
            _state["before"] = None
            _forget("limits")


def record_stream(array: Any, stream: StreamLike) -> None:
    """Announce that work on another stream uses an array's memory. The memory is reused only after that work.

    Args:
        array: The `cupy.ndarray`.
        stream: The other stream, whose work uses the array.

    Raises:
        InvalidArgumentError: The array's memory is not from millpond.
        TypeError: `array` is not an array of CuPy, or `stream` is not a stream.

    Example:
        >>> import cupy, millpond.cupy  # doctest: +SKIP
        >>> array, other = cupy.zeros(1000), cupy.cuda.Stream()  # doctest: +SKIP
        >>> with other:  # doctest: +SKIP
        ...     total = array.sum()
        >>> millpond.cupy.record_stream(array, other)  # doctest: +SKIP
    """
    handle = _library.stream_pointer(stream)
    try:
        ptr = array.data.mem.ptr
    except AttributeError:
        raise _arguments.wrong(TypeError, "array", "a cupy.ndarray", array) from None
    _library.check(_library.record_stream(ptr, handle))
