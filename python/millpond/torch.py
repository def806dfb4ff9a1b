"""Lets PyTorch allocate device memory from a millpond stack, in one of two ways.

`with millpond.torch.use_mem_pool():` serves the allocations inside the block through a `torch.cuda.MemPool`.
PyTorch's own allocator stays in use, and allocates its segments from millpond. A segment is a large block
that PyTorch's allocator divides.
PyTorch's statistics, snapshots and graphs still work.

`millpond.torch.use()` serves all allocations of the process directly. Call it before PyTorch first uses a
device. The book's chapter on frameworks lists the features of PyTorch that do not work in this mode.
"""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from . import _arguments, _library, _native
from . import mr as _mr
from ._errors import UnsupportedError
from ._native import Resource
from .typing import FrameworkDevice, StackLike

if TYPE_CHECKING:
    from .report import MemoryReport

#: The forms of a device that functions of `torch.cuda` accept.
TorchDeviceLike: TypeAlias = FrameworkDevice | str

# PyTorch keeps the addresses of an allocator's functions as long as memory from the allocator lives. So the
# allocators are kept until the process ends.
_kept: list[Any] = []
_patched: list[tuple[Any, str, Any]] = []
_state = {"is_process_wide": False}


def _torch() -> Any:
    return _library.framework("torch", "torch")


def _ordinal(device: TorchDeviceLike, stack: StackLike = None) -> int:
    if isinstance(device, str):
        device = _torch().device(device)
    # PyTorch's device "cuda" has no number.
    if hasattr(device, "index") and device.index is None:  # type: ignore[union-attr]
        device = None
    if device is None and not isinstance(stack, Resource) and _torch().cuda.is_initialized():
        current: int = _torch().cuda.current_device()
        return current
    return _library.ordinal_of(device, stack)  # type: ignore[arg-type]


def _resource(device: TorchDeviceLike) -> Resource:
    return _mr.get_per_device_resource(_library.device_of(_ordinal(device)))


def _allocator(allocate: str) -> Any:
    torch = _torch()
    made = torch.cuda.memory.CUDAPluggableAllocator(str(_library.library._name), allocate, "millpond_free")
    _kept.append(made)
    return made


# --- As the allocator of a `torch.cuda.MemPool` ---


def mem_pool(stack: StackLike = None, device: TorchDeviceLike = None) -> Any:
    """Return a `torch.cuda.MemPool` whose segments are blocks of a device's default resource.

    When memory runs out, PyTorch raises its own `torch.OutOfMemoryError`.

    Args:
        stack: The stack as text, or a resource. It becomes the device's default. With None, the device keeps
            its default, but `cuda+pool` replaces plain CUDA memory.
        device: A device of PyTorch or millpond, its number, or a text such as "cuda:1". None means PyTorch's
            current device.

    Returns:
        The pool, for `use_mem_pool` or `torch.cuda.use_mem_pool`.

    Raises:
        ImportError: PyTorch is not installed.
        UnsupportedError: `use` already serves the whole process.
        StackError: `stack` is malformed.

    Example:
        >>> import torch, millpond.torch  # doctest: +SKIP
        >>> pool = millpond.torch.mem_pool("cuda+pool")  # doctest: +SKIP
        >>> with torch.cuda.use_mem_pool(pool):  # doctest: +SKIP
        ...     tensor = torch.zeros(1000, device="cuda")
    """
    torch = _torch()
    if _state["is_process_wide"]:
        raise UnsupportedError("millpond.torch.use() already serves the whole process; use no MemPool")
    torch.cuda.init()
    ordinal = _ordinal(device, stack)
    _library.prepare(stack, ordinal)
    with torch.cuda.device(ordinal):  # PyTorch makes a pool for the current device
        # PyTorch's allocator turns a null pointer into its out-of-memory error.
        return torch.cuda.MemPool(_allocator("millpond_malloc").allocator())


_default_pools: dict[int, Any] = {}


@contextlib.contextmanager
def use_mem_pool(
    pool: Any = None, device: TorchDeviceLike = None, *, single_threaded_backward: bool = True
) -> Iterator[Any]:
    """Serve this thread's allocations inside a `with` block from a pool that `mem_pool` made.

    The pool serves only the calling thread. Autograd runs the backward pass on its own threads, which would
    get no memory from the pool. The calling thread therefore runs the backward pass, unless
    `single_threaded_backward` is False.

    Args:
        pool: The pool; None means the pool that millpond keeps for the device.
        device: The device, as for `mem_pool`.
        single_threaded_backward: Whether the calling thread runs the backward pass.

    Returns:
        A context manager. `with ... as pool` gives the pool.

    Raises:
        ImportError: PyTorch is not installed.
        UnsupportedError: `use` already serves the whole process.

    Example:
        >>> import torch, millpond.torch  # doctest: +SKIP
        >>> with millpond.torch.use_mem_pool():  # doctest: +SKIP
        ...     tensor = torch.zeros(1000, device="cuda")
    """
    torch = _torch()
    if pool is None:
        ordinal = _ordinal(device)
        if ordinal not in _default_pools:
            _default_pools[ordinal] = mem_pool(device=ordinal)
        pool = _default_pools[ordinal]
    with contextlib.ExitStack() as scopes:
        if single_threaded_backward:
            scopes.enter_context(torch.autograd.set_multithreading_enabled(False))
        scopes.enter_context(torch.cuda.use_mem_pool(pool, device))
        yield pool


