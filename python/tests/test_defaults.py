"""Streams, the devices' default resources, `reinitialize`, logs, statistics and the profiler."""

import csv
import ctypes
import gc
import os
import queue
import re
import subprocess
import sys
import threading

import pytest

import millpond
from millpond import _library, mr, statistics

HEADER = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]


class Cuda:
    def __init__(self, version, handle):
        self.answer = version, handle

    def __cuda_stream__(self):
        return self.answer


class Named:
    def __init__(self, **names):
        self.__dict__.update(names)


def test_default_streams():
    assert millpond.DEFAULT_STREAM.is_default() and millpond.LEGACY_DEFAULT_STREAM.is_default()
    assert not millpond.PER_THREAD_DEFAULT_STREAM.is_default() and not millpond.Stream().is_default()
    assert millpond.DEFAULT_STREAM == millpond.LEGACY_DEFAULT_STREAM
    assert millpond.DEFAULT_STREAM != millpond.PER_THREAD_DEFAULT_STREAM


def test_a_stream_is_its_handle():
    stream = millpond.Stream()
    assert stream.__cuda_stream__() == (0, stream.ptr) and stream.ptr > 2
    twin = millpond.Stream(stream)
    assert twin == stream and hash(twin) == hash(stream) and twin != millpond.Stream() and twin != "twin"
    assert {stream: 1}[twin] == 1
    stream.synchronize()
    assert stream.query()
    stream.wait(millpond.Stream())


@pytest.mark.parametrize("flags", list(millpond.CudaStreamFlags))
def test_flags_are_for_new_streams(flags):
    assert millpond.Stream(flags=flags).query()
    with pytest.raises(ValueError):
        millpond.Stream(millpond.DEFAULT_STREAM, flags=flags)
    with pytest.raises(ValueError):
        millpond.Stream(flags=17)


def test_streams_of_other_libraries():
    own = millpond.Stream()
    others = [Cuda(0, own.ptr), Named(ptr=own.ptr), Named(cuda_stream=own.ptr), own.ptr]
    others += [Named(handle=own.ptr), Named(handle=Named(value=own.ptr))]
    for other in others:
        stream = millpond.Stream(other)
        assert stream == own
        assert millpond.to_device(b"abc", other).tobytes() == b"abc"
    assert millpond.Stream(Named(handle=Named(value=None))).is_default()
    with pytest.raises(NotImplementedError, match="version: '1'"):
        millpond.Stream(Cuda(1, own.ptr))
    for no_stream in ("stream", object(), 1.5):
        with pytest.raises(TypeError):
            millpond.Stream(no_stream)


def test_a_buffer_keeps_its_stream():
    buffer = millpond.to_device(b"abc", millpond.Stream())
    gc.collect()
    assert buffer.tobytes() == b"abc" and buffer.stream.query()


@pytest.mark.parametrize("flags", list(millpond.CudaStreamFlags))
def test_a_pool_of_streams(flags):
    pool = millpond.StreamPool(3, flags)
    assert pool.get_pool_size() == 3
    streams = [pool.get_stream() for _ in range(6)]
    assert streams[:3] == streams[3:] and len(set(streams)) == 3
    assert pool.get_stream(4) == pool.get_stream(1) == streams[1]
    with pytest.raises(ValueError):
        millpond.StreamPool(0)
    with pytest.raises(ValueError):
        pool.get_stream(-1)


def test_devices():
    device = millpond.Device()
    assert device == millpond.Device.find(device.ordinal) and hash(device) == hash(millpond.Device())
    free, total = mr.available_device_memory()
    assert 0 < free <= total and device.name
    other = millpond.Device("sim:8GiB")
    assert other != device and other.memory_info()[1] == 8 << 30 and other.is_simulated
    device.synchronize()
    with pytest.raises(millpond.MillpondError):
        millpond.Device("cuda:x")


