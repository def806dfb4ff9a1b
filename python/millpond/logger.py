"""The log messages of libmillpond, under the names of RMM's logger.

libmillpond writes messages from the level `info` on to the file that RMM_DEBUG_LOG_FILE names when a program
imports millpond. Without that variable it writes errors to the standard error.
"""

import ctypes
import enum

from . import _library
from . import mr as _mr


class level_enum(enum.IntEnum):
    """How severe a line is, from `trace` to `critical`; `off` is above them all.

    Attributes:
        trace: Each step of an allocation.
        debug: What a developer of millpond looks for.
        info: Normal events, as the growth of a pool.
        warn: Events that may slow a program down.
        error: Calls that failed.
        critical: The process cannot go on.
        off: As a logging level: no line is written.
        n_levels: The number 7 of the levels; it is no level.

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
    if not isinstance(level, level_enum):
        raise TypeError(f"{level!r} is no level_enum")
    return level


def set_logging_level(level: level_enum) -> None:
    """Set the least severe level that is written.

    Args:
        level: The level; `level_enum.off` writes nothing.

    Raises:
        TypeError: `level` is no `level_enum`.
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
    """Return the least severe level that is written.

    Example:
        >>> import millpond
        >>> isinstance(millpond.get_logging_level(), millpond.level_enum)
        True
    """
    level = ctypes.c_int32()
    _library.check(_library.logging_level(ctypes.byref(level)))
    return level_enum(level.value)


def should_log(level: level_enum) -> bool:
    """Return whether lines of a level are written.

    Args:
        level: The level to ask for.

    Returns:
        True if the level is at least as severe as the logging level.

    Raises:
        TypeError: `level` is no `level_enum`.
        ValueError: `level` is `n_levels`.

    Example:
        >>> import millpond
        >>> millpond.should_log(millpond.level_enum.off)
        False
    """
    return _checked(level) is not level_enum.off and level >= get_logging_level()


def set_flush_level(level: level_enum) -> None:
    """Set the least severe level after which lines are flushed, for programs written for RMM.

    libmillpond writes each line at once, whatever this level is.

    Args:
        level: The level that `get_flush_level` then returns.

    Raises:
        TypeError: `level` is no `level_enum`.
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
    """Return the level that `set_flush_level` set; at first it is `trace`.

    Example:
        >>> import millpond
        >>> millpond.get_flush_level().name
        'trace'
    """
    return _flush_level


def flush_logger() -> None:
    """Write the lines and the rows of logs that wait in memory.

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
