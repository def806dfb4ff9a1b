"""Streams: the default streams, the flags of new streams, and a pool."""

import enum
import itertools

from . import _locks
from ._native import Stream

DEFAULT_STREAM = Stream(0)
LEGACY_DEFAULT_STREAM = Stream(1)
PER_THREAD_DEFAULT_STREAM = Stream(2)


class CudaStreamFlags(enum.IntEnum):
    """Flags of a new stream. They say whether the stream synchronizes with the legacy default stream.

    Attributes:
        SYNC_DEFAULT: The stream and the legacy default stream wait for each other (`cudaStreamDefault`).
        NON_BLOCKING: The stream and the legacy default stream do not wait for each other
            (`cudaStreamNonBlocking`).

    Example:
        >>> import millpond
        >>> stream = millpond.Stream(flags=millpond.CudaStreamFlags.NON_BLOCKING)
    """

    SYNC_DEFAULT = 0
    NON_BLOCKING = 1


class StreamPool:
    """A fixed number of streams. `get_stream` returns them in turn.

    Args:
        pool_size: The number of streams, at least 1. The new pool makes all its streams, on the current
            device.
        flags: The flags of each stream.

    Raises:
        ValueError: `pool_size` is less than 1.
        MillpondError: The driver could not make a stream.

    Example:
        >>> import millpond
        >>> pool = millpond.StreamPool(4)
        >>> pool.get_stream() == pool.get_stream()
        False
    """

    def __init__(
        self, pool_size: int = 16, flags: CudaStreamFlags | int = CudaStreamFlags.SYNC_DEFAULT
    ) -> None:
        if pool_size < 1:
            raise ValueError(f"`pool_size` must be 1 stream or more, not {pool_size}")
        self._streams = [Stream(flags=int(flags)) for _ in range(pool_size)]
        self._turns = itertools.count()
        self._lock = _locks.lock()

    def get_stream(self, stream_id: int | None = None) -> Stream:
        """Return a stream of the pool.

        Args:
            stream_id: The number of the stream, from 0. Numbers beyond the last stream begin again at the
                first one. None means the next stream in turn.

        Returns:
            The stream. It stays in the pool, so other callers may get the same stream.

        Raises:
            ValueError: `stream_id` is negative.

        Example:
            >>> import millpond
            >>> pool = millpond.StreamPool(4)
            >>> pool.get_stream(1) == pool.get_stream(5)
            True
        """
        if stream_id is None:
            with self._lock:
                stream_id = next(self._turns)
        elif stream_id < 0:
            raise ValueError(f"`stream_id` must be 0 or more, not {stream_id}")
        return self._streams[stream_id % len(self._streams)]

    def get_pool_size(self) -> int:
        """Return the number of streams in the pool.

        Example:
            >>> import millpond
            >>> millpond.StreamPool(4).get_pool_size()
            4
        """
        return len(self._streams)


CudaStreamPool = StreamPool