def test_defaults_of_devices():
    device = millpond.Device("sim:8GiB")
    first = mr.get_per_device_resource(device)
    assert isinstance(first, mr.CudaMemoryResource) and mr.get_per_device_resource(device) is first
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(device=device), "1MiB")
    mr.set_per_device_resource(device, pool)
    assert mr.get_per_device_resource(device) is pool
    assert mr.get_per_device_resource_type(device) is mr.PoolMemoryResource
    assert mr.get_current_device_resource() is not pool
    with pytest.raises(ValueError):
        mr.set_current_device_resource(pool)
    mr.reset_per_device_resource(device)
    assert mr.get_per_device_resource_type(device) is mr.CudaMemoryResource
    assert millpond.is_initialized() and mr.is_initialized()


def _warm(size=1000):
    """Make and drop buffers until they come from the thread's cache."""
    for _ in range(32):
        millpond.DeviceBuffer(size=size)


def test_a_buffer_is_of_the_default_of_its_time():
    first, second = millpond.stack("cuda+pool"), millpond.stack("cuda+pool")
    for stack in (first, second, first):
        mr.set_current_device_resource(stack)
        before = stack.counts()["allocations"]
        _warm()
        buffer = millpond.DeviceBuffer(size=1000)
        assert stack.counts()["allocations"] == before + 33
        assert stack.counts()["blocks_in_use"] == 1 and buffer.mr.text == stack.text
        del buffer
    # Another user of the library, unknown to this package, sets the default.
    program = _library.library.millpond_reset_per_device_resource
    program.argtypes = (ctypes.c_void_p,)
    device = _library.find_device(millpond.Device().ordinal)
    assert program(device) == 0
    _library.device_free(device)
    before = first.counts()["allocations"]
    assert millpond.DeviceBuffer(size=1000).mr.text == "cuda"
    assert first.counts()["allocations"] == before


def test_a_default_that_was_replaced_ends_with_its_last_buffer():
    if not millpond.Device().is_simulated:
        pytest.skip("SKIPPED: others use the device's memory")
    mr.set_current_device_resource(millpond.stack("cuda+pool:initial=32MiB"))
    _warm()
    kept = millpond.DeviceBuffer(size=1000)
    mr.set_current_device_resource(millpond.stack("cuda"))
    held = millpond.Device().memory_info()[0]
    del kept
    assert millpond.Device().memory_info()[0] >= held + (32 << 20)


def test_a_buffer_of_the_cache_goes_back_on_any_thread():
    stack = millpond.stack("cuda+pool")
    mr.set_current_device_resource(stack)
    _warm()
    buffers = queue.SimpleQueue()

    def end():
        for _ in range(500):
            buffers.get(timeout=60)

    threads = [threading.Thread(target=end) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2000):
        buffers.put(millpond.DeviceBuffer(size=1000))
    for thread in threads:
        thread.join()
    counts = stack.counts()
    assert (counts["blocks_in_use"], counts["misuses"]) == (0, 0)


@pytest.mark.parametrize("logging", [False, True])
def test_reinitialize_over_devices(logging, tmp_path):
    devices = [millpond.Device("sim:8GiB") for _ in range(2)]
    numbers = [device.ordinal for device in devices]
    if not millpond.Device().is_simulated:
        numbers = devices
    millpond.reinitialize(
        pool_allocator=True,
        initial_pool_size="1MiB",
        maximum_pool_size="4MiB",
        devices=numbers,
        logging=logging,
        log_file_name=tmp_path / "log.csv",
    )
    for device in devices:
        resource = mr.get_per_device_resource(device)
        assert isinstance(resource, mr.LoggingResourceAdaptor if logging else mr.PoolMemoryResource)
        assert resource.device == device
        with pytest.raises(MemoryError):
            millpond.DeviceBuffer(size=5 << 20, mr=resource)
        if logging:
            assert millpond.get_log_filenames()[device.ordinal] == str(
                tmp_path / f"log.dev{device.ordinal}.csv"
            )
    millpond.disable_logging()


