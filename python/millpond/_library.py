"""Calls libmillpond's functions through ctypes, for the modules that serve a framework, such as `numba`.

ctypes releases the GIL during each call. `_native` has already loaded the same library, so all modules share
one set of pools.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from . import _LIBRARY, _arguments, _errors, _native
from . import mr as _mr
from ._native import Device, Resource
from .typing import FrameworkDevice, StackLike, StreamLike

_P, _U64 = ctypes.c_void_p, ctypes.c_uint64
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "set_logging_level": (ctypes.c_int32, ctypes.c_int32),
    "logging_level": (ctypes.c_int32, _P),
    "flush_logger": (ctypes.c_int32,),
    "error_message": (ctypes.c_char_p,),
    "error_driver_code": (ctypes.c_int32,),
    "error_report": (ctypes.c_char_p,),
    "error_report_json": (ctypes.c_char_p,),
    "cuda_is_available": (ctypes.c_bool,),
    "device_find": (ctypes.c_int32, ctypes.c_uint32, ctypes.c_bool, _P),
    "device_free": (None, _P),
    "copy_to_device": (ctypes.c_int32, _P, _P, _P, _U64, _P),
    "copy_to_host": (ctypes.c_int32, _P, _P, _P, _U64, _P),
    "copy_on_device": (ctypes.c_int32, _P, _P, _P, _U64, _P),
    "stream_synchronize": (ctypes.c_int32, _P, _P),
    "get_per_device_resource": (ctypes.c_int32, _P, _P),
    "manager_new": (ctypes.c_int32, _P, _P),
    "manager_free": (None, _P),
    "manager_initialize": (ctypes.c_int32, _P),
    "manager_allocate": (ctypes.c_int32, _P, _U64, _P, _P, _P),
    "manager_record_stream": (ctypes.c_int32, _P, _P, _P),
    "manager_memory_info": (ctypes.c_int32, _P, _P, _P),
    "manager_ipc_handle": (ctypes.c_int32, _P, _P, _P, _P),
    "manager_reset": (ctypes.c_int32, _P),
    "manager_defer": (ctypes.c_int32, _P, _P),
    "memory_free": (None, _P),
    "deferral_free": (None, _P),
    "malloc": (_P, ctypes.c_size_t, ctypes.c_int32, _P),
    "free": (None, _P, ctypes.c_size_t, ctypes.c_int32, _P),
    "record_stream": (ctypes.c_int32, _P, _P),
    "empty_cache": (ctypes.c_int32,),
}


def _load() -> tuple[Any, dict[str, Any]]:
    library = ctypes.CDLL(str(_LIBRARY))
    functions = {}
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, f"millpond_{name}")
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return library, functions


library, _functions = _load()
#: A number that each forked child raises by 1. A process frees only memory that it allocated under its own
#: number, so a child does not free its parent's memory.
generation: list[int] = [0]
os.register_at_fork(after_in_child=lambda: generation.__setitem__(0, generation[0] + 1))
globals().update(_functions)  # other modules call `_library.malloc(...)`
# Declares these functions for type checkers.
deferral_free: Any
copy_on_device: Any
copy_to_device: Any
copy_to_host: Any
device_free: Any
empty_cache: Any
flush_logger: Any
free: Any
get_per_device_resource: Any
logging_level: Any
malloc: Any
manager_allocate: Any
manager_defer: Any
manager_free: Any
manager_initialize: Any
manager_ipc_handle: Any
manager_memory_info: Any
manager_new: Any
manager_record_stream: Any
manager_reset: Any
memory_free: Any
record_stream: Any
set_logging_level: Any
stream_synchronize: Any

_OUT_OF_MEMORY = 1


def last_error(status: int) -> _errors.MillpondError:
    """Return the exception for this thread's last failed call, which returned `status`."""
    text = [_functions[name]() for name in ("error_message", "error_report", "error_report_json")]
    message, report, report_json = (part.decode() if part is not None else None for part in text)
    code = _functions["error_driver_code"]()
    return _errors.from_status(status, message or "libmillpond gave no reason", code, report, report_json)


