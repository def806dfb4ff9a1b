"""The frameworks' modules over the simulated device. The tests use real classes if these need no GPU, and
stand-ins otherwise.

tests/gpu holds the tests with the real frameworks on a GPU.
"""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import types
import weakref

import pytest

import millpond
from millpond import _library


def in_use():
    return millpond.mr.get_current_device_resource().counts()["bytes_in_use"]


@pytest.mark.parametrize("name", ["cupy", "torch", "rmm"])
def test_a_framework_that_is_not_installed_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    module = __import__(f"millpond.{name}", fromlist=["use"])
    with pytest.raises(ImportError, match=rf"{name} cannot be imported .*pip install"):
        module.use()


def test_the_streams_of_all_libraries_are_understood():
    class Handle:
        value = 7

    class Protocol:
        def __cuda_stream__(self):
            return (0, 9)

    assert _library.stream_pointer(None) == 0
    assert _library.stream_pointer(5) == 5
    assert _library.stream_pointer(Protocol()) == 9
    assert _library.stream_pointer(types.SimpleNamespace(__cuda_stream__=(0, 4))) == 4
    assert _library.stream_pointer(types.SimpleNamespace(handle=Handle())) == 7
    assert _library.stream_pointer(types.SimpleNamespace(ptr=3)) == 3
    with pytest.raises(TypeError, match="`stream` must be a stream"):
        _library.stream_pointer("s")


def test_only_plain_memory_that_nobody_asked_for_is_replaced(monkeypatch):
    monkeypatch.delenv("MILLPOND_STACK", raising=False)
    assert _library.prepare(None, 0).text == "cuda+pool"
    assert _library.prepare(None, 0, "cuda+pool:pages=off").text == "cuda+pool"
    assert _library.prepare("cuda+statistics", 0).text == "cuda+statistics"
    own = millpond.stack("cuda+pool")
    assert _library.prepare(own, 0) is own
    assert millpond.mr.get_current_device_resource() is own
    millpond.mr.reset_per_device_resource(None)
    monkeypatch.setenv("MILLPOND_STACK", "cuda")
    assert _library.prepare(None, 0).text == "cuda"


# --- Numba: the real classes of numba-cuda ---


@pytest.fixture
def numba_driver():
    return pytest.importorskip("numba.cuda.cudadrv.driver", reason="SKIPPED: numba-cuda is not installed")


class Context:
    """The parts of Numba's context that a manager uses."""

    def __init__(self):
        self.device = types.SimpleNamespace(id=0, get_device_identity=lambda: {"id": 0})


@pytest.fixture
def manager(numba_driver):
    import millpond.numba

    context = Context()
    made = millpond.numba.manager_class(numba_driver)(context=context)
    made.initialize()
    return made


def test_numba_gets_memory_that_goes_back(manager, numba_driver):
    import millpond.numba

    assert millpond.mr.get_current_device_resource().text == "cuda+pool:pages=off"
    calls, before = millpond.numba.memalloc_calls(), in_use()
    pointer = manager.memalloc(1000)
    assert isinstance(pointer, numba_driver.MemoryPointer)
    assert pointer.size == 1000 and pointer.refct == 1 and int(pointer.device_pointer) % 256 == 0
    assert millpond.numba.memalloc_calls() == calls + 1
    assert in_use() >= before + 1000
    del pointer
    assert in_use() == before


def test_numba_reads_the_version_without_a_device(numba_driver):
    import millpond.numba

    assert millpond.numba.manager_class(numba_driver)(context=None).interface_version == 1


@pytest.mark.parametrize("name", ["millpond", "millpond.numba"])
def test_numba_finds_the_manager_by_the_environment_variable(name):
    pytest.importorskip("numba.cuda", reason="SKIPPED: numba-cuda is not installed")
    program = (
        "from numba.cuda.cudadrv import driver\n"
        "driver._ensure_memory_manager()\n"
        "import millpond.numba\n"
        "assert driver._memory_manager is millpond.numba.manager_class(driver), driver._memory_manager\n"
    )
    environment = os.environ | {"NUMBA_CUDA_MEMORY_MANAGER": name}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_use_sets_numbas_manager(numba_driver, monkeypatch):
    import millpond.numba

    monkeypatch.setattr(numba_driver, "_memory_manager", None)
    millpond.numba.use()
    assert numba_driver._memory_manager is millpond.numba.manager_class(numba_driver)