def test_reinitialize_checks_sizes():
    with pytest.raises(ValueError):
        millpond.reinitialize(pool_allocator=True, initial_pool_size=1 << 22, maximum_pool_size=1 << 20)
    millpond.reinitialize(pool_allocator=True, initial_pool_size="1.5MiB", maximum_pool_size="1GiB")
    with pytest.raises(ValueError):
        millpond.reinitialize(pool_allocator=True, initial_pool_size="1 apple")
    millpond.reinitialize(stack="cuda+pool+statistics")
    assert mr.get_current_device_resource_type() is mr.StatisticsResourceAdaptor


def test_hooks_run_in_reverse_order():
    calls = []

    def first(*args, **kwargs):
        calls.append(("first", args, kwargs))

    def second():
        calls.append("second")

    millpond.register_reinitialize_hook(first, 1, key=2)
    millpond.register_reinitialize_hook(second)
    millpond.register_reinitialize_hook(first)
    try:
        millpond.reinitialize()
        assert calls == [("first", (), {}), "second", ("first", (1,), {"key": 2})]
        millpond.unregister_reinitialize_hook(first)
        calls.clear()
        millpond.reinitialize()
        assert calls == ["second"]
    finally:
        millpond.unregister_reinitialize_hook(first)
        millpond.unregister_reinitialize_hook(second)


# --- Logs ---


@pytest.mark.parametrize("name", ["log.csv", "log.txt", "log"])
def test_a_log_is_enabled_and_disabled(tmp_path, name):
    upstream = mr.get_current_device_resource()
    number = millpond.Device().ordinal
    assert millpond.get_log_filenames()[number] is None
    millpond.enable_logging(tmp_path / name)
    base, extension = os.path.splitext(name)
    file = tmp_path / f"{base}.dev{number}{extension}"
    assert millpond.get_log_filenames()[number] == str(file)
    millpond.DeviceBuffer(size=10)
    millpond.flush_logger()
    millpond.disable_logging()
    assert millpond.get_log_filenames()[number] is None
    assert mr.get_current_device_resource() is upstream
    rows = list(csv.reader(file.open()))
    assert rows[0] == HEADER
    assert [row[2] for row in rows[1:]] == ["allocate", "free"] and {row[4] for row in rows[1:]} == {"10"}


def test_a_log_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("RMM_LOG_FILE", raising=False)
    with pytest.raises(ValueError):
        mr.LoggingResourceAdaptor(mr.CudaMemoryResource())
    monkeypatch.setenv("RMM_LOG_FILE", str(tmp_path / "rmm.csv"))
    resource = mr.LoggingResourceAdaptor(mr.CudaMemoryResource())
    assert resource.get_file_name() == str(tmp_path / f"rmm.dev{resource.device.ordinal}.csv")
    millpond.DeviceBuffer(size=100, mr=resource)
    resource.flush()
    assert len(open(resource.get_file_name()).readlines()) == 3


def test_a_buffer_of_a_per_thread_stream_that_another_thread_ends(tmp_path):
    log = tmp_path / "log.csv"
    resource = mr.LoggingResourceAdaptor(mr.PoolMemoryResource(mr.CudaMemoryResource()), str(log))
    kept = [millpond.DeviceBuffer(size=size, mr=resource, stream=millpond.PER_THREAD_DEFAULT_STREAM)
            for size in (1000, 2000)]
    del kept[0]
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    resource.flush()
    rows = [line.split(",") for line in open(resource.get_file_name()).read().splitlines()[1:]]
    frees = {int(row[4]): int(row[5], 0) for row in rows if row[2] == "free"}
    # On the other thread, the handle 2 would name that thread's stream. The legacy stream waits for both.
    assert frees == {1000: 2, 2000: 0}


# --- Statistics ---