# --- As the allocator of the process ---

_BASE_ALLOCATION = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t))


@_BASE_ALLOCATION  # type: ignore[untyped-decorator]
def _base_allocation(ptr: int, size: Any) -> int:
    # PyTorch asks in which allocation a block lies. In millpond, each block is a separate allocation.
    number = ctypes.c_uint64()
    if size and not _library.library.millpond_block_size(ctypes.c_void_p(ptr), ctypes.byref(number)):
        size[0] = number.value
    return ptr


def _too_late(ordinal: int) -> str:
    device = f", {ordinal}" if ordinal else ""
    return (
        "PyTorch has already created its own allocator, and never replaces it. PyTorch creates it in the "
        "first torch.cuda call, also in torch.cuda.set_device(). Move millpond.torch.use() above that call:\n"
        f'    millpond.torch.use("cuda+pool"{device})\n'
        f"    torch.cuda.set_device({ordinal})\n"
        "Under torchrun, use() without a device uses the device that LOCAL_RANK names. To serve only a part "
        "of the program from here on, write `with millpond.torch.use_mem_pool():`"
    )


def process_allocator() -> Any:
    """Return a PyTorch allocator for the whole process. It uses the default resource of each device.

    `use()` does more: it also sets up a device's stack, and makes PyTorch's statistics functions work.

    Returns:
        A `torch.cuda.memory.CUDAPluggableAllocator`, for `torch.cuda.memory.change_current_allocator`.

    Raises:
        ImportError: PyTorch is not installed.

    Example:
        >>> import torch, millpond.torch  # doctest: +SKIP
        >>> allocator = millpond.torch.process_allocator()  # doctest: +SKIP
        >>> torch.cuda.memory.change_current_allocator(allocator)  # doctest: +SKIP
    """
    made = _allocator("millpond_malloc_or_throw")
    hooks = made.allocator()
    hooks.set_record_stream_fn(_library.address_of("record_stream"))
    hooks.set_reset_fn(_library.address_of("empty_cache"))
    hooks.set_base_alloc_fn(ctypes.cast(_base_allocation, ctypes.c_void_p).value)
    # Memory that PyTorch allocates while it captures a graph stays with the graph.
    hooks.set_begin_allocate_to_pool(_library.address_of("begin_allocate_to_pool"))
    hooks.set_end_allocate_to_pool_fn(_library.address_of("end_allocate_to_pool"))
    hooks.set_release_pool(_library.address_of("release_pool"))
    return made


def use(stack: StackLike = None, device: TorchDeviceLike = None) -> None:
    """Serve all device memory of PyTorch in this process. Call it before the first `torch.cuda` call.

    PyTorch creates its own allocator in the first `torch.cuda` call, for example `torch.cuda.set_device`, and
    never replaces it later. In a job of several processes, LOCAL_RANK selects the default device. All other
    devices keep their default resources.

    After this call, PyTorch's statistics functions report millpond's memory. `restore_statistics` restores
    these functions, but PyTorch cannot change back to its own allocator.

    If memory runs out, PyTorch raises `RuntimeError`, because only its own allocator raises
    `torch.OutOfMemoryError`. The text of the error begins with `CUDA out of memory.`. Libraries look for this
    text to decide whether to try a smaller batch.

    Args:
        stack: The stack as text, or a resource. It becomes the device's default. With None, the device keeps
            its default, but `cuda+pool` replaces plain CUDA memory.
        device: A device of PyTorch or millpond, its number, or a text such as "cuda:1". None means the
            default device.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: PyTorch has already created its own allocator.
        StackError: `stack` is malformed.

    Example:
        >>> import torch, millpond.torch  # doctest: +SKIP
        >>> millpond.torch.use("cuda+pool")  # doctest: +SKIP
        >>> tensor = torch.zeros(1000, device="cuda")  # doctest: +SKIP
    """
    torch = _torch()
    if _state["is_process_wide"]:
        return
    if torch.cuda.is_initialized():
        raise RuntimeError(_too_late(torch.cuda.current_device()))
    _library.prepare(stack, _ordinal(device, stack))
    torch.cuda.memory.change_current_allocator(process_allocator())
    _state["is_process_wide"] = True
    serve_statistics()


