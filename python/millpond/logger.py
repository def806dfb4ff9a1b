"""What libmillpond reports of its work, as lines of text, under the names of RMM's logger.

The lines go to the file that RMM_DEBUG_LOG_FILE names when millpond is imported, from information on; without
it errors alone go to the standard error.
"""

import ctypes
import enum

from . import _library
from . import mr as _mr


class level_enum(enum.IntEnum):
    """How grave a line is."""

    trace = 0
    debug = 1
    info = 2
    warn = 3
    error = 4
    critical = 5
    off = 6
    n_levels = 7


_flush_level = level_enum.trace


def _checked(level):
    if not isinstance(level, level_enum):
        raise TypeError(f"{level!r} is no level_enum")
    if level is level_enum.n_levels:
        raise ValueError("n_levels is the number of levels, and no level")
    return level


def set_logging_level(level):
    """Set the least grave level of lines that are written."""
    _library.check(_library.set_logging_level(_checked(level)))


def get_logging_level():
    """Return the least grave level of lines that are written."""
    level = ctypes.c_int32()
    _library.check(_library.logging_level(ctypes.byref(level)))
    return level_enum(level.value)


def should_log(level):
    """Return whether lines of this level are written."""
    return _checked(level) is not level_enum.off and level >= get_logging_level()


def set_flush_level(level):
    """Set the least grave level after which lines are flushed. Each is written at once, whatever it is."""
    global _flush_level
    _flush_level = _checked(level)


def get_flush_level():
    """Return what `set_flush_level` was told."""
    return _flush_level


def flush_logger():
    """Write the lines that wait, and the rows that the logs of the devices hold."""
    try:
        _mr._flush_logs()
    finally:
        _library.check(_library.flush_logger())