def test_statistics_are_none_until_enabled():
    assert statistics.get_statistics() is None
    assert statistics.push_statistics() is None and statistics.pop_statistics() is None
    statistics.enable_statistics()
    first = mr.get_current_device_resource()
    statistics.enable_statistics()
    assert mr.get_current_device_resource() is first
    assert statistics.get_statistics() == statistics.Statistics(0, 0, 0, 0, 0, 0)


def test_the_context_notices_another_resource():
    with statistics.statistics():
        buffer = millpond.DeviceBuffer(size=100)
        assert statistics.get_statistics().current_bytes == 100
    with pytest.raises(ValueError, match="replaced"):
        with statistics.statistics():
            mr.set_current_device_resource(mr.CudaMemoryResource())
    assert len(buffer) == 100


def test_levels_of_counters():
    counted = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    first = [millpond.DeviceBuffer(size=10, mr=counted) for _ in range(9)]
    assert counted.push_counters() == statistics.Statistics(90, 9, 90, 9, 90, 9)
    second = [millpond.DeviceBuffer(size=10, mr=counted) for _ in range(2)]
    del first[:4]
    assert counted.allocation_counts == statistics.Statistics(-20, -2, 20, 2, 20, 2)
    assert counted.pop_counters() == statistics.Statistics(-20, -2, 20, 2, 20, 2)
    assert counted.allocation_counts == statistics.Statistics(70, 7, 110, 11, 110, 11)
    with pytest.raises(IndexError):
        counted.pop_counters()
    assert len(second) == 2


def test_two_counting_resources_are_apart():
    base = mr.CudaMemoryResource()
    one, two = mr.StatisticsResourceAdaptor(base), mr.StatisticsResourceAdaptor(base)
    mr.set_current_device_resource(one)
    first = millpond.DeviceBuffer(size=100)
    mr.set_current_device_resource(two)
    second = millpond.DeviceBuffer(size=10)
    del first
    assert one.allocation_counts == statistics.Statistics(0, 0, 100, 1, 100, 1)
    assert two.allocation_counts == statistics.Statistics(10, 1, 10, 1, 10, 1)
    assert second.mr is two


def test_the_profiler():
    records = statistics.ProfilerRecords()

    @statistics.profiler(records=records)
    def inner():
        return millpond.DeviceBuffer(size=100)

    @statistics.profiler(records=records, name="outer")
    def outer():
        return [inner(), inner()]

    outer()
    assert records.records == {}, "without statistics nothing is recorded"
    with statistics.statistics():
        outer()
        with statistics.profiler(records=records, name="block"):
            inner()
    name = next(name for name in records.records if "inner" in name)
    assert __file__ in name
    assert records.records[name] == statistics.ProfilerRecords.MemoryRecord(3, 300, 100)
    assert records.records["outer"] == statistics.ProfilerRecords.MemoryRecord(1, 200, 200)
    assert records.records["block"].memory_peak == 100
    report = records.report()
    assert report.index("outer") < report.index("block") and "200" in report
    by_calls = records.report(ordered_by="num_calls")
    assert by_calls.index("inner") < by_calls.index("outer")
    with pytest.raises(ValueError):
        records.report(ordered_by="name")
    with pytest.raises(ValueError):
        with statistics.profiler(records=records):
            pass


def test_version():
    assert millpond.__version__.count(".") == 2 and os.path.exists(millpond.library_path())


# --- RMM's logger ---


def reported(tmp_path, program, **environment):
    """Run a program that frees a block twice. Return its standard error and the log file."""
    twice = (
        "import millpond\n"
        f"{program}\n"
        "pool = millpond.stack('cuda+pool')\n"
        "block = pool.allocate(1000)\n"
        "for _ in range(2):\n"
        "    try: pool.deallocate(block, 1000)\n"
        "    except millpond.MillpondError: pass\n"
        "millpond.flush_logger()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", twice], capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    file = tmp_path / "debug.txt"
    return done.stderr, file.read_text() if file.exists() else ""