def test_a_pointer_of_before_a_reset_frees_nothing_of_after(manager):
    old = manager.memalloc(1 << 20)
    address = int(old.device_pointer)
    manager.reset()
    manager.initialize()
    fresh = [manager.memalloc(1 << 20) for _ in range(4)]
    held = in_use()
    assert held >= 4 << 20
    del old
    gc.collect()
    assert in_use() == held, f"the end of the old pointer at {address:#x} freed another's memory"
    fresh.clear()
    assert in_use() == 0


def test_a_reset_before_the_first_use_is_allowed(numba_driver):
    import millpond.numba

    context = Context()
    millpond.numba.manager_class(numba_driver)(context=context).reset()


def test_numbas_out_of_memory_error_is_both(manager, numba_driver):
    with pytest.raises(millpond.OutOfMemoryError) as caught:
        manager.memalloc(1 << 50)
    assert isinstance(caught.value, numba_driver.CudaAPIError)
    assert caught.value.code == numba_driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert caught.value.report and caught.value.report in str(caught.value)


def test_numba_learns_free_and_total_memory(manager):
    info = manager.get_memory_info()
    assert 0 < info.free <= info.total


def test_cleanup_is_deferred_and_nests(manager):
    pointer = manager.memalloc(1000)
    with manager.defer_cleanup():
        with manager.defer_cleanup():
            del pointer
            assert in_use() > 0
        assert in_use() > 0
    assert in_use() == 0


def test_an_ipc_handle_is_of_numbas_type_or_the_error_is_clear(manager, numba_driver):
    pointer = manager.memalloc(1000)
    try:
        handle = manager.get_ipc_handle(pointer.view(256))
    except millpond.UnsupportedError as error:
        pytest.skip(f"the simulated device shares no memory: {error}")
    assert isinstance(handle, numba_driver.IpcHandle)
    assert any(ctypes.string_at(handle.handle.getPtr(), 64))
    assert handle.offset >= 256


def test_numba_allocates_for_the_stream_of_a_context(manager):
    import millpond.numba

    stream = millpond.Stream()
    with millpond.numba.stream(stream):
        pointer = manager.memalloc(1000)
        assert pointer._millpond_stream is stream
    array = types.SimpleNamespace(gpu_data=pointer)
    millpond.numba.record_stream(array, millpond.Stream())
    del pointer, array
    with pytest.raises(ValueError, match="not from millpond"):
        millpond.numba.record_stream(types.SimpleNamespace(gpu_data=object()), stream)


