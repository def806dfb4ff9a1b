"""`millpond.compat.rmm`: the code of programs that use RMM, and the changes to millpond for them."""

import copy
import dataclasses
import gc
import importlib
import pathlib
import pickle
import subprocess
import sys
import types

import numpy as np
import pytest

import millpond
from millpond.compat import rmm
from millpond.compat.rmm.pylibrmm import device_buffer


@pytest.fixture(autouse=True)
def _no_hooks():
    yield
    millpond.mr._hooks.clear()


def run(program):
    """Run a program in a separate process. Return its output."""
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


CUDA = rmm.mr.CudaMemoryResource


def limited(limit):
    resource = rmm.mr.LimitingResourceAdaptor(rmm.mr.CudaMemoryResource(), allocation_limit=limit)
    rmm.mr.set_current_device_resource(resource)
    return resource


# --- The names, and `install` ---

MODULES = [
    "_cuda",
    "_cuda.gpu",
    "_cuda.stream",
    "_version",
    "allocators",
    "allocators.cupy",
    "allocators.numba",
    "allocators.torch",
    "librmm",
    "librmm._logger",
    "mr",
    "mr.experimental",
    "pylibrmm",
    "pylibrmm.cuda_stream",
    "pylibrmm.cuda_stream_pool",
    "pylibrmm.device_buffer",
    "pylibrmm.helper",
    "pylibrmm.logger",
    "pylibrmm.memory_resource",
    "pylibrmm.memory_resource._memory_resource",
    "pylibrmm.memory_resource.experimental",
    "pylibrmm.stream",
    "pylibrmm.utils",
    "rmm",
    "statistics",
]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_what_its_all_names(name):
    module = importlib.import_module(f"millpond.compat.rmm.{name}")
    missing = [one for one in getattr(module, "__all__", ()) if not hasattr(module, one)]
    assert missing == []
    assert module.__doc__.startswith("RMM's")


def test_install_registers_all_modules_at_once():
    program = (
        "import sys, millpond.compat.rmm\n"
        "assert not {'numba', 'cupy', 'torch', 'numpy'} & sys.modules.keys()\n"
        "for _ in range(2): millpond.compat.rmm.install()\n"
        f"for name in {MODULES!r}:\n"
        "    __import__('rmm.' + name)\n"
        "    assert sys.modules['rmm.' + name] is sys.modules['millpond.compat.rmm.' + name], name\n"
        "import rmm, rmm.mr\n"
        "from rmm.pylibrmm.stream import DEFAULT_STREAM\n"
        "from rmm.statistics import Statistics\n"
        "assert rmm is millpond.compat.rmm and Statistics is millpond.statistics.Statistics\n"
        "assert not {'numba', 'cupy', 'torch'} & sys.modules.keys()\n"
        "print(rmm.DeviceBuffer.to_device(b'abc').tobytes(DEFAULT_STREAM))\n"
    )
    assert run(program) == "b'abc'"


def test_a_program_that_uses_rmm_records_its_lines_as_explain_says(tmp_path):
    program = (
        "import millpond.compat.rmm\n"
        "millpond.compat.rmm.install()\n"
        "millpond.record_memory_history()\n"
        "import rmm\n"
        "rmm.reinitialize(pool_allocator=True)\n"
        "def load(): return rmm.DeviceBuffer(size=1000)\n"
        "kept = load()\n"
        f"snapshot = millpond.memory_snapshot({str(tmp_path / 'snapshot.pickle')!r})\n"
        "events = [event for trace in snapshot['device_traces'] for event in trace]\n"
        "allocation = next(event for event in events if event['action'] == 'alloc')\n"
        "print(allocation['size'], allocation['frames'][0]['name'], allocation['frames'][0]['line'])\n"
    )
    assert run(program) == "1000 load 6"


def test_install_is_refused_beside_rmm_itself(tmp_path):
    (tmp_path / "rmm.py").write_text("")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import rmm as other, millpond.compat.rmm\n"
        "try: millpond.compat.rmm.install()\n"
        "except ImportError as error: print(error)\n"
        "assert sys.modules['rmm'] is other and 'rmm.mr' not in sys.modules\n"
    )
    assert "above the first `import rmm`" in run(program)


def test_classes_are_millponds_so_both_can_be_layered():
    assert rmm.mr.PoolMemoryResource is millpond.mr.PoolMemoryResource
    assert rmm.pylibrmm.memory_resource.PoolMemoryResource is millpond.mr.PoolMemoryResource
    assert rmm.mr.stack("cuda+pool").text == "cuda+pool", "what millpond has beyond RMM is there, too"
    with pytest.raises(AttributeError):
        _ = rmm.mr.nothing


