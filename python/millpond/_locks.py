"""Locks that are free in a forked child, even if a thread of its parent held them."""

import os
import threading
import weakref
from typing import Any

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> Any:
    """Return a new reentrant lock. In a forked child, it is free unless the thread that forked held it.

    Example:
        >>> from millpond import _locks
        >>> with _locks.lock():
        ...     pass
    """
    made = threading.RLock()
    _made.add(made)
    return made


def _free_in_child() -> None:
    for made in list(_made):
        # The thread that forked continues in the child. It releases its own locks itself.
        if not made._is_owned():
            made._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)