def test_numbas_finalizers_are_silent_at_exit(numba_driver):
    program = (
        "from numba.cuda.cudadrv import driver\n"
        "import millpond.numba, types\n"
        "context = types.SimpleNamespace(device=types.SimpleNamespace(id=0))\n"
        "class Context: device = types.SimpleNamespace(id=0)\n"
        "context = Context()\n"
        "manager = millpond.numba.manager_class(driver)(context=context)\n"
        "manager.initialize()\n"
        "keep = [manager.memalloc(1000) for _ in range(10)]\n"
        "manager.reset(); manager.initialize()\n"
        "keep += [manager.memalloc(1000) for _ in range(10)]\n"
        "import os, warnings\n"
        # CUDA's own threads make Python 3.12 and later warn at a fork.
        "warnings.filterwarnings('ignore', '.*multi-threaded', DeprecationWarning)\n"
        "child = os.fork()\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# --- CuPy: stand-ins with the shape of its classes ---


def _capsule(function, name):
    """Return a capsule like those in which Cython exports functions. It ends with `function`."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(ctypes.cast(function, ctypes.c_void_p), name, None)


@pytest.fixture(params=["13.6.0", "14.2.0"])
def cupy(monkeypatch, request):
    module, cuda, memory = (types.ModuleType(n) for n in ("cupy", "cupy.cuda", "cupy.cuda.memory"))
    module.__version__ = request.param

    class OutOfMemoryError(MemoryError):
        def __init__(self, size, total, limit=0):
            super().__init__(f"{size} {total} {limit}")

    class UnownedMemory:
        def __init__(self, ptr, size, owner, device_id=-1):
            assert device_id >= 0, "CuPy asks the driver for each address"
            self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id

    class CFunctionAllocator:
        """Calls functions with the GIL held, and raises their exceptions, as CuPy's class does."""

        def __init__(self, param, malloc, free, owner):
            pointer = ctypes.c_void_p
            self.param, self.owner = param, owner
            self.allocate = ctypes.PYFUNCTYPE(pointer, pointer, ctypes.c_size_t, ctypes.c_int)(malloc)
            self.free = ctypes.PYFUNCTYPE(None, pointer, pointer, ctypes.c_int)(free)

        def malloc(self, size):
            return MemoryPointer(CFunctionAllocatorMemory(self, size), 0)

    class CFunctionAllocatorMemory:
        def __init__(self, allocator, size):
            self.allocator, self.size, self.device_id, self.ptr = allocator, size, 0, 0
            if size:
                self.ptr = self.allocated = allocator.allocate(allocator.param, size, 0)

        def __del__(self):
            if self.ptr:
                self.allocator.free(self.allocator.param, self.allocated, 0)

    class MemoryPointer:
        def __init__(self, mem, offset):
            self.mem, self.ptr = mem, mem.ptr + offset

    memory.OutOfMemoryError, memory.UnownedMemory = OutOfMemoryError, UnownedMemory
    memory.MemoryPointer, memory.CFunctionAllocator = MemoryPointer, CFunctionAllocator
    state = types.SimpleNamespace(allocator="cupy's own", stream=millpond.Stream(0))
    memory.get_allocator = lambda: state.allocator
    cuda.set_allocator = lambda function: setattr(state, "allocator", function)
    cuda.get_current_stream = lambda: state.stream
    cuda.runtime = types.SimpleNamespace(getDevice=lambda: 0)
    cuda.memory, module.cuda, module._default_memory_pool = memory, cuda, "cupy's pool"
    module.state = state
    current = ctypes.PYFUNCTYPE(ctypes.c_ssize_t)(lambda: state.stream.ptr)
    backend = types.ModuleType("cupy_backends.cuda.stream")
    backend.__pyx_capi__ = {"get_current_stream_ptr": _capsule(current, b"intptr_t (void)")}
    names = types.ModuleType("cupy_backends"), types.ModuleType("cupy_backends.cuda")
    names[0].cuda, names[1].stream = names[1], backend
    for value in (module, cuda, memory, *names, backend):
        monkeypatch.setitem(sys.modules, value.__name__, value)
    monkeypatch.delitem(sys.modules, "millpond.cupy", raising=False)
    import millpond.cupy as ours

    ours.use()
    assert (ours._state["functions"] is not None) == (request.param == "14.2.0")
    yield module
    ours.disable()
    assert (state.allocator, module._default_memory_pool) == ("cupy's own", "cupy's pool")
    sys.modules.pop("millpond.cupy")


def test_cupy_gets_memory_of_the_current_stream(cupy):
    cupy.state.stream = millpond.Stream()
    alive = weakref.ref(cupy.state.stream)
    first = cupy.state.allocator(1000)  # sets up the device's stack
    pointer = cupy.state.allocator(1000)
    assert pointer.ptr % 256 == 0 and pointer.mem.size == 1000
    cupy.state.stream = millpond.Stream(0)
    del first
    assert alive() is not None, "the block goes back in its order"
    pool = cupy._default_memory_pool
    assert 1000 <= pool.used_bytes() <= pool.total_bytes()
    del pointer
    assert alive() is None
    assert pool.used_bytes() == 0 and pool.n_free_blocks() > 0
    assert pool.free_bytes() == pool.total_bytes() > 0
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_no_bytes_are_no_block_of_cupys(cupy):
    pointer = cupy.state.allocator(0)
    assert (pointer.ptr, pointer.mem.device_id) == (0, 0)


def test_cupy_raises_its_own_error_with_the_report(cupy):
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError) as caught:
        cupy.state.allocator(1 << 50)
    assert isinstance(caught.value.__cause__, millpond.OutOfMemoryError)
    assert caught.value.__cause__.report


