"""Device memory from millpond for Numba, with NUMBA_CUDA_MEMORY_MANAGER=millpond_numba. See README.md."""

import contextlib
import ctypes
import os
import pathlib
import weakref

from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer


def _load():
    shipped = pathlib.Path(__file__).with_name("libmillpond_numba.so")
    library = ctypes.CDLL(os.environ.get("MILLPOND_NUMBA_LIBRARY", str(shipped)))
    handle, number = ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in [
        ("error", ctypes.c_char_p, []),
        ("manager", handle, [ctypes.c_uint32]),
        ("initialize", ctypes.c_bool, [handle]),
        ("alloc", handle, [handle, number, ctypes.POINTER(number)]),
        ("free", None, [handle]),
        ("memory_info", ctypes.c_bool, [handle, ctypes.POINTER(number)]),
        ("reset", None, [handle]),
        ("defer", handle, [handle]),
        ("resume", None, [handle]),
    ]:
        function = getattr(library, f"millpond_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()


def _checked(result):
    """Return the result of a call, or raise its error."""
    if result:
        return result
    reason = _library.millpond_error().decode()
    kind = MemoryError if reason.startswith("M") else RuntimeError
    raise kind(reason[1:])


class MillpondMemoryManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):
    """Device memory from the stack named by MILLPOND_MEMORY_MANAGER, and host memory from Numba."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._manager = None

    def _of_device(self):
        if self._manager is None:
            self._manager = _checked(_library.millpond_manager(self.context.device.id))
        return self._manager

    def initialize(self):
        _checked(_library.millpond_initialize(self._of_device()))

    def memalloc(self, size):
        address = ctypes.c_uint64()
        memory = _checked(_library.millpond_alloc(self._of_device(), size, ctypes.byref(address)))

        def give_back():
            _library.millpond_free(memory)

        pointer = ctypes.c_void_p(address.value)
        return MemoryPointer(weakref.proxy(self.context), pointer, size, finalizer=give_back)

    def get_memory_info(self):
        info = (ctypes.c_uint64 * 2)()
        _checked(_library.millpond_memory_info(self._of_device(), info))
        return MemoryInfo(free=info[0], total=info[1])

    def reset(self):
        super().reset()
        if self._manager is not None:
            _library.millpond_reset(self._manager)

    @contextlib.contextmanager
    def defer_cleanup(self):
        with super().defer_cleanup():
            guard = _checked(_library.millpond_defer(self._of_device()))
            try:
                yield
            finally:
                _library.millpond_resume(guard)

    @property
    def interface_version(self):
        return 1


_numba_memory_manager = MillpondMemoryManager
