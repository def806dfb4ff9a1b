"""Lets Numba allocate device memory from a millpond stack, through Numba's plug-in interface (NBEP 7).

>>> import millpond.numba
>>> millpond.numba.use()  # doctest: +SKIP

The environment variable NUMBA_CUDA_MEMORY_MANAGER=millpond.numba does the same as `use()`, without a change
to the program. millpond supports numba-cuda and numba-cuda-mlir. Numba still allocates host memory and
managed memory itself.

Numba names no stream when it allocates, so millpond uses the legacy default stream. The memory is freed in
the order of this stream. The stream waits for all other streams, except non-blocking ones. If a non-blocking
stream uses an array, call `record_stream`. To allocate for another stream, write
`with millpond.numba.stream(s):`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import _arguments, _errors, _library, _locks
from ._native import Resource
from .typing import StackLike, StreamLike

#: The stack for a device whose default is plain CUDA memory. With `pages=off`, CUDA's legacy IPC can share
#: the memory with other processes.
DEFAULT_STACK = "cuda+pool:pages=off"
_DRIVERS = ("numba.cuda.cudadrv.driver", "numba_cuda_mlir.numba_cuda.cudadrv.driver")
_scope = _library.StreamScope()
_lock = _locks.lock()
_state: dict[str, Any] = {"calls": 0, "stack": None}


def memalloc_calls() -> int:
    """Return how many of Numba's allocations millpond served in this process.

    Example:
        >>> import millpond.numba
        >>> millpond.numba.memalloc_calls() >= 0
        True
    """
    calls: int = _state["calls"]
    return calls


def stream(stream: StreamLike | None) -> contextlib.AbstractContextManager[None]:
    """Allocate for a stream inside a `with` block, on this thread. The memory is freed in the stream's order.

    Args:
        stream: The stream; None means the default stream.

    Returns:
        The context manager.

    Raises:
        TypeError: `stream` is not a stream. The `with` statement raises this error, not the call.

    Example:
        >>> import millpond.numba
        >>> with millpond.numba.stream(0):
        ...     pass  # array = cuda.device_array(1000)
    """
    return _scope.use(stream)


def _ending(end: Callable[[Any], object], handle: Any) -> functools.partial[None]:
    """Return a finalizer that any thread may call, also at exit and after a reset of the context.

    In a forked child, the finalizer does nothing.
    """
    return functools.partial(_end_in, _library.generation[0], _library.generation, end, handle)


def _end_in(made_in: int, generation: list[int], end: Callable[[Any], object], handle: Any) -> None:
    if generation[0] == made_in:
        end(handle)


def _memory_of(pointer: Any) -> tuple[Any, Any]:
    """Return a pair: libmillpond's handle of a pointer's memory, and the object that holds the handle.

    If `pointer` is a view, the object is the pointer that it views. If the memory is not from millpond, the
    pair is `(None, None)`.
    """
    seen = pointer
    while seen is not None:
        handle = getattr(seen, "_millpond_memory", None)
        if handle is not None:
            return handle, seen
        below = getattr(seen, "_mem", None)
        if below is None:
            below = getattr(seen, "owner", None)
        seen = below if below is not seen else None
    return None, None


def _stack() -> StackLike:
    """Return the stack to use.

    If the stack is a resource, and a reset of the context ended it, return the resource's text instead.
    """
    stack: StackLike = _state["stack"]
    if isinstance(stack, Resource):
        try:
            stack.memory_info()
        except _errors.PoisonedError:
            _state["stack"] = stack = stack.text
    return stack


def record_stream(array: Any, stream: StreamLike) -> None:
    """Announce that work on another stream uses an array's memory. The memory is reused only after that work.

    Args:
        array: The Numba device array.
        stream: The other stream, whose work uses the array.

    Raises:
        ValueError: The array's memory is not from millpond.
        TypeError: `array` is not a device array of Numba, or `stream` is not a stream.

    Example:
        >>> import millpond.numba
        >>> from numba import cuda  # doctest: +SKIP
        >>> array, other = cuda.device_array(1000), cuda.stream()  # doctest: +SKIP
        >>> kernel[1, 128, other](array)  # doctest: +SKIP
        >>> millpond.numba.record_stream(array, other)  # doctest: +SKIP
    """
    handle = _library.stream_pointer(stream)
    _arguments.has(array, "array", "gpu_data", "a device array of Numba")
    memory, pointer = _memory_of(array.gpu_data)
    if memory is None:
        raise ValueError("the memory of `array` is not from millpond: call millpond.numba.use() first")
    manager = pointer._millpond_manager
    _library.check(_library.manager_record_stream(manager._handle(), memory, handle))


def manager_class(driver: Any) -> type[Any]:
    """Return the memory manager's class for a driver module of Numba.

    Args:
        driver: The module `numba.cuda.cudadrv.driver`, of numba-cuda or of numba-cuda-mlir.

    Returns:
        The class, for `numba.cuda.set_memory_manager`.

    Raises:
        TypeError: `driver` is not such a module.

    Example:
        >>> import millpond.numba
        >>> from numba.cuda.cudadrv import driver  # doctest: +SKIP
        >>> millpond.numba.manager_class(driver).__name__  # doctest: +SKIP
        'MillpondMemoryManager'
    """
    _arguments.has(driver, "driver", "HostOnlyCUDAMemoryManager", "the module `numba.cuda.cudadrv.driver`")
    return _class_of(driver)


@functools.cache
def _class_of(driver: Any) -> type[Any]:
    class MillpondOutOfMemoryError(driver.CudaAPIError, _errors.OutOfMemoryError):  # type: ignore[misc]
        """Numba's own out-of-memory error, with millpond's report."""

        def __str__(self) -> str:
            return self.report or str(self.msg)

    class MillpondMemoryManager(
        driver.GetIpcHandleMixin,  # type: ignore[misc]
        driver.HostOnlyCUDAMemoryManager,  # type: ignore[misc]
    ):
        """Allocates device memory from the default resource of the context's device."""

        interface_version = 1

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._manager: int | None = None
            self._is_prepared = False

        def _handle(self) -> int | None:
            if self._manager is None:
                with _lock:
                    if self._manager is None:
                        device = _library.find_device(self._ordinal())
                        made = ctypes.c_void_p()
                        try:
                            _library.check(_library.manager_new(device, ctypes.byref(made)))
                        finally:
                            _library.device_free(device)
                        end = _ending(_library.manager_free, made.value)
                        weakref.finalize(self, end).atexit = False
                        self._manager = made.value
            return self._manager

        def _ordinal(self) -> int:
            # If Numba has attached to an existing context, `device` is CUDA's own device, which is a number.
            device = self.context.device
            return device.id if hasattr(device, "id") else int(device)

        def initialize(self) -> None:
            if not self._is_prepared:
                _library.prepare(_stack(), self._ordinal(), DEFAULT_STACK)
                self._is_prepared = True
            _library.check(_library.manager_initialize(self._handle()))

        def memalloc(self, size: int) -> Any:
            manager, used_on = self._handle(), _scope.current
            if used_on is None:
                # The handle 2 means the per-thread default stream: each thread has its own.
                used_on = 2 if getattr(driver.config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0) else 0
            address, memory = ctypes.c_uint64(), ctypes.c_void_p()
            places = ctypes.byref(address), ctypes.byref(memory)

            def attempt() -> None:
                status = _library.manager_allocate(manager, size, used_on, *places)
                if status:
                    raise self._error(_library.last_error(status))

            self._attempt_allocation(attempt)
            end = _ending(_library.memory_free, memory.value)
            pointer = driver.MemoryPointer(
                weakref.proxy(self.context), ctypes.c_void_p(address.value), size, finalizer=end
            )
            pointer._millpond_memory, pointer._millpond_manager = memory.value, self
            pointer._millpond_stream = _scope.owner  # the stream must outlive the memory
            with _lock:
                _state["calls"] += 1
            return pointer

        @staticmethod
        def _error(error: _errors.MillpondError) -> Exception:
            if not isinstance(error, _errors.OutOfMemoryError):
                return error
            code = driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
            raised = MillpondOutOfMemoryError(code, str(error))
            raised.report, raised.data = error.report, error.data
            return raised

        def get_memory_info(self) -> Any:
            free, total = ctypes.c_uint64(), ctypes.c_uint64()
            places = ctypes.byref(free), ctypes.byref(total)
            _library.check(_library.manager_memory_info(self._handle(), *places))
            return driver.MemoryInfo(free=free.value, total=total.value)

        def get_ipc_handle(self, memory: Any) -> Any:
            handle, pointer = _memory_of(memory)
            if handle is None:
                return super().get_ipc_handle(memory)
            data, offset = (ctypes.c_uint8 * 64)(), ctypes.c_uint64()
            _library.check(
                _library.manager_ipc_handle(self._handle(), handle, data, ctypes.byref(offset))
            )
            ipc = driver.binding.CUipcMemHandle()
            ctypes.memmove(ipc.getPtr(), data, len(data))  # some bindings lack the field `reserved`
            inside = int(memory.handle) - int(pointer.handle)
            identity = self.context.device.get_device_identity()
            return driver.IpcHandle(memory, ipc, memory.size, identity, offset=offset.value + inside)

        def reset(self) -> None:
            super().reset()
            self._is_prepared = False
            if self._manager is not None:
                _library.check(_library.manager_reset(self._manager))

        @contextlib.contextmanager
        def defer_cleanup(self) -> Iterator[None]:
            with super().defer_cleanup():
                deferral = ctypes.c_void_p()
                _library.check(_library.manager_defer(self._handle(), ctypes.byref(deferral)))
                try:
                    yield
                finally:
                    _library.deferral_free(deferral)

    return MillpondMemoryManager