def test_versions_and_rmms_error():
    assert rmm.__version__.count(".") == 2 and isinstance(rmm.__git_commit__, str)
    error = rmm.RMMError(3, "why")
    assert error.errcode == 3 and str(error) == "why"


# --- Lines from users' RMM programs ---


def test_a_buffer_of_host_bytes():
    for view in ("int8", "uint8"):
        assert rmm.DeviceBuffer.to_device(np.array([1.0, 2, 3]).view(view)).size == 24
    assert bytes(rmm.to_device(b"")) == b""
    assert rmm.DeviceBuffer(size=100).ptr and rmm.DeviceBuffer().ptr == 0


@pytest.mark.parametrize(
    "wrong",
    [np.ones(2, "u2"), np.ones((2, 2), "u1"), np.ones(4, "u1")[::2], memoryview(b"abcd").cast("H")],
)
def test_only_plain_bytes_are_taken(wrong):
    with pytest.raises(ValueError, match="one contiguous dimension"):
        rmm.DeviceBuffer.to_device(wrong)


@pytest.mark.parametrize("wrong", [None, "abc", 123])
def test_what_has_no_bytes_is_refused(wrong):
    with pytest.raises(TypeError):
        rmm.DeviceBuffer.to_device(wrong)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rmm.mr.PoolMemoryResource(CUDA(), 2**30, maximum_pool_size=2**32),
        lambda: rmm.mr.PoolMemoryResource(rmm.mr.ManagedMemoryResource(), "1GiB", maximum_pool_size="4GB"),
        lambda: rmm.mr.PoolMemoryResource(rmm.mr.get_current_device_resource(), np.int64(2**22)),
        lambda: rmm.mr.PoolMemoryResource(rmm.mr.CudaAsyncMemoryResource(), 2**22 + 1),
        lambda: rmm.mr.CudaAsyncMemoryResource("1GiB", release_threshold=2**31, enable_ipc=True),
        lambda: rmm.mr.PrefetchResourceAdaptor(
            rmm.mr.PoolMemoryResource(rmm.mr.ManagedMemoryResource(), 2**22)
        ),
        lambda: rmm.mr.SamHeadroomMemoryResource(headroom=1 << 30),
        lambda: rmm.mr.SystemMemoryResource(),
        lambda: rmm.mr.LimitingResourceAdaptor(
            rmm.mr.CudaAsyncMemoryResource(None, None), allocation_limit=1 << 30
        ),
        lambda: rmm.mr.BinningMemoryResource(rmm.mr.PoolMemoryResource(CUDA(), 2**28), 18, 22),
        lambda: rmm.mr.experimental.CudaAsyncManagedMemoryResource(),
        lambda: rmm.mr.TrackingResourceAdaptor(rmm.mr.CudaMemoryResource(), capture_stacks=True),
    ],
)
def test_resources_as_users_make_them(make):
    try:
        resource = make()
    except millpond.UnsupportedError as error:
        pytest.skip(f"SKIPPED: {error}")
    rmm.mr.set_current_device_resource(resource)
    assert rmm.mr.get_current_device_resource() is resource
    assert rmm.mr.get_per_device_resource(rmm._cuda.gpu.getDevice()) is resource
    assert bytes(rmm.DeviceBuffer.to_device(b"abc")) == b"abc"


def test_the_upstreams_of_cudfs_default():
    pool = rmm.mr.PoolMemoryResource(rmm.mr.ManagedMemoryResource(), 1 << 20)
    assert pool.pool_size() == 1 << 20
    adaptor = rmm.mr.PrefetchResourceAdaptor(pool)
    assert isinstance(adaptor.upstream_mr.upstream_mr, rmm.mr.ManagedMemoryResource)


@pytest.mark.parametrize("kind", ["LimitingResourceAdaptor", "LoggingResourceAdaptor"])
def test_a_missing_upstream_is_named(kind):
    with pytest.raises(TypeError, match="upstream_mr"):
        getattr(rmm.mr, kind)(None, "5B")


