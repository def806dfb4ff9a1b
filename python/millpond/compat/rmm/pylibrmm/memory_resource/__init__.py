"""RMM's module `rmm.pylibrmm.memory_resource`, with the contents of `rmm.mr`."""

from typing import Any

from ... import mr as _mr
from ...mr import *  # noqa: F403

__all__: list[str] = []
__all__ += _mr.__all__


def __getattr__(name: str) -> Any:
    return getattr(_mr, name)
