"""CuPy's device memory from millpond: `millpond.cupy.use()`.

Each array is for use on CuPy's current stream, and its memory goes back in the order of that stream.
"""

import contextlib
import ctypes
import os
import threading
import time

from . import _errors, _library, _locks
from . import mr as _mr
from ._native import CupyFunctions

_state = {"stack": None, "prepared": set(), "before": None, "limits": {}, "functions": None}
_lock = _locks.lock()
#: The requests that are under way on devices with a limit: device, thread, bytes.
_asked, _requests = threading.Condition(_lock), []
#: How many seconds a request waits for others at most. They may run code of the program, which waits for it.
_PATIENCE = 1.0


def _forget_other_threads():
    # A forked child has one thread, whose requests go on in it.
    _requests[:] = [request for request in _requests if request[1] == threading.get_ident()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)


class _Block:
    """Owns a block, and keeps the stream that it goes back on."""

    __slots__ = ("made_in", "ptr", "stream")

    def __init__(self, ptr, stream):
        self.ptr, self.stream, self.made_in = ptr, stream, _library.generation[0]

    def __del__(self, free=_library.free, generation=_library.generation):
        if self.made_in == generation[0]:
            free(self.ptr, 0, 0, None)


def _allocate(cupy, size, device):
    """Return the address of a new block, and the stream that it is for."""
    if device not in _state["prepared"]:
        _prepare(device)
    # The handle 2 is CuPy's per-thread default stream, of which the library keeps one for each thread.
    stream = cupy.cuda.get_current_stream()
    if device in _state["limits"]:
        # Not under the lock: the call may wait, or run functions of the program.
        with _asking(cupy.cuda.memory, device, size):
            return _malloc(cupy, size, device, stream), stream
    return _malloc(cupy, size, device, stream), stream


def _malloc(cupy, size, device, stream):
    ptr = _library.malloc(size, device, stream.ptr)
    if not ptr:
        raise _error(cupy.cuda.memory, device, size)
    return ptr


def _current_stream_function():
    """Return the address of CuPy's C function for the handle of its current stream, or None."""
    import cupy_backends.cuda.stream as module

    name, capsule = b"intptr_t (void)", module.__pyx_capi__["get_current_stream_ptr"]
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = ctypes.py_object, ctypes.c_char_p
    return api.PyCapsule_GetPointer(capsule, name)


def _make_allocator(cupy):
    try:
        # Before version 14 CuPy does not look whether a function of C has failed.
        if int(cupy.__version__.split(".")[0]) < 14:
            return _make_python_allocator(cupy)
        function = _current_stream_function()
    except (AttributeError, ImportError, KeyError, ValueError):
        return _make_python_allocator(cupy)

    def otherwise(size, device):
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
    return made.malloc


def _make_python_allocator(cupy):
    memory, get_device = cupy.cuda.memory, cupy.cuda.runtime.getDevice

    def allocate(size):
        # The number of the device is given, as CuPy asks the driver for each address otherwise.
        device = get_device()
        if size == 0:
            return memory.MemoryPointer(memory.UnownedMemory(0, 0, None, device), 0)
        ptr, stream = _allocate(cupy, size, device)
        return memory.MemoryPointer(memory.UnownedMemory(ptr, size, _Block(ptr, stream), device), 0)

    return allocate


def _note_plain(device):
    """Say whether the functions in C serve a device without the one in Python."""
    if _state["functions"] is not None:
        is_plain = device in _state["prepared"] and device not in _state["limits"]
        _state["functions"].set_plain(device, is_plain)


def _counts(device):
    try:
        return _mr.get_per_device_resource(_library.device_of(device)).counts()
    except _errors.UnsupportedError:
        return {"bytes_in_use": 0, "bytes_reserved": 0, "blocks_free": 0}


@contextlib.contextmanager
def _asking(memory, device, size):
    """Keep requests that are under way within the limit of a device, all together.

    Bytes of a request that is under way may be in use already. If it depends on them whether there is room, a
    thread waits until that request is over, for a moment, but not within a request of its own, for which
    others may wait.
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


def _error(memory, device, size):
    error = _library.malloc_error()
    if not isinstance(error, _errors.OutOfMemoryError):
        return error
    raised = memory.OutOfMemoryError(size, _counts(device)["bytes_in_use"], _state["limits"].get(device, 0))
    raised.__cause__ = error  # with the report
    return raised


def _forget(what):
    devices = list(_state[what])
    _state[what].clear()
    for device in devices:
        _note_plain(device)


def _prepare(device):
    with _lock:
        if device not in _state["prepared"]:
            _library.prepare(_state["stack"], device)
            _state["prepared"].add(device)
            _note_plain(device)


class _Pool:
    """What CuPy's default memory pool answers, for millpond's memory on the current device."""

    def malloc(self, size):
        return allocator(size)

    def used_bytes(self):
        return _counts(_current())["bytes_in_use"]

    def total_bytes(self):
        return _counts(_current())["bytes_reserved"]

    def free_bytes(self):
        return self.total_bytes() - self.used_bytes()

    def n_free_blocks(self):
        return _counts(_current())["blocks_free"]

    def free_all_blocks(self, stream=None):
        _library.check(_library.empty_cache())

    def free_all_free(self):
        self.free_all_blocks()

    def set_limit(self, size=None, fraction=None):
        if (size is None) == (fraction is None):
            raise ValueError("either a size or a fraction is wanted")
        device = _current()
        if size is None:
            if not 0 <= fraction <= 1:
                raise ValueError("the fraction is from 0 to 1")
            size = int(_library.device_of(device).memory_info()[1] * fraction)
        if size < 0:
            raise ValueError("the limit is not negative")
        with _lock:
            if size:
                _state["limits"][device] = size
            else:
                _state["limits"].pop(device, None)
            _note_plain(device)
            _asked.notify_all()

    def get_limit(self):
        return _state["limits"].get(_current(), 0)


def _current():
    return _cupy().cuda.runtime.getDevice()


def _cupy():
    return _library.framework("cupy", "cupy-cuda13x (or cupy-cuda12x)")


_made = []


def allocator(size):
    """Allocate `size` bytes on the current device and stream, as a `cupy.cuda.MemoryPointer`."""
    with _lock:
        if not _made:
            _made.append(_make_allocator(_cupy()))
    return _made[0](size)


def use(stack=None):
    """Make millpond CuPy's allocator, on each device when it first allocates there.

    `stack` is a text, or a resource of the only device used; left out, it is the device's default, or where
    that is plain CUDA, `cuda+pool`. `cupy.get_default_memory_pool()` then answers for millpond's memory.
    """
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


def disable():
    """Give CuPy its allocator of before back. Arrays of millpond's memory stay as they are."""
    with _lock:
        if _state["before"] is not None:
            cupy = _cupy()
            before, pool = _state["before"]
            cupy.cuda.set_allocator(before)
            cupy._default_memory_pool = pool
            _state["before"] = None
            _forget("limits")


def record_stream(array, stream):
    """Announce that work on `stream` uses an array's memory, so that it goes back only after that work."""
    _library.check(_library.record_stream(array.data.mem.ptr, _library.stream_pointer(stream)))