def check(status: int) -> None:
    """Raise the exception for a status; do nothing for the status 0."""
    if status:
        raise last_error(status)


def malloc_error() -> _errors.MillpondError:
    """Return the exception for a `malloc` that returned null. `malloc` returns no status."""
    return last_error(_OUT_OF_MEMORY if _functions["error_report"]() is not None else 6)


def find_device(ordinal: int) -> int | None:
    """Return libmillpond's handle of a device. The caller frees it with `device_free`."""
    handle = ctypes.c_void_p()
    check(_functions["device_find"](ordinal, not _functions["cuda_is_available"](), ctypes.byref(handle)))
    return handle.value


def ordinal_of(device: FrameworkDevice, stack: StackLike = None) -> int:
    """Return the number of the device that a caller means. All framework modules use this function.

    `device` is a number, or a device of millpond, PyTorch or cuda.core, or None. If `device` is None and
    `stack` is a resource, the function returns the resource's device. If `stack` is no resource, None means
    CUDA's current device. If CUDA has no current device, None means the default device: MILLPOND_DEVICE or
    LOCAL_RANK selects it. The call creates no CUDA context.
    """
    if device is None and isinstance(stack, Resource):
        device = stack.device
    if device is None:
        device = Device()
        # Frameworks use CUDA, even in a program whose default device is simulated.
        return 0 if device.is_simulated and _functions["cuda_is_available"]() else device.ordinal
    for name in ("ordinal", "device_id", "index"):
        number = getattr(device, name, None)
        if isinstance(number, int):
            return number
    return _arguments.whole(device, "device", "a device or its number, or None", most=(1 << 31) - 1)


def device_of(ordinal: int) -> Device:
    """Return the device for a framework's device number: a CUDA device or, without CUDA, a simulated one."""
    return Device(f"cuda:{ordinal}") if _functions["cuda_is_available"]() else Device.find(ordinal)


def address_of(name: str) -> int | None:
    """Return the address of one of libmillpond's functions, for a framework that calls it."""
    return ctypes.cast(getattr(library, f"millpond_{name}"), ctypes.c_void_p).value


def framework(name: str, install: str) -> Any:
    """Import a framework, or raise an error that names the package to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        module = name.split(".")[0]
        raise ImportError(f"{module} cannot be imported ({error}); run: pip install {install}") from error


def check_stack(stack: StackLike) -> None:
    """Refuse an argument `stack` that is neither a text nor a resource nor None."""
    if not (stack is None or isinstance(stack, Resource)):
        _arguments.text(stack, "stack", f"{_arguments.STACK}, or a resource, or None")


def prepare(stack: StackLike, ordinal: int, fallback: str = "cuda+pool") -> _mr.DeviceMemoryResource:
    """Set up and return the stack that a framework uses on a device.

    `stack` is a text, a resource, or None. None keeps the device's default resource. But if this default is
    plain CUDA memory and MILLPOND_STACK is not set, `fallback` replaces it.
    """
    check_stack(stack)
    device = device_of(ordinal)
    if stack is None:
        known = _mr.get_per_device_resource(device)
        if known.text != "cuda" or os.environ.get("MILLPOND_STACK"):
            return known
        stack = fallback
    # For type checkers: every resource in Python code is a DeviceMemoryResource.
    made: Any = stack if isinstance(stack, Resource) else _mr.stack(stack, device)
    resource: _mr.DeviceMemoryResource = made
    _mr.set_per_device_resource(device, resource)
    return resource


def stream_pointer(stream: StreamLike | None) -> int:
    """Return the handle of any library's stream as a number. None means the default stream."""
    return 0 if stream is None else _native.as_stream(stream).ptr


class StreamScope(threading.local):
    """Holds the stream of each thread's innermost `with` block, as a number; None outside of a block."""

    def __init__(self) -> None:
        self.current: int | None = None
        self.owner: StreamLike | None = None

    @contextlib.contextmanager
    def use(self, stream: StreamLike | None) -> Iterator[None]:
        before = self.current, self.owner
        self.current, self.owner = stream_pointer(stream), stream
        try:
            yield
        finally:
            self.current, self.owner = before