def test_cupys_limit_counts_a_request_that_is_served_once(cupy, monkeypatch):
    """Another thread waits until the request is over: its bytes are in use, and it is still in progress."""
    import millpond.cupy as ours

    cupy._default_memory_pool.set_limit(size=1 << 20)
    is_served, may_end, kept = threading.Event(), threading.Event(), []
    malloc, wait = ours._malloc, ours._asked.wait

    def slow(*arguments):
        ptr = malloc(*arguments)
        is_served.set()
        may_end.wait()
        return ptr

    def noticed(patience):
        may_end.set()
        wait(patience)

    monkeypatch.setattr(ours, "_PATIENCE", 60)
    monkeypatch.setattr(ours, "_malloc", slow)
    monkeypatch.setattr(ours._asked, "wait", noticed)
    thread = threading.Thread(target=lambda: kept.append(cupy.state.allocator(1 << 19)))
    thread.start()
    is_served.wait()
    try:
        kept.append(cupy.state.allocator(1 << 19))
    finally:
        may_end.set()
        thread.join()
    assert len(kept) == 2 and cupy._default_memory_pool.used_bytes() == 1 << 20
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.state.allocator(1)


def test_a_request_that_waits_for_another_thread_is_not_waited_for_by_it(cupy, monkeypatch):
    """Two threads wait for each other, but the thread at CuPy's limit waits only for a moment."""
    import millpond.cupy as ours

    cupy._default_memory_pool.set_limit(size=1 << 20)
    is_asked, is_refused, malloc, kept = threading.Event(), threading.Event(), ours._malloc, []

    def waits_for_the_other(*arguments):
        is_asked.set()
        is_refused.wait()
        return malloc(*arguments)

    monkeypatch.setattr(ours, "_PATIENCE", 0.01)
    monkeypatch.setattr(ours, "_malloc", waits_for_the_other)
    thread = threading.Thread(target=lambda: kept.append(cupy.state.allocator(1 << 20)))
    thread.start()
    is_asked.wait()
    try:
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.state.allocator(1)
    finally:
        is_refused.set()
        thread.join()
    assert len(kept) == 1


def test_a_request_within_a_request_does_not_wait_for_cupys_limit(cupy):
    import millpond.cupy as ours

    base, refused = millpond.mr.CudaMemoryResource(), []

    def allocate(nbytes, stream):
        try:
            cupy.state.allocator(1 << 19)
        except cupy.cuda.memory.OutOfMemoryError:
            refused.append(nbytes)
        return base.allocate(nbytes, stream)

    own = millpond.mr.CallbackMemoryResource(allocate, base.deallocate)
    ours.use(millpond.mr.StatisticsResourceAdaptor(own))
    cupy._default_memory_pool.set_limit(size=1 << 20)
    assert cupy.state.allocator((1 << 19) + 1) and refused == [(1 << 19) + 1]


def test_cupys_limit_holds(cupy):
    pool = cupy._default_memory_pool
    pool.set_limit(size=1 << 20)
    assert pool.get_limit() == 1 << 20
    first = cupy.state.allocator(1 << 19)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.state.allocator((1 << 19) + 1)
    del first
    assert cupy.state.allocator(1 << 19)
    pool.set_limit(fraction=0.5)
    assert pool.get_limit() == millpond.Device().memory_info()[1] // 2
    pool.set_limit(size=0)
    assert pool.get_limit() == 0
    for wrong in ({}, {"size": 1, "fraction": 0.5}, {"fraction": 2}, {"size": -1}):
        with pytest.raises(ValueError):
            pool.set_limit(**wrong)


