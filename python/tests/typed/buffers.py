"""Buffers: copies to and from the host, slices, exports, streams of other libraries."""

from typing import Any, assert_type

import numpy as np

import millpond
from millpond.typing import StreamLike


class OwnStream:
    """A stream of another library."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0


def zeros(size: int, stream: StreamLike) -> millpond.DeviceBuffer:
    """Return a buffer of zeros."""
    buffer = millpond.DeviceBuffer(size=size, stream=stream)
    buffer.fill(0, stream)
    return buffer


stream = millpond.Stream()
for each in (stream, OwnStream(), 0, millpond.DEFAULT_STREAM, millpond.StreamPool(2).get_stream()):
    assert bytes(zeros(3, each)) == b"\0\0\0"
other = millpond.Stream(flags=millpond.CudaStreamFlags.NON_BLOCKING)
other.wait(stream)
assert_type(other.query(), bool)

buffer = millpond.to_device(b"abcdef", stream)
assert_type(buffer, millpond.DeviceBuffer)
assert_type(buffer[0], int)
assert_type(buffer[1:3], millpond.DeviceBuffer)
assert_type(buffer.tobytes(), bytes)
assert_type(buffer.__cuda_array_interface__, dict[str, Any])
assert_type(len(buffer), int)
target = np.zeros(6, dtype=np.uint8)
same = buffer.copy_to_host(target)
same[0] = 1
assert buffer.copy_to_host(bytearray(6)) == b"abcdef"
host: Any = buffer.copy_to_host()
buffer.copy_from_host(target)
buffer.copy_from_device(buffer.copy())
buffer.resize(10)
assert_type(buffer.capacity(), int)
buffer.shrink_to_fit(stream)
assert_type(millpond.from_dlpack(buffer), millpond.DeviceBuffer)
with memoryview(millpond.to_device(b"xyz")) as view:
    assert view.tobytes() == b"xyz"