def use(stack: StackLike = None, driver: Any = None) -> None:
    """Use millpond as Numba's memory manager. Call this function before Numba first uses a device.

    Args:
        stack: The stack as text, or a resource. It becomes the default of each device that Numba uses. With
            None, each device keeps its default, but `DEFAULT_STACK` replaces plain CUDA memory.
        driver: The driver module of one Numba package, to serve only this package. None serves each Numba
            package that is already imported. If no Numba package is imported, None serves numba-cuda.

    Raises:
        ImportError: numba-cuda is not installed.
        RuntimeError: Numba has already chosen its memory manager.
        TypeError: `stack` is neither a text nor a resource, or `driver` is not a module of Numba.

    Example:
        >>> import millpond.numba
        >>> millpond.numba.use("cuda+pool")  # doctest: +SKIP
        >>> from numba import cuda  # doctest: +SKIP
        >>> array = cuda.device_array(1000)  # doctest: +SKIP
    """
    _library.check_stack(stack)
    _state["stack"] = stack
    if driver is None:
        loaded = [sys.modules[name] for name in _DRIVERS if name in sys.modules]
        drivers = loaded or [_library.framework(_DRIVERS[0], "numba-cuda")]
    else:
        drivers = [driver]
    for module in drivers:
        manager = manager_class(module)
        module.set_memory_manager(manager)


def _driver_asking(frame: types.FrameType) -> Any:
    """Return Numba's driver module whose code runs in a frame, or else numba-cuda's driver module."""
    asking = frame.f_globals.get("__name__")
    if asking in _DRIVERS:
        return importlib.import_module(asking)
    return _library.framework(_DRIVERS[0], "numba-cuda")


def __getattr__(name: str) -> Any:
    # For NUMBA_CUDA_MEMORY_MANAGER=millpond.numba, Numba reads this name. The caller's frame shows which
    # Numba package reads it.
    if name != "_numba_memory_manager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return manager_class(_driver_asking(sys._getframe(1)))
