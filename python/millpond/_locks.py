"""Locks that a forked child finds free, whatever the threads of its parent held."""

import os
import threading
import weakref

_made = weakref.WeakSet()


def lock():
    """Return a new lock. A thread may take it again while it holds it."""
    made = threading.RLock()
    _made.add(made)
    return made


def _free_in_child():
    for made in list(_made):
        # The thread that forked goes on in the child, and ends what it holds.
        if not made._is_owned():
            made._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)