def test_cupy_announces_another_stream(cupy):
    import millpond.cupy as ours

    pointer = cupy.state.allocator(1000)
    array = types.SimpleNamespace(data=pointer)
    ours.record_stream(array, millpond.Stream())
    pointer.mem.ptr += 1
    with pytest.raises(millpond.InvalidArgumentError):
        ours.record_stream(array, millpond.Stream())
    del pointer, array


# --- PyTorch: the stand-in of conftest.py ---


def test_torchs_pool_is_over_the_functions_that_return_null(torch):
    import millpond.torch as ours

    with ours.use_mem_pool() as pool:
        assert torch.given["pool"] is pool and pool[0] == "pool"
    assert torch.given["allocate"] == "millpond_malloc" and torch.given["threads"] is False
    with ours.use_mem_pool() as again:
        assert again is pool
    assert millpond.mr.get_current_device_resource().text == "cuda+pool"


def test_the_process_wide_mode_sets_hooks_and_statistics(torch):
    import millpond.torch as ours

    ours.use("cuda+pool")
    ours.use()  # no further change
    assert torch.given["allocate"] == "millpond_malloc_or_throw" and torch.given["current"]
    assert set(torch.hooks) == {
        "set_record_stream_fn", "set_reset_fn", "set_base_alloc_fn",
        "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool",
    }
    ptr = _library.malloc(3000, 0, None)
    size = ctypes.c_size_t()
    pointer = ctypes.c_void_p
    base = ctypes.CFUNCTYPE(pointer, pointer, pointer)(torch.hooks["set_base_alloc_fn"])
    assert (base(ptr, ctypes.addressof(size)), size.value) == (ptr, 3000)
    record = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(torch.hooks["set_record_stream_fn"])
    record(ptr, None)
    stats = torch.cuda.memory_stats("cuda:0")
    assert stats["allocated_bytes.all.current"] >= 3000
    assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"]
    assert stats["allocation.all.allocated"] == 1
    _library.free(ptr, 0, 0, None)
    ctypes.CFUNCTYPE(None)(torch.hooks["set_reset_fn"])()
    assert torch.cuda.memory.memory_stats()["reserved_bytes.all.current"] == 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    with pytest.raises(millpond.UnsupportedError, match="cuda.pool:max"):
        torch.cuda.memory.set_per_process_memory_fraction(0.5)
    segments = torch.cuda.memory.memory_snapshot()
    assert segments == torch.cuda.memory._snapshot()["segments"]
    with pytest.raises(millpond.UnsupportedError, match="whole process"):
        ours.mem_pool()
    ours.restore_statistics()
    assert torch.cuda.memory_stats is None and torch.cuda.memory.memory_snapshot is None
    assert torch.cuda.memory._record_memory_history is None


def test_the_process_wide_mode_is_refused_after_the_first_use(torch):
    import millpond.torch as ours

    torch.cuda.is_initialized = lambda: True
    torch.cuda.current_device = lambda: 0
    with pytest.raises(RuntimeError, match="use_mem_pool"):
        ours.use()
    assert "current" not in torch.given


# --- RMM: a stand-in ---


def test_rmms_current_resource_is_ours(monkeypatch):
    rmm = types.ModuleType("rmm")
    defaults = {0: "rmm's own"}
    rmm.mr = types.SimpleNamespace(
        CallbackMemoryResource=lambda allocate, deallocate: (allocate, deallocate),
        get_per_device_resource=defaults.get,
        set_per_device_resource=defaults.__setitem__,
    )
    monkeypatch.setitem(sys.modules, "rmm", rmm)
    import millpond.rmm as ours

    allocate, deallocate = ours.use("cuda+pool")
    assert defaults[0] == (allocate, deallocate)
    stream = millpond.Stream()
    ptr = allocate(1000, stream)
    assert in_use() >= 1000
    deallocate(ptr, 1000, stream)
    assert in_use() == 0
    with pytest.raises(MemoryError):
        allocate(1 << 50, stream)
    ours.disable()
    assert defaults[0] == "rmm's own"


