"""RMM's package `rmm.librmm`, of which a program in Python sees the levels of the logger."""

from . import _logger

__all__ = ["_logger"]
