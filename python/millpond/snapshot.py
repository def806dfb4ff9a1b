"""Writes the memory of a stack in the format of PyTorch's memory snapshots."""

import os
import pickle
from typing import Any, Literal

from . import _arguments, _native
from . import mr as _mr
from ._native import Resource

#: The stacks that the history can capture, in the order of the library's numbers.
_STACKS = ("off", "live", "allocations", "all")


def memory_snapshot(
    path: str | os.PathLike[str] | None = None, *, resource: Resource | None = None
) -> dict[str, Any]:
    """Return the segments and blocks of a stack's memory now, and write them to a file.

    PyTorch's viewer (https://pytorch.org/memory_viz) and `millpond-replay explain` read the file. After
    `record_memory_history`, the file also has the last events with their call stacks.

    Args:
        path: The file to write; None writes no file.
        resource: The stack; None means the current device's default resource.

    Returns:
        The snapshot, with the keys of `torch.cuda.memory._snapshot()` and sizes in bytes.

    Raises:
        UnsupportedError: No layer of the stack knows the stack's blocks, for example in the stack "cuda".
            Use a pool.
        TypeError: `path` is not a path, or `resource` is not a resource.
        OSError: The file cannot be written.

    Example:
        >>> import millpond
        >>> resource = millpond.stack("cuda+pool")
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=resource)
        >>> snapshot = millpond.memory_snapshot(resource=resource)
        >>> sum(segment["requested_size"] for segment in snapshot["segments"])
        1000
    """
    file = None if path is None else _arguments.path(path, "path")
    if resource is None:
        resource = _mr.get_current_device_resource()
    _mr._checked(resource, "resource")
    return _written(_native.pickled_snapshot(resource), file)


def _written(pickled: bytes, path: bytes | None) -> dict[str, Any]:
    if path is not None:
        with open(path, "wb") as file:
            file.write(pickled)
    snapshot: dict[str, Any] = pickle.loads(pickled)
    return snapshot


def record_memory_history(
    max_entries: int = 100_000,
    *,
    stacks: Literal["off", "live", "allocations", "all"] = "allocations",
    clear_history: bool = False,
) -> None:
    """Record the last events of this process's memory, for `memory_snapshot`.

    Each event takes 64 bytes of host memory. Capturing a call stack takes about a microsecond.

    Args:
        max_entries: How many events to keep at most. New events overwrite the oldest ones.
        stacks: The calls for which Python's call stack is captured: "off" (no calls), "live" (allocations of
            blocks that are live at a snapshot), "allocations", or "all" (allocations and frees).
        clear_history: Whether to forget earlier events.

    Raises:
        ValueError: `stacks` is none of these texts, or `max_entries` is negative or too large.
        TypeError: `max_entries` is not a number.

    Example:
        >>> import millpond
        >>> millpond.record_memory_history()
        >>> resource = millpond.stack("cuda+pool")
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=resource)
        >>> trace = millpond.memory_snapshot(resource=resource)["device_traces"][-1]
        >>> trace[-1]["action"], trace[-1]["size"]
        ('alloc', 1000)
        >>> millpond.stop_memory_history()
    """
    _arguments.choice(stacks, "stacks", _STACKS)
    entries = _arguments.whole(max_entries, "max_entries", "a number of events, 0 or more")
    is_new = _arguments.flag(clear_history, "clear_history")
    _native.record_history(entries, _STACKS.index(stacks), 0, is_new)


def stop_memory_history() -> None:
    """Stop recording events, and discard the recorded events.

    Example:
        >>> import millpond
        >>> millpond.stop_memory_history()
    """
    _native.stop_history()