# --- cuda.core: its real base class, and stand-ins for its buffers, which need a driver ---


def test_cuda_cores_resource_takes_the_stream_in_each_way(monkeypatch):
    core = pytest.importorskip("cuda.core", reason="SKIPPED: cuda-core is not installed")
    import millpond.cuda_core

    mr = millpond.cuda_core.memory_resource("cuda+pool")
    assert isinstance(mr, core.MemoryResource)
    assert (mr.is_device_accessible, mr.is_host_accessible) == (True, False)
    assert (mr.is_managed, mr.device_id) == (False, 0)
    monkeypatch.setattr(type(mr), "_buffer", lambda self, ptr, size, stream: ptr)
    stream = millpond.Stream()
    builder = types.SimpleNamespace(stream=stream)
    for given in (None, stream, builder):
        ptr = mr.allocate(1000, stream=given)
        assert in_use() >= 1000
        mr.deallocate(ptr, 1000, stream)  # 0.5
        ptr = mr.allocate(1000, given)
        mr.deallocate(ptr=ptr, size=1000, stream=given)  # 1.x
        ptr = mr.allocate(1000, given)
        mr.deallocate(ptr, 1000)
        assert in_use() == 0


# --- Dask: a real cluster ---


def test_dask_configures_all_workers_also_a_late_one():
    distributed = pytest.importorskip("distributed", reason="SKIPPED: distributed is not installed")
    import millpond.dask

    def used():
        buffer = millpond.DeviceBuffer(size=5000)
        return millpond.mr.get_current_device_resource().text, buffer.size

    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        millpond.dask.setup(client, "cuda+pool+statistics")
        millpond.dask.setup(client, "cuda+pool+statistics")  # no further change
        assert set(client.run(used).values()) == {("cuda+pool+statistics", 5000)}
        cluster.scale(3)
        client.wait_for_workers(3)
        assert list(client.run(used).values()) == [("cuda+pool+statistics", 5000)] * 3

        def metrics():
            return client.run_on_scheduler(
                lambda dask_scheduler: [w.metrics.get("millpond") for w in dask_scheduler.workers.values()]
            )

        for _ in range(100):  # workers report at their heartbeats
            seen = metrics()
            if len(seen) == 3 and all(m and m["allocations"] > 0 for m in seen):
                break
            client.run(__import__("time").sleep, 0.1)
        assert [m["stack"] for m in seen] == ["cuda+pool+statistics"] * 3
        assert all(m["allocations"] > 0 and 0 < m["free"] <= m["total"] for m in seen)


def test_a_dask_worker_is_configured_by_a_preload(numba_driver):
    distributed = pytest.importorskip("distributed", reason="SKIPPED: distributed is not installed")
    options = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "dashboard_address": None,
        "preload": ["millpond.dask"],
        "preload_argv": [["--millpond-stack", "cuda+pool", "--millpond-frameworks", "numba"]],
    }
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(1)
        texts = client.run(lambda: millpond.mr.get_current_device_resource().text)
        assert list(texts.values()) == ["cuda+pool"]

        def numbas_manager():
            from numba.cuda.cudadrv import driver

            return driver._memory_manager.__name__

        assert list(client.run(numbas_manager).values()) == ["MillpondMemoryManager"]


def test_dask_refuses_a_framework_that_it_does_not_know():
    pytest.importorskip("distributed", reason="SKIPPED: distributed is not installed")
    import millpond.dask

    with pytest.raises(ValueError, match="jax"):
        millpond.dask.configure(types.SimpleNamespace(metrics={}), None, ["jax"])
