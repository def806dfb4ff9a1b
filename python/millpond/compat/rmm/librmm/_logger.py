"""RMM's module `rmm.librmm._logger`."""

from ....logger import level_enum

__all__ = ["level_enum"]
