"""Makes a millpond stack RMM's current resource, so that cuDF, cuML and the rest of RAPIDS in Python use it.

>>> import millpond.rmm
>>> millpond.rmm.use("cuda+pool")

Where `python -m millpond.rmm_bridge build` has compiled the bridge, allocations of RAPIDS call libmillpond
from C++. Else they go through `rmm.mr.CallbackMemoryResource`: each allocation and each free takes the GIL
and calls Python, which costs some microseconds, and threads in C++ wait for one another there. Programs in
C++ use `millpond/memory_resource.hpp`, which needs neither.
"""

import ctypes

from . import _library, rmm_bridge

_before = {}
# RMM keeps a plain pointer to its default resource: what it was given stays.
_kept = []


def bridge():
    """Say in words how `resource` and `use` serve RMM: by the compiled bridge, or by Python functions."""
    module = rmm_bridge.load()
    if module is not None:
        return f"compiled: {module.__file__}"
    return "callback: `python -m millpond.rmm_bridge build` compiles a bridge, which needs no GIL"


def resource(stack=None, device=None):
    """Return a resource of RMM's over a device's stack: a text, a resource, or the device's default."""
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    ordinal = _library.ordinal_of(device, stack)
    ours = _library.prepare(stack, ordinal)
    compiled = rmm_bridge.load()
    return _over_callbacks(rmm, ours) if compiled is None else _over_bridge(compiled, ordinal)


def _over_bridge(compiled, ordinal):
    device, handle = _library.find_device(ordinal), ctypes.c_void_p()
    try:
        _library.check(_library.get_per_device_resource(device, ctypes.byref(handle)))
    finally:
        _library.device_free(device)
    return compiled.MillpondMemoryResource(handle.value)


def _over_callbacks(rmm, ours):
    def allocate(size, stream=None):
        return ours.allocate(size, _library.stream_pointer(stream))

    def deallocate(ptr, size, stream=None):
        ours.deallocate(ptr, size, _library.stream_pointer(stream))

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def use(stack=None, device=None):
    """Make a device's stack RMM's default resource of that device, and return that resource of RMM's.

    The out-of-memory error of RAPIDS is then `MemoryError`, as ever; what millpond says of it is in the text.
    """
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    ordinal = _library.ordinal_of(device, stack)
    made = resource(stack, ordinal)
    _kept.append(made)
    _before.setdefault(ordinal, rmm.mr.get_per_device_resource(ordinal))
    rmm.mr.set_per_device_resource(ordinal, made)
    return made


def disable(device=None):
    """Give a device its resource of before `use` back in RMM. Buffers of millpond's memory stay."""
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    ordinal = _library.ordinal_of(device)
    if ordinal in _before:
        rmm.mr.set_per_device_resource(ordinal, _before.pop(ordinal))
