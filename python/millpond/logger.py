"""Functions for the log messages of libmillpond, with the names of RMM's logger.

If RMM_DEBUG_LOG_FILE names a file when a program imports millpond, libmillpond writes its messages of level
`info` and above to this file. Otherwise it writes errors to standard error.
"""

import ctypes
import enum

from . import _arguments, _library
from . import mr as _mr


class level_enum(enum.IntEnum):
    """The severity of a message, from `trace` to `critical`. `off` is above all severities.

    Attributes:
        trace: Each step of an allocation.
        debug: Details for developers of millpond.
        info: Normal events, such as the growth of a pool.
        warn: Events that may slow a program down.
        error: Calls that failed.
        critical: Errors after which the process cannot continue.
        off: No message has this level. As the logging level, it stops all messages.
        n_levels: The number of levels, 7. It is not a level itself.

    Example:
        >>> import millpond
        >>> millpond.level_enum.warn > millpond.level_enum.info
        True
    """

    trace = 0
    debug = 1
    info = 2
    warn = 3
    error = 4
    critical = 5
    off = 6
    n_levels = enum.nonmember(7)


_flush_level = level_enum.trace


def _checked(level: level_enum) -> level_enum:
    return _arguments.instance(level, "level", level_enum, "a level_enum, such as millpond.level_enum.info")


def set_logging_level(level: level_enum) -> None:
    """Set the logging level: only messages of this level or above are written.

    Args:
        level: The level; `level_enum.off` stops all messages.

    Raises:
        TypeError: `level` is not a `level_enum`.
        ValueError: `level` is `n_levels`.

    Example:
        >>> import millpond
        >>> before = millpond.get_logging_level()
        >>> millpond.set_logging_level(millpond.level_enum.warn)
        >>> millpond.should_log(millpond.level_enum.info)
        False
        >>> millpond.set_logging_level(before)
    """
    _library.check(_library.set_logging_level(_checked(level)))


def get_logging_level() -> level_enum:
    """Return the logging level: only messages of this level or above are written.

    Example:
        >>> import millpond
        >>> isinstance(millpond.get_logging_level(), millpond.level_enum)
        True
    """
    level = ctypes.c_int32()
    _library.check(_library.logging_level(ctypes.byref(level)))
    return level_enum(level.value)


def should_log(level: level_enum) -> bool:
    """Return whether messages of a level are written.

    Args:
        level: The level to check.

    Returns:
        True if the level is at least as severe as the logging level.

    Raises:
        TypeError: `level` is not a `level_enum`.
        ValueError: `level` is `n_levels`.

    Example:
        >>> import millpond
        >>> millpond.should_log(millpond.level_enum.off)
        False
    """
    return _checked(level) is not level_enum.off and level >= get_logging_level()


def set_flush_level(level: level_enum) -> None:
    """Set the level that `get_flush_level` returns. The level has no other effect.

    This function exists for programs written for RMM. In RMM, messages of this level or above flush the log.
    libmillpond writes each message at once.

    Args:
        level: The level that `get_flush_level` then returns.

    Raises:
        TypeError: `level` is not a `level_enum`.
        ValueError: `level` is `n_levels`.

    Example:
        >>> import millpond
        >>> millpond.set_flush_level(millpond.level_enum.warn)
        >>> millpond.get_flush_level().name
        'warn'
        >>> millpond.set_flush_level(millpond.level_enum.trace)
    """
    global _flush_level
    _flush_level = _checked(level)


def get_flush_level() -> level_enum:
    """Return the level of the last `set_flush_level`, or `trace` before the first one.

    Example:
        >>> import millpond
        >>> millpond.get_flush_level().name
        'trace'
    """
    return _flush_level


def flush_logger() -> None:
    """Write all buffered messages, and all buffered rows of allocation logs, to their files.

    Raises:
        LogFileError: A log's file could not be written.

    Example:
        >>> import millpond
        >>> millpond.flush_logger()
    """
    try:
        _mr._flush_logs()
    finally:
        _library.check(_library.flush_logger())
