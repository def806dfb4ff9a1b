"""RMM's module `rmm.rmm`: new default resources, the hooks that run before a change, and RMM's error."""

from collections.abc import Iterable

from ... import Device
from ... import mr as _mr
from ...mr import is_initialized, register_reinitialize_hook, unregister_reinitialize_hook
from .pylibrmm.helper import parse_bytes


class RMMError(Exception):
    """RMM's own error, with a number. millpond never raises it; its errors are `millpond.MillpondError`.

    Args:
        errcode: A number, which the attribute `errcode` keeps.
        msg: The text.

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
    """Run the hooks, and set a new default resource on each of `devices`.

    Args:
        pool_allocator: Whether to put a pool on top of the driver's memory.
        managed_memory: Whether the driver's memory is managed.
        initial_pool_size: The pool's first size: bytes, or a text such as "1GiB". None takes half of the free
            memory.
        maximum_pool_size: The pool's largest size: bytes, or a text. None sets no limit.
        devices: The number of a device, or several of them. None is device 0.
        logging: Whether each call is logged, in a file for each device.
        log_file_name: The name of the log, to which `.dev0` is added; None takes the name from RMM_LOG_FILE.

    Raises:
        ValueError: A size is malformed, or no file is named for the log.
        RuntimeError: The pool's first size exceeds its largest one.
        MemoryError: The device has no memory for the pool's first size.

    Example:
        >>> import millpond.compat.rmm as rmm
        >>> rmm.reinitialize(pool_allocator=True, initial_pool_size="1GiB", maximum_pool_size="4GiB")
    """
    _mr.reinitialize(
        pool_allocator,
        managed_memory,
        None if initial_pool_size is None else parse_bytes(initial_pool_size),
        None if maximum_pool_size is None else parse_bytes(maximum_pool_size),
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