@pytest.mark.parametrize(
    "name", ["rmm_log_127.0.0.1:38127.txt", "a,b.csv", "a+b.csv", 'ü "q".csv', "x)y.csv"]
)
def test_logs_of_any_name_also_below_another_layer(tmp_path, name):
    file = tmp_path / name
    rmm.enable_logging(log_file_name=pathlib.Path(file))
    rmm.statistics.enable_statistics()
    rmm.DeviceBuffer(size=9)
    expected = file.with_name(f"{file.stem}.dev0{file.suffix}")
    assert rmm.get_log_filenames() == {0: str(expected)}
    rmm.disable_logging()
    assert expected.read_text().count("\n") >= 2


def test_reinitialize_as_users_call_it(tmp_path, monkeypatch):
    for devices in (0, [0], None):
        rmm.reinitialize(pool_allocator=True, managed_memory=True, initial_pool_size="0pib", devices=devices)
        assert rmm.mr.get_current_device_resource().text.startswith("managed+pool")
    rmm.reinitialize(logging=True, log_file_name=str(tmp_path / "r.csv"))
    assert rmm.get_log_filenames()[0] == str(tmp_path / "r.dev0.csv")
    monkeypatch.delenv("RMM_LOG_FILE", raising=False)
    with pytest.raises(ValueError, match="RMM_LOG_FILE"):
        rmm.reinitialize(logging=True)
    assert rmm.is_initialized()


@pytest.mark.parametrize("size", ["2k", "8k", "1" * 400, "", "-1", "50%", "1 GiB x"])
def test_sizes_that_rmm_refuses(size):
    with pytest.raises(ValueError, match="Could not parse"):
        rmm.reinitialize(pool_allocator=True, initial_pool_size=size)


def test_sizes_as_rmm_reads_them():
    known = {"12": 12, "1.5kb": 1500, "2 KiB": 2048, "1.B": 1, "3gIb": 3 << 30, 7: 7}
    assert {text: rmm.pylibrmm.helper.parse_bytes(text) for text in known} == known


def test_a_failure_callback_frees_memory_and_tries_again():
    calls, kept = [], []

    def free(nbytes):
        calls.append(nbytes)
        freed = bool(kept)
        kept.clear()
        gc.collect()
        return freed

    rmm.mr.set_current_device_resource(rmm.mr.FailureCallbackResourceAdaptor(limited(1 << 20), free))
    kept.append(rmm.DeviceBuffer(size=1 << 20))
    buffer = rmm.DeviceBuffer(size=1 << 20)
    with pytest.raises(MemoryError):
        rmm.DeviceBuffer(size=1 << 20)
    assert calls == [1 << 20, 1 << 20] and buffer.size == 1 << 20


def test_subclasses_of_resources_and_buffers():
    class Mine(rmm.mr.CallbackMemoryResource):
        def __init__(self, base):
            super().__init__(base.allocate, base.deallocate)

    class Buffer(rmm.DeviceBuffer):
        pass

    resource = Mine(rmm.mr.CudaMemoryResource())
    rmm.mr.set_current_device_resource(resource)
    buffer = Buffer(size=10)
    assert buffer.mr is resource and type(buffer) is Buffer and isinstance(buffer.copy(), rmm.DeviceBuffer)


# --- Buffers and copies at plain addresses ---


@pytest.mark.parametrize(
    "make", [lambda b: b.copy(), copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))]
)
def test_copies_are_rmms_buffers(make):
    resource, stream = rmm.mr.CudaMemoryResource(), millpond.Stream()
    buffer = rmm.DeviceBuffer(size=3, stream=stream, mr=resource)
    buffer.copy_from_host(b"abc")
    made = make(buffer)
    assert type(made) is rmm.DeviceBuffer and made.ptr != buffer.ptr and made.tobytes() == b"abc"


def test_a_copy_is_of_the_same_resource_and_stream():
    resource, stream = rmm.mr.CudaMemoryResource(), millpond.Stream()
    made = rmm.DeviceBuffer(size=3, stream=stream, mr=resource).copy()
    assert made.mr is resource and made.stream == stream


def test_a_pickle_is_out_of_band_and_needs_no_install():
    buffers = []
    data = pickle.dumps(rmm.to_device(b"abc"), protocol=5, buffer_callback=buffers.append)
    assert [bytes(one) for one in buffers] == [b"abc"] and b"millpond.compat.rmm" in data
    assert bytes(pickle.loads(data, buffers=buffers)) == b"abc"


def test_the_array_interface_is_rmms():
    buffer = rmm.to_device(b"abc")
    interface = {"data": (buffer.ptr, False), "shape": (3,), "strides": None, "typestr": "|u1", "version": 0}
    assert buffer.__cuda_array_interface__ == interface
    target = millpond.DeviceBuffer(size=3)
    target.copy_from_device(types.SimpleNamespace(__cuda_array_interface__=interface))
    assert bytes(target) == b"abc"


