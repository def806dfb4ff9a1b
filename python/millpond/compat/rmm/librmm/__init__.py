"""RMM's package `rmm.librmm`. A Python program sees only the logger's levels in it."""

from . import _logger

__all__ = ["_logger"]
