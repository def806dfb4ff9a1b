"""Lets RMM allocate from a millpond stack, so that cuDF, cuML and the rest of RAPIDS use this stack.

>>> import millpond.rmm
>>> millpond.rmm.use("cuda+pool")  # doctest: +SKIP

`python -m millpond.rmm_bridge build` compiles a bridge. With the bridge, RAPIDS calls libmillpond from C++.
Without the bridge, millpond uses `rmm.mr.CallbackMemoryResource`. Each allocation and each free then takes
the GIL and calls Python code. This costs some microseconds, and C++ threads wait for each other. A C++
program includes `millpond/memory_resource.hpp` instead, and needs neither the bridge nor callbacks.
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import _library, rmm_bridge
from ._native import Resource
from .typing import FrameworkDevice, StackLike

_before: dict[int, Any] = {}
# RMM keeps only a pointer to its default resource, so these resources must stay alive.
_kept: list[Any] = []


def _is_ours(rmm: Any) -> bool:
    """Return whether `millpond.compat.rmm.install()` has put millpond in RMM's place."""
    return bool(rmm.__name__ == f"{__package__}.compat.rmm")


def bridge() -> str:
    """Return a text that says how `use` serves RMM: through the compiled bridge, or through Python callbacks.

    After `millpond.compat.rmm.install()`, RMM is millpond, and `use` only sets millpond's default.

    Raises:
        ImportError: RMM is not installed.

    Example:
        >>> import millpond.rmm
        >>> print(millpond.rmm.bridge())  # doctest: +SKIP
    """
    if _is_ours(_library.framework("rmm", "rmm-cu13 (or rmm-cu12)")):
        return "none: `rmm` is millpond.compat.rmm"
    module = rmm_bridge.load()
    if module is not None:
        return f"compiled: {module.__file__}"
    return "callback: `python -m millpond.rmm_bridge build` compiles a bridge, which needs no GIL"


def resource(stack: StackLike = None, device: FrameworkDevice = None) -> Any:
    """Return an RMM resource that takes memory from a device's stack.

    Args:
        stack: The stack as text, or a resource. It becomes the device's default. With None, the device keeps
            its default, but `cuda+pool` replaces plain CUDA memory.
        device: A device or its number; None means the current device.

    Returns:
        A `rmm.mr.DeviceMemoryResource`. Keep it as long as RMM uses it.

    Raises:
        ImportError: RMM is not installed.
        StackError: `stack` is malformed.
        NoDeviceError: There is no such device.

    Example:
        >>> import millpond.rmm, rmm  # doctest: +SKIP
        >>> made = millpond.rmm.resource("cuda+pool")  # doctest: +SKIP
        >>> buffer = rmm.DeviceBuffer(size=1000, mr=made)  # doctest: +SKIP
    """
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    ordinal = _library.ordinal_of(device, stack)
    ours = _library.prepare(stack, ordinal)
    if _is_ours(rmm):
        return ours
    compiled = rmm_bridge.load()
    return _over_callbacks(rmm, ours) if compiled is None else _over_bridge(compiled, ordinal)


def _over_bridge(compiled: Any, ordinal: int) -> Any:
    device, handle = _library.find_device(ordinal), ctypes.c_void_p()
    try:
        _library.check(_library.get_per_device_resource(device, ctypes.byref(handle)))
    finally:
        _library.device_free(device)
    return compiled.MillpondMemoryResource(handle.value)


def _over_callbacks(rmm: Any, ours: Resource) -> Any:
    def allocate(size: int, stream: Any = None) -> int:
        return ours.allocate(size, _library.stream_pointer(stream))

    def deallocate(ptr: int, size: int, stream: Any = None) -> None:
        ours.deallocate(ptr, size, _library.stream_pointer(stream))

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def use(stack: StackLike = None, device: FrameworkDevice = None) -> Any:
    """Use a device's stack as RMM's default resource for that device.

    If memory runs out, RAPIDS raises `MemoryError`, as without millpond. The text of the error has millpond's
    report.

    Args:
        stack: The stack as text, or a resource. It becomes the device's default. With None, the device keeps
            its default, but `cuda+pool` replaces plain CUDA memory.
        device: A device or its number; None means the current device.

    Returns:
        The RMM resource.

    Raises:
        ImportError: RMM is not installed.
        StackError: `stack` is malformed.
        NoDeviceError: There is no such device.

    Example:
        >>> import millpond.rmm, rmm  # doctest: +SKIP
        >>> made = millpond.rmm.use("cuda+pool")  # doctest: +SKIP
        >>> buffer = rmm.DeviceBuffer(size=1000)  # doctest: +SKIP
    """
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    ordinal = _library.ordinal_of(device, stack)
    before = rmm.mr.get_per_device_resource(ordinal)
    made = resource(stack, ordinal)
    _kept.append(made)
    _before.setdefault(ordinal, before)
    rmm.mr.set_per_device_resource(ordinal, made)
    return made


def disable(device: FrameworkDevice = None) -> None:
    """Restore the default resource that RMM had before `use`. Buffers in millpond's memory stay valid.

    Args:
        device: A device or its number; None means the current device.

    Raises:
        ImportError: RMM is not installed.

    Example:
        >>> import millpond.rmm  # doctest: +SKIP
        >>> millpond.rmm.disable()  # doctest: +SKIP
    """
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    ordinal = _library.ordinal_of(device)
    if ordinal in _before:
        rmm.mr.set_per_device_resource(ordinal, _before.pop(ordinal))