@pytest.mark.parametrize("host", [bytearray(b"..."), np.zeros(3, "u1"), memoryview(bytearray(3))])
def test_bytes_at_addresses_are_copied(host):
    buffer, other = rmm.DeviceBuffer(size=3), rmm.DeviceBuffer(size=3)
    for source in (b"abc", bytearray(b"xyz"), np.array([1, 2, 3], "u1")):
        device_buffer.copy_host_to_ptr(source, buffer.ptr)
        device_buffer.copy_device_to_ptr(buffer.ptr, other.ptr, 3)
        device_buffer.copy_ptr_to_host(other.ptr, host, rmm.pylibrmm.stream.DEFAULT_STREAM)
        assert bytes(host) == bytes(source)


def test_copies_at_addresses_refuse_what_they_cannot_do():
    buffer = rmm.to_device(b"abc")
    with pytest.raises(TypeError):
        device_buffer.copy_ptr_to_host(buffer.ptr, b"abc")
    with pytest.raises(TypeError):
        device_buffer.copy_ptr_to_host(buffer.ptr, None)
    with pytest.raises(TypeError):
        device_buffer.copy_host_to_ptr(None, buffer.ptr)
    with pytest.raises(millpond.DriverError):
        device_buffer.copy_ptr_to_host(buffer.ptr, bytearray(buffer.capacity() + (1 << 30)))
    device_buffer.copy_ptr_to_host(0, bytearray())
    device_buffer.copy_host_to_ptr(b"", 0)
    device_buffer.copy_device_to_ptr(0, 0, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda b: rmm.DeviceBuffer(size=10, stream=None),
        lambda b: rmm.DeviceBuffer.to_device(b"abc", stream=None),
        lambda b: b.copy_to_host(stream=None),
        lambda b: b.copy_from_host(b"abc", stream=None),
        lambda b: b.copy_from_device(b, stream=None),
        lambda b: b.tobytes(stream=None),
        lambda b: b.reserve(100, stream=None),
        lambda b: b.resize(10, stream=None),
        lambda b: b.mr.allocate(10, stream=None),
        lambda b: b.mr.deallocate(0, 10, stream=None),
        lambda b: device_buffer.copy_ptr_to_host(b.ptr, bytearray(3), stream=None),
        lambda b: device_buffer.copy_host_to_ptr(b"abc", b.ptr, stream=None),
        lambda b: device_buffer.copy_device_to_ptr(b.ptr, b.ptr, 3, stream=None),
    ],
)
def test_none_is_no_stream(call):
    with pytest.raises(TypeError, match="stream argument cannot be None"):
        call(rmm.to_device(b"abc"))


def test_a_prefetch_without_a_stream_is_in_the_order_of_the_buffer():
    for resource in (rmm.mr.ManagedMemoryResource(), rmm.mr.CudaMemoryResource()):
        rmm.DeviceBuffer(size=10, mr=resource).prefetch(stream=None)


@pytest.mark.parametrize("resource", [None, rmm.mr.PinnedHostMemoryResource, rmm.mr.ManagedMemoryResource])
def test_a_buffer_copies_from_a_host_address(resource):
    host = np.arange(16, dtype="u1")
    source = resource and rmm.DeviceBuffer(ptr=host.ctypes.data, size=16, mr=resource())
    for stream in (None, millpond.Stream()):
        given = {} if stream is None else {"stream": stream}
        copy = rmm.DeviceBuffer(ptr=source.ptr if source else host.ctypes.data, size=16, **given)
        assert copy.tobytes() == host.tobytes()


def test_a_buffer_refuses_the_address_of_freed_memory():
    if not millpond.Device().is_simulated:
        pytest.skip("CUDA reads a freed address as an address of the host")
    source = rmm.mr.CudaMemoryResource()
    freed = source.allocate(1 << 20)
    source.deallocate(freed, 1 << 20)
    # The buffer may get the first bytes again.
    for address in (freed + (1 << 19), freed + (1 << 20) - 8):
        with pytest.raises(millpond.DriverError) as refused:
            rmm.DeviceBuffer(ptr=address, size=16)
        assert refused.value.code == 1


