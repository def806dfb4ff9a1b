"""Makes a millpond stack RMM's current resource, so that cuDF, cuML and the rest of RAPIDS in Python use it.

>>> import millpond.rmm
>>> millpond.rmm.use("cuda+pool")

It goes through `rmm.mr.CallbackMemoryResource`: each allocation and each free of RAPIDS takes the GIL and
calls Python. That costs some microseconds, and threads in C++ wait for one another there. Programs in C++
use `millpond/memory_resource.hpp`, without that cost.
"""

from . import _library

_before = {}
# RMM keeps a plain pointer to its default resource: what it was given stays.
_kept = []


def resource(stack=None, device=None):
    """Return a resource of RMM's over a device's stack: a text, a resource, or the device's default."""
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    ours = _library.prepare(stack, _current(rmm) if device is None else device)

    def allocate(size, stream=None):
        return ours.allocate(size, _library.stream_pointer(stream))

    def deallocate(ptr, size, stream=None):
        ours.deallocate(ptr, size, _library.stream_pointer(stream))

    made = rmm.mr.CallbackMemoryResource(allocate, deallocate)
    _kept.append((made, ours))
    return made


def _current(rmm):
    from ._native import Device

    return Device().ordinal


def use(stack=None, device=None):
    """Make a device's stack RMM's default resource of that device, and return that resource of RMM's.

    The out-of-memory error of RAPIDS is then `MemoryError`, as ever; what millpond says of it is in the text.
    """
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    ordinal = _current(rmm) if device is None else device
    made = resource(stack, ordinal)
    _before.setdefault(ordinal, rmm.mr.get_per_device_resource(ordinal))
    rmm.mr.set_per_device_resource(ordinal, made)
    return made


def disable(device=None):
    """Give a device its resource of before `use` back in RMM. Buffers of millpond's memory stay."""
    rmm = _library.framework("rmm", "rmm-cu13 (or rmm-cu12)")
    ordinal = _current(rmm) if device is None else device
    if ordinal in _before:
        rmm.mr.set_per_device_resource(ordinal, _before.pop(ordinal))
