"""Functions of the program as a resource, a failure handler and a hook; and a derived class."""

from typing import assert_type

import millpond
from millpond import mr

base = mr.CudaMemoryResource()
live: dict[int, int] = {}


def allocate(size: int, stream: millpond.Stream) -> int:
    """Allocate from the base, and record the size in bytes."""
    ptr = base.allocate(size, stream)
    live[ptr] = size
    return ptr


def deallocate(ptr: int, size: int, stream: millpond.Stream) -> None:
    """Free."""
    base.deallocate(ptr, live.pop(ptr), stream)


class Named(mr.CallbackMemoryResource):
    """A resource with a name."""

    def __init__(self, name: str) -> None:
        super().__init__(allocate, deallocate)
        self.name = name


own = Named("own")
buffer = millpond.DeviceBuffer(size=1000, mr=own)
assert_type(buffer.mr, mr.DeviceMemoryResource | None)
assert buffer.mr is own and list(live.values()) == [1000]

cache: list[millpond.DeviceBuffer] = [buffer]


def free(nbytes: int) -> bool:
    """Drop the cache."""
    is_freed = bool(cache)
    cache.clear()
    return is_freed


handler = mr.FailureCallbackResourceAdaptor(mr.LimitingResourceAdaptor(base, 1 << 20), free)
assert millpond.DeviceBuffer(size=1 << 20, mr=handler).size == 1 << 20


@millpond.register_reinitialize_hook
def forget() -> None:
    """Drop the cache before the default resource changes."""
    cache.clear()


millpond.reinitialize()
millpond.unregister_reinitialize_hook(forget)