# --- Statistics in the process-wide mode ---


def _counts(device: TorchDeviceLike) -> dict[str, int]:
    counted: dict[str, int] = dict.fromkeys(
        ("bytes_in_use", "bytes_requested", "peak_bytes_in_use", "bytes_reserved", "peak_bytes_reserved",
         "blocks_in_use", "blocks_free", "allocations", "deallocations"), 0)
    with contextlib.suppress(UnsupportedError):  # plain memory has no counters
        counted.update(_resource(device).counts())
    return counted


def memory_stats(device: TorchDeviceLike = None) -> dict[str, int]:
    """Return millpond's counts under the names of `torch.cuda.memory_stats`.

    Args:
        device: The device, as for `use`; None means PyTorch's current device.

    Returns:
        The counts by name, with sizes in bytes. A count that millpond does not keep is 0.

    Raises:
        ImportError: PyTorch is not installed.

    Example:
        >>> import millpond.torch
        >>> millpond.torch.memory_stats(0)["reserved_bytes.all.current"]
        0
    """
    c = _counts(device)
    known = {
        "allocated_bytes": (c["bytes_in_use"], c["peak_bytes_in_use"]),
        "active_bytes": (c["bytes_in_use"], c["peak_bytes_in_use"]),
        "requested_bytes": (c["bytes_requested"], c["bytes_requested"]),
        "reserved_bytes": (c["bytes_reserved"], c["peak_bytes_reserved"]),
        "inactive_split_bytes": (c["bytes_reserved"] - c["bytes_in_use"],) * 2,
        "allocation": (c["blocks_in_use"], c["blocks_in_use"]),
        "active": (c["blocks_in_use"], c["blocks_in_use"]),
        "inactive_split": (c["blocks_free"], c["blocks_free"]),
    }
    counts = {"allocation": (c["allocations"], c["deallocations"])}
    stats = {"num_alloc_retries": 0, "num_ooms": 0, "num_sync_all_streams": 0, "num_device_alloc": 0,
             "num_device_free": 0, "max_split_size": -1}
    names = [*known, "segment", "oversize_allocations", "oversize_segments"]
    for name in names:
        pools = [""] if name.startswith("oversize") else ["all.", "large_pool.", "small_pool."]
        for pool in pools:
            is_counted = pool in ("", "all.")
            current, peak = known.get(name, (0, 0)) if is_counted else (0, 0)
            made, ended = counts.get(name, (0, 0)) if is_counted else (0, 0)
            values = {"current": current, "peak": peak, "allocated": made, "freed": ended}
            stats.update((f"{name}.{pool}{key}", value) for key, value in values.items())
    return dict(sorted(stats.items()))


def mem_get_info(device: TorchDeviceLike = None) -> tuple[int, int]:
    """Return the free and the total memory of a device, in bytes.

    Args:
        device: The device, as for `use`; None means PyTorch's current device.

    Returns:
        The free bytes and the total bytes. The free bytes include free memory that millpond holds.

    Raises:
        ImportError: PyTorch is not installed.

    Example:
        >>> import millpond.torch
        >>> free, total = millpond.torch.mem_get_info(0)
        >>> 0 < free <= total
        True
    """
    return _resource(device).memory_info()


def reset_peak_memory_stats(device: TorchDeviceLike = None) -> None:
    """Reset the peak counts to the memory in use. This also resets the total counts.

    Args:
        device: The device, as for `use`; None means PyTorch's current device.

    Raises:
        ImportError: PyTorch is not installed.

    Example:
        >>> import millpond.torch
        >>> millpond.torch.reset_peak_memory_stats(0)
    """
    _resource(device).clear_counters()


def empty_cache() -> None:
    """Return the free memory that millpond holds, on all devices, to the driver.

    Example:
        >>> import millpond.torch
        >>> millpond.torch.empty_cache()
    """
    _library.check(_library.empty_cache())


def memory_report(device: TorchDeviceLike = None) -> MemoryReport:
    """Report the use of the memory of a device's default resource.

    Args:
        device: The device, as for `use`; None means PyTorch's current device.

    Returns:
        The report, with sizes in bytes.

    Raises:
        ImportError: PyTorch is not installed.

    Example:
        >>> import millpond.torch
        >>> millpond.torch.memory_report(0).data["stack"]
        'cuda'
    """
    from .report import memory_report as report

    return report(_resource(device))


# --- Snapshots in the process-wide mode ---

#: PyTorch's names of events, in the order of their bits in `millpond_record_history`.
_ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
            "segment_unmap", "oom")
