"""Streams: the default ones, the flags, and a pool."""

import enum
import itertools

from . import _locks
from ._native import Stream

DEFAULT_STREAM = Stream(0)
LEGACY_DEFAULT_STREAM = Stream(1)
PER_THREAD_DEFAULT_STREAM = Stream(2)


class CudaStreamFlags(enum.IntEnum):
    """Whether a stream waits for the legacy default stream."""

    SYNC_DEFAULT = 0
    NON_BLOCKING = 1


class StreamPool:
    """A fixed number of streams, handed out in turn."""

    def __init__(self, pool_size=16, flags=CudaStreamFlags.SYNC_DEFAULT):
        if pool_size < 1:
            raise ValueError("a pool has at least one stream")
        self._streams = [Stream(flags=int(flags)) for _ in range(pool_size)]
        self._turns = itertools.count()
        self._lock = _locks.lock()

    def get_stream(self, stream_id=None):
        """Return the stream with this number, else the next one."""
        if stream_id is None:
            with self._lock:
                stream_id = next(self._turns)
        elif stream_id < 0:
            raise ValueError("the number of a stream is not negative")
        return self._streams[stream_id % len(self._streams)]

    def get_pool_size(self):
        """Return the number of streams."""
        return len(self._streams)


CudaStreamPool = StreamPool
