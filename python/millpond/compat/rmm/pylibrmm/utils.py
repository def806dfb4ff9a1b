"""RMM's module `rmm.pylibrmm.utils`: converts streams."""

from .... import Stream, _native
from ....typing import StreamLike


def as_stream(stream: StreamLike) -> Stream:
    """Convert a stream of any library to a millpond stream.

    Args:
        stream: A `Stream`, an object with `__cuda_stream__`, a stream of CuPy, PyTorch or Numba, or a handle
            as a number.

    Raises:
        TypeError: `stream` is None, or not a stream.

    Example:
        >>> from millpond.compat.rmm.pylibrmm.utils import as_stream
        >>> as_stream(0).is_default()
        True
    """
    return stream if isinstance(stream, Stream) else _native.as_stream(stream)