def test_errors_are_heard(tmp_path):
    file = str(tmp_path / "debug.txt")
    line = re.compile(r"^\[ *\d+\]\[\d\d:\d\d:\d\d:\d{6}\]\[ERROR \] .*free already", re.MULTILINE)
    assert line.search(reported(tmp_path, "")[0])
    to_stderr, to_file = reported(tmp_path, "", RMM_DEBUG_LOG_FILE=file)
    assert line.search(to_file) and "ERROR " not in to_stderr
    off = "millpond.set_logging_level(millpond.level_enum.off)"
    assert "ERROR " not in reported(tmp_path, off)[0]
    assert reported(tmp_path, off, RMM_DEBUG_LOG_FILE=file)[1] == ""


TWICE_BY_POINTER = (
    "import millpond\n"
    "from millpond import _library\n"
    "held = millpond.DeviceBuffer(size=1)  # opens the device\n"
    "block = _library.malloc(1000, 0, None)\n"
    "_library.free(block, 1000, 0, None)\n"
    "_library.free(block, 1000, 0, None)\n"
)


def run(program, **environment):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


def test_a_block_that_a_framework_frees_twice_is_heard_of():
    done = run(TWICE_BY_POINTER, RMM_DEBUG_LOG_FILE="")
    assert done.returncode == 0
    assert re.search(r"ERROR .*a free was refused.*is not a live block of millpond_malloc", done.stderr)


def test_a_log_file_that_cannot_be_written_is_named(tmp_path):
    missing, rows = str(tmp_path / "nowhere" / "log.txt"), str(tmp_path / "rows.csv")
    program = (
        f"import millpond; millpond.enable_logging({rows!r}); millpond.DeviceBuffer(size=777)\n"
        "millpond.flush_logger()\n" + TWICE_BY_POINTER
    )
    done = run(program, RMM_DEBUG_LOG_FILE=missing)
    assert done.returncode == 0 and f"RMM_DEBUG_LOG_FILE: {missing} cannot be written" in done.stderr
    assert "a free was refused" in done.stderr, "errors go to the standard error then"
    [log] = tmp_path.glob("rows*")
    assert ",777," in log.read_text()


def test_processes_that_share_a_log_file_leave_each_others_lines(tmp_path):
    file = tmp_path / "shared.txt"
    # The second process empties the file, as RMM does, while the first process continues.
    program = TWICE_BY_POINTER + (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {TWICE_BY_POINTER!r}], check=True)\n"
        "_library.free(block, 1000, 0, None)\n"
    )
    done = run(program, RMM_DEBUG_LOG_FILE=str(file))
    assert done.returncode == 0, done.stderr
    text = file.read_bytes()
    assert text.count(b"a free was refused") == 2 and b"\0" not in text


def test_levels_of_the_logger():
    level = millpond.level_enum
    before = millpond.get_logging_level()
    try:
        for chosen in level:
            millpond.set_logging_level(chosen)
            assert millpond.get_logging_level() is chosen
            for asked in (level.trace, level.debug, level.info, level.warn, level.error, level.critical):
                assert millpond.should_log(asked) == (asked >= chosen)
            assert not millpond.should_log(level.off)
        millpond.set_flush_level(level.warn)
        assert millpond.get_flush_level() is level.warn
        for function in (millpond.set_logging_level, millpond.should_log, millpond.set_flush_level):
            for wrong in (1, "info", level.n_levels):
                with pytest.raises(TypeError):
                    function(wrong)
    finally:
        millpond.set_logging_level(before)
        millpond.set_flush_level(level.trace)


@pytest.mark.parametrize("wrong", ["cuda+pool", None, millpond.mr.CudaMemoryResource])
def test_what_is_no_resource_is_refused_by_name(wrong):
    with pytest.raises(TypeError, match="`mr` must be a millpond resource, such as millpond.stack"):
        mr.set_current_device_resource(wrong)
