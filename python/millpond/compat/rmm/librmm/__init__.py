"""RMM's package `rmm.librmm`. For Python programs, it contains only the logger's levels."""

from . import _logger

__all__ = ["_logger"]
