"""Streams: the default streams, the flags of new streams, and a pool."""

import enum
import itertools

from . import _arguments, _locks
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
        pool_size: The number of streams, from 1 to 65536. The new pool makes all its streams, on the current
            device.
        flags: The flags of each stream.

    Raises:
        ValueError: `pool_size` is less than 1 or too large, or `flags` is unknown.
        TypeError: `pool_size` or `flags` is not a number.
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
        size = _arguments.whole(pool_size, "pool_size", "a number of streams from 1 to 65536", 1, 1 << 16)
        kind = _arguments.whole(flags, "flags", "0 (SYNC_DEFAULT) or 1 (NON_BLOCKING)", 0, 1)
        self._streams = [Stream(flags=kind) for _ in range(size)]
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
            ValueError: `stream_id` is negative or too large.
            TypeError: `stream_id` is not a number.

        Example:
            >>> import millpond
            >>> pool = millpond.StreamPool(4)
            >>> pool.get_stream(1) == pool.get_stream(5)
            True
        """
        if stream_id is None:
            with self._lock:
                stream_id = next(self._turns)
        else:
            stream_id = _arguments.whole(stream_id, "stream_id", "the number of a stream, from 0")
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
