"""RMM's module `rmm.rmm`: `reinitialize`, the hooks that it calls, and RMM's error."""

from collections.abc import Iterable

from ... import Device
from ... import mr as _mr
from ...mr import is_initialized, register_reinitialize_hook, unregister_reinitialize_hook
from .pylibrmm.helper import _parsed


class RMMError(Exception):
    """RMM's own error, with a number. millpond never raises it; its errors are `millpond.MillpondError`.

    Args:
        errcode: The number of the error. The attribute `errcode` keeps this number.
        msg: The message of the error.

    Example:
        >>> import millpond.compat.rmm as rmm
        >>> rmm.RMMError(2, "out of memory").errcode
        2
    """

    def __init__(self, errcode: int, msg: str) -> None:
        super().__init__(msg)
        self.errcode = errcode


def reinitialize(
    pool_allocator: bool = False,
    managed_memory: bool = False,
    initial_pool_size: int | str | None = None,
    maximum_pool_size: int | str | None = None,
    devices: int | Device | Iterable[int | Device] | None = 0,
    logging: bool = False,
    log_file_name: str | None = None,
) -> None:
    """Call the registered hooks, and set a new default resource on each of `devices`.

    Args:
        pool_allocator: Whether to put a pool on top of the driver's memory.
        managed_memory: Whether to use managed memory from the driver.
        initial_pool_size: The size that the pool allocates at creation: bytes, or a text such as "1GiB". None
            means half of the free memory.
        maximum_pool_size: The pool's largest size: bytes, or a text. None sets no limit.
        devices: One device number, or several. None means device 0.
        logging: Whether to log each call. Each device has a separate file.
        log_file_name: The path of the log, without `.dev0`, which millpond adds. None means the path in
            MILLPOND_LOG_FILE or RMM_LOG_FILE.

    Raises:
        ValueError: A size is malformed, or neither `log_file_name` nor the environment names a file.
        TypeError: An argument has the wrong type, such as a text for `pool_allocator`.
        RuntimeError: `initial_pool_size` exceeds `maximum_pool_size`.
        MemoryError: The device has too little memory for `initial_pool_size`.

    Example:
        >>> import millpond.compat.rmm as rmm
        >>> rmm.reinitialize(pool_allocator=True, initial_pool_size="1GiB", maximum_pool_size="4GiB")
    """
    _mr.reinitialize(
        pool_allocator,
        managed_memory,
        None if initial_pool_size is None else _parsed(initial_pool_size, "initial_pool_size"),
        None if maximum_pool_size is None else _parsed(maximum_pool_size, "maximum_pool_size"),
        devices,
        logging,
        log_file_name,
    )


__all__ = [
    "RMMError",
    "is_initialized",
    "register_reinitialize_hook",
    "reinitialize",
    "unregister_reinitialize_hook",
]