def test_streams_under_rmms_names():
    pool = rmm.pylibrmm.CudaStreamPool(pool_size=3, flags=rmm.pylibrmm.CudaStreamFlags.NON_BLOCKING)
    streams = [pool.get_stream() for _ in range(3)]
    assert len(set(streams)) == 3 == pool.get_pool_size() and pool.get_stream(1) == streams[1]
    assert rmm.pylibrmm.utils.as_stream(streams[0].ptr) == streams[0]
    assert rmm._cuda.stream.Stream is rmm.pylibrmm.stream.Stream is millpond.Stream


# --- Changes to millpond for RMM's programs ---


def test_statistics_are_in_rmms_order():
    names = [field.name for field in dataclasses.fields(rmm.statistics.Statistics)]
    assert names == [f"{kind}_{of}" for kind in ("current", "peak", "total") for of in ("bytes", "count")]
    counted = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaMemoryResource())
    kept = [rmm.DeviceBuffer(size=20, mr=counted) for _ in range(2)]
    del kept[0]
    assert dataclasses.astuple(counted.allocation_counts) == (20, 1, 40, 2, 40, 2)
    with pytest.raises(IndexError, match="cannot pop the last counter pair"):
        counted.pop_counters()


def test_the_context_restores_the_resource():
    before = rmm.mr.get_current_device_resource()
    with rmm.statistics.statistics():
        counted = rmm.mr.get_current_device_resource()
        buffer = rmm.DeviceBuffer(size=20)
        with rmm.statistics.statistics():
            assert rmm.mr.get_current_device_resource() is counted
            assert rmm.statistics.get_statistics().total_bytes == 0
        assert rmm.statistics.get_statistics().peak_bytes == 20
    assert rmm.mr.get_current_device_resource() is before
    assert rmm.statistics.get_statistics() is None and buffer.size == 20


def test_the_profiler_names_the_innermost_function_and_says_that_it_has_no_data():
    records = rmm.statistics.ProfilerRecords()
    assert "No data" in records.report()
    name = rmm.statistics._get_descriptive_name_of_object

    @rmm.statistics.profiler(records=records)
    def profiled():
        return rmm.DeviceBuffer(size=100)

    with rmm.statistics.statistics():
        profiled()
    assert list(records.records) == [name(profiled)] and name(profiled) == name(profiled.__wrapped__)


def test_hooks_are_decorators_and_a_method_is_one_function():
    class Cache:
        calls = 0

        def drop(self):
            self.calls += 1

    @rmm.register_reinitialize_hook
    def hook():
        cache.drop()

    cache = Cache()
    assert callable(hook)
    rmm.register_reinitialize_hook(cache.drop)
    rmm.reinitialize()
    assert cache.calls == 2
    rmm.unregister_reinitialize_hook(cache.drop)
    rmm.unregister_reinitialize_hook(hook)
    rmm.reinitialize()
    assert cache.calls == 2


@pytest.mark.parametrize(
    ("raised", "caught"),
    [
        (MemoryError, MemoryError),
        (RuntimeError, RuntimeError),
        (Exception, RuntimeError),
        (BaseException, RuntimeError),
        (KeyboardInterrupt, KeyboardInterrupt),
        (SystemExit, SystemExit),
    ],
)
def test_the_text_of_what_a_callback_raises_is_in_the_error(raised, caught):
    def allocate(size, stream):
        raise raised("my own text")

    resource = rmm.mr.CallbackMemoryResource(allocate, lambda ptr, size, stream: None)
    with pytest.raises(caught, match="my own text"):
        rmm.DeviceBuffer(size=256, mr=resource)

    def free(nbytes):
        raise raised("my own text")

    # Out of memory hides all other exceptions, except those that end the program.
    caught = MemoryError if issubclass(raised, Exception) else raised
    resource = rmm.mr.FailureCallbackResourceAdaptor(limited(1), free)
    with pytest.raises(caught, match="my own text"):
        rmm.DeviceBuffer(size=256, mr=resource)


def test_a_protocol_of_another_version_is_not_supported():
    with pytest.raises(NotImplementedError, match="version: '1'"):
        rmm.pylibrmm.stream.Stream(types.SimpleNamespace(__cuda_stream__=lambda: (1, 2)))


def test_all_levels_of_the_logger_can_be_set():
    before = rmm.get_logging_level()
    try:
        for level in rmm.level_enum:
            rmm.set_logging_level(level)
            assert rmm.get_logging_level() is level
    finally:
        rmm.set_logging_level(before)
    assert rmm.librmm._logger.level_enum is rmm.level_enum
    for wrong in ("INFO", 3, None, [1]):
        with pytest.raises(TypeError):
            rmm.should_log(wrong)
