"""Locks that are free in a forked child, even if a thread of its parent held them."""

import os
import threading
import weakref
from typing import Any

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> Any:
    """Return a new lock that a thread may take again while it holds it, free in a forked child.

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
        # The thread that forked continues in the child, and releases the locks that it holds.
        if not made._is_owned():
            made._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)