_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: TorchDeviceLike = None,
    clear_history: bool = False,
    skip_actions: list[str] | None = None,
    **others: Any,
) -> None:
    _arguments.choice(enabled, "enabled", (None, "state", "all"))
    _arguments.choice(context, "context", _CONTEXTS)
    entries = _arguments.whole(max_entries, "max_entries", "a number of events, 0 or more")
    if any(action not in _ACTIONS for action in skip_actions or ()):
        allowed = f"a list of actions out of {', '.join(_ACTIONS)}"
        raise _arguments.wrong(ValueError, "skip_actions", allowed, skip_actions)
    if enabled is None:
        return _native.stop_history()
    is_state = enabled == "state"
    captured = min(_CONTEXTS[context], 1) if is_state else _CONTEXTS[context]
    skipped = sum(1 << _ACTIONS.index(action) for action in set(skip_actions or ()))
    _native.record_history(0 if is_state else entries, captured, skipped, bool(clear_history))


def _record(enabled: str | bool | None = "all", *args: Any, **kwargs: Any) -> None:
    if isinstance(enabled, bool):
        return _record_as_before(enabled, *args, **kwargs)
    return _record_memory_history(enabled, *args, **kwargs)


def _record_as_before(
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    device: TorchDeviceLike = None,
    record_context_cpp: bool = False,
    clear_history: bool = False,
    **others: Any,
) -> None:
    """Take the arguments of PyTorch before version 2.1."""
    if not enabled:
        return _native.stop_history()
    captured = 2 if trace_alloc_record_context else int(bool(record_context))
    entries = _arguments.whole(trace_alloc_max_entries, "trace_alloc_max_entries", "a number of events")
    _native.record_history(entries, captured, 0, bool(clear_history))


def _snapshot(device: TorchDeviceLike = None, **others: Any) -> dict[str, Any]:
    snapshot: dict[str, Any] = pickle.loads(_native.pickled_snapshot())
    return snapshot


def _dump_snapshot(filename: Any = "dump_snapshot.pickle", **others: Any) -> None:
    with open(filename, "wb") as file:
        file.write(_native.pickled_snapshot())


def _memory_snapshot(mempool_id: Any = None, **others: Any) -> list[dict[str, Any]]:
    segments: list[dict[str, Any]] = _snapshot()["segments"]
    return segments


def _refuser(what: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise UnsupportedError(f"not available while millpond serves PyTorch's memory: {what}")

    return refuse


def _patch(owner: Any, name: str, function: Callable[..., Any]) -> None:
    if hasattr(owner, name):
        _patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)


def serve_statistics() -> None:
    """Let PyTorch's statistics functions report millpond's memory. `use` calls this function.

    `torch.cuda.memory._snapshot`, `_dump_snapshot` and `_record_memory_history` also work, in PyTorch's own
    format. They record the events of all devices, with Python's call stacks but without C++ frames. A PyTorch
    function without a millpond counterpart raises `UnsupportedError`.

    Raises:
        ImportError: PyTorch is not installed.

    Example:
        >>> import torch, millpond.torch  # doctest: +SKIP
        >>> millpond.torch.serve_statistics()  # doctest: +SKIP
        >>> reserved = torch.cuda.memory_reserved()  # doctest: +SKIP
    """
    torch = _torch()
    if any(name == "memory_stats" for _, name, _ in _patched):
        return
    fraction = _refuser("a memory fraction; set the pool's maximum instead, as in cuda+pool:max=8GiB")
    functions: dict[str, Callable[..., Any]] = {
        "memory_stats": memory_stats,
        "mem_get_info": mem_get_info,
        "reset_peak_memory_stats": reset_peak_memory_stats,
        "reset_accumulated_memory_stats": reset_peak_memory_stats,
        "empty_cache": empty_cache,
        "memory_snapshot": _memory_snapshot,
        "_snapshot": _snapshot,
        "_dump_snapshot": _dump_snapshot,
        "_record_memory_history": _record,
        "set_per_process_memory_fraction": fraction,
        "get_per_process_memory_fraction": fraction,
    }
    # PyTorch's other functions, such as memory_allocated, look these functions up by name in the module.
    for name, function in functions.items():
        _patch(torch.cuda.memory, name, function)
        _patch(torch.cuda, name, function)


def restore_statistics() -> None:
    """Restore PyTorch's own statistics functions. After `use`, these functions raise an error.

    This also stops the recording of `torch.cuda.memory._record_memory_history`, and discards the events.

    Example:
        >>> import millpond.torch
        >>> millpond.torch.restore_statistics()
    """
    if _patched:
        _native.stop_history()
    for owner, name, function in reversed(_patched):
        setattr(owner, name, function)
    _patched.clear()
