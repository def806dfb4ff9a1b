"""Device memory from CuPy's pool for Numba, with NUMBA_CUDA_MEMORY_MANAGER=cupy_numba. See README.md.

The memory is for the default stream, as all memory of Numba is. For a non-blocking stream, allocate inside
`with cupy_numba.stream(s):`.
"""

import contextlib
import ctypes
import itertools
import threading
import weakref

import cupy
from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer
from numba.cuda.cudadrv.driver import driver

# More bytes than any device can address. CuPy rounds sizes up without a check for an overflow.
ADDRESS_SPACE = 1 << 57

_scope = threading.local()


@contextlib.contextmanager
def stream(of_numba):
    """Allocate for a stream of Numba inside the `with` block, on this thread."""
    before = getattr(_scope, "stream", None)
    _scope.stream = of_numba
    try:
        yield
    finally:
        _scope.stream = before


class _Deferral:
    """The memory that was freed during one deferral. It goes back to the pool after its last deferral."""

    def __init__(self):
        self.parked = []


class _Blocks:
    """The device memory of one manager. Finalizers keep it alive, and use no lock, because the garbage
    collector can call them inside any other call. So each step is one call on a built-in type."""

    def __init__(self):
        self.numbers = itertools.count()
        self.live = {}
        self.deferrals = []

    def keep(self, memory):
        number = next(self.numbers)
        self.live[number] = memory
        return number

    def end(self, number):
        """Free the memory, unless a reset did. The address may have a new owner, so it is not looked up."""
        memory = self.live.pop(number, None)
        if memory is not None:
            for deferral in self.deferrals.copy():
                deferral.parked.append(memory)

    def unpark(self):
        """Free what deferrals hold."""
        for deferral in self.deferrals.copy():
            deferral.parked.clear()


class CupyMemoryManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):
    """Device memory from CuPy's default pool, shared with CuPy's arrays; host memory from Numba."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._blocks = _Blocks()
        # CuPy knows a stream by its handle. A stream that stays alive keeps its handle.
        self._streams = {}

    @contextlib.contextmanager
    def _pool(self):
        with cupy.cuda.Device(self.context.device.id):
            yield cupy.get_default_memory_pool()

    def initialize(self):
        pass

    def _malloc(self, size):
        of_numba = getattr(_scope, "stream", None)
        handle = of_numba.__cuda_stream__()[1] if of_numba else 0
        if handle:
            self._streams[handle] = of_numba
        where = cupy.cuda.ExternalStream(int(handle)) if handle else cupy.cuda.Stream.null
        with self._pool() as pool, where:
            return pool.malloc(size)

    def memalloc(self, size):
        if size > ADDRESS_SPACE:
            raise MemoryError(f"no device has {size} bytes")
        blocks = self._blocks
        try:
            memory = self._malloc(size)
        except MemoryError:
            blocks.unpark()
            self.deallocations.clear()
            memory = self._malloc(size)
        pointer, number = ctypes.c_void_p(memory.ptr), blocks.keep(memory)
        return MemoryPointer(weakref.proxy(self.context), pointer, size, finalizer=lambda: blocks.end(number))

    def get_memory_info(self):
        free, total = driver.cuMemGetInfo()
        with self._pool() as pool:
            return MemoryInfo(free=free + pool.free_bytes(), total=total)

    def reset(self):
        super().reset()
        # The arrays that are still alive find nothing in the table.
        self._blocks.live.clear()
        self._blocks.unpark()
        with self._pool() as pool:
            pool.free_all_blocks()
            # While CuPy has memory, such as its arrays, part of it may be under these handles.
            if pool.total_bytes() == 0:
                self._streams.clear()

    @contextlib.contextmanager
    def defer_cleanup(self):
        with super().defer_cleanup():
            deferral = _Deferral()
            self._blocks.deferrals.append(deferral)
            try:
                yield
            finally:
                self._blocks.deferrals.remove(deferral)

    @property
    def interface_version(self):
        return 1


_numba_memory_manager = CupyMemoryManager
