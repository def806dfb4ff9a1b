"""The driver's pools on a GPU: sharing between processes, pinned pools, and the memory of graphs."""

import ctypes
import pathlib
import subprocess
import sys

import harness
import pytest

import millpond
from millpond import mr

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "shared_pools.py"
MIB = 1 << 20

harness.needs()


@pytest.fixture(autouse=True)
def _context():
    """Make the device's context current, for the calls to the driver."""
    context = ctypes.c_void_p()
    cuda("cuInit", 0)
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), millpond.Device().ordinal)
    cuda("cuCtxSetCurrent", context)


def cuda(call, *arguments):
    """Call the driver, and refuse an error."""
    code = getattr(ctypes.CDLL("libcuda.so.1"), call)(*arguments)
    assert code == 0, f"{call}: {code}"


@pytest.mark.parametrize("devices", [("cuda:0", "cuda:0"), ("cuda:0", "cuda:1")])
def test_two_processes_share_a_thousand_blocks_each(devices):
    try:
        millpond.Device(devices[1])
    except millpond.NoDeviceError:
        pytest.skip("needs two GPUs")
    command = [sys.executable, str(EXAMPLE), "--devices", *devices]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.endswith("both sides agree\n")


@pytest.mark.parametrize("options", ["", ":numa=0"])
def test_pinned_pools_serve_host_and_device(options):
    resource = millpond.stack("cuda_async_pinned" + options)
    pool, stream = mr.MemoryPool.of(resource), millpond.Stream()
    assert pool.access() == "read_write" and pool.location == "host"
    buffer = millpond.DeviceBuffer(size=MIB, stream=stream, mr=resource)
    buffer.fill(7, stream)
    stream.synchronize()
    assert ctypes.string_at(buffer.ptr, MIB) == b"\7" * MIB
    assert pool.used_bytes == MIB
    del buffer
    stream.synchronize()
    assert pool.used_bytes == 0 and pool.trim() >= 0
    assert pool.reserved_bytes == 0


#: The other process: it reads a block of an imported pool.
IMPORTER = """
import sys
import millpond
from millpond import mr

handle, data, size = bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3])
with mr.MemoryPool.import_fabric(handle).import_pointer(data, size) as block:
    copy = millpond.DeviceBuffer(size=size)
    copy.copy_from_device(block)
    assert copy.tobytes() == b"\\7" * size
print("read")
"""


def test_a_fabric_handle_shares_a_pool_or_the_error_says_what_is_missing():
    try:
        pool = mr.MemoryPool(handles="fabric")
        handle = pool.export_fabric()
    except millpond.UnsupportedError as error:
        print(error)
        assert "IMEX" in str(error) or "does not support pools with these handles" in str(error)
        return
    buffer = millpond.DeviceBuffer(size=MIB, mr=pool.resource())
    buffer.fill(7)
    buffer.stream.synchronize()
    shared = handle.hex(), pool.export_pointer(buffer.ptr).hex()
    command = [sys.executable, "-c", IMPORTER, *shared, str(MIB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


def test_default_pools_are_those_of_a_place_and_a_kind():
    device, host = mr.MemoryPool.default(), mr.MemoryPool.default(location="host")
    assert mr.MemoryPool.default(managed=True) not in (device, host) and device != host
    assert device.access() == "read_write" and device.resource().is_device_accessible
    assert not host.resource().is_device_accessible
    host.set_access("read_write")
    buffer = millpond.DeviceBuffer(size=MIB, mr=host.resource())
    buffer.fill(7)
    buffer.stream.synchronize()
    assert ctypes.string_at(buffer.ptr, MIB) == b"\7" * MIB


def graph_of(stream, body):
    """Capture a graph, launch it, and return it."""
    cuda("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.ptr), 2)  # relaxed
    body()
    graph, launched = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuStreamEndCapture", ctypes.c_void_p(stream.ptr), ctypes.byref(graph))
    cuda("cuGraphInstantiateWithFlags", ctypes.byref(launched), graph, ctypes.c_uint64(0))
    cuda("cuGraphLaunch", launched, ctypes.c_void_p(stream.ptr))
    stream.synchronize()
    count = ctypes.c_size_t()
    cuda("cuGraphGetNodes", graph, None, ctypes.byref(count))
    return graph, launched, count.value


def test_graphs_count_the_memory_of_their_own_nodes_alone():
    graphs, stream = mr.GraphMemory(), millpond.Stream(flags=1)
    resource = mr.CudaAsyncMemoryResource()

    def through_the_pool():
        resource.deallocate(resource.allocate(MIB, stream), MIB, stream)

    def through_the_driver():
        address = ctypes.c_uint64()
        cuda("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(MIB), ctypes.c_void_p(stream.ptr))
        cuda("cuMemFreeAsync", address, ctypes.c_void_p(stream.ptr))

    graphs.trim()
    graphs.reset_highs()
    _, _, nodes = graph_of(stream, through_the_pool)
    assert (nodes, graphs.used_high, graphs.reserved_bytes) == (0, 0, 0)
    graph, launched, nodes = graph_of(stream, through_the_driver)
    assert nodes == 2 and graphs.used_high >= MIB and graphs.reserved_high >= MIB
    cuda("cuGraphExecDestroy", launched)
    cuda("cuGraphDestroy", graph)
    graphs.trim()
    assert graphs.reserved_bytes == 0
    graphs.reset_highs()
    assert (graphs.used_high, graphs.reserved_high) == (0, 0)


def test_properties_attributes_and_the_current_pool():
    before = mr.MemoryPool.current()
    assert before == mr.MemoryPool.default()
    pool = mr.MemoryPool(max_bytes="64MiB", handles="fd", release_threshold=MIB, reuse="follow")
    assert (pool.release_threshold, pool.reuse, pool.access()) == (MIB, "follow", "read_write")
    pool.set_current()
    try:
        address = ctypes.c_uint64()
        cuda("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(MIB), None)
        assert pool.used_bytes >= MIB and mr.MemoryPool.current() == pool
        cuda("cuMemFreeAsync", address, None)
        millpond.Device().synchronize()
        assert pool.used_bytes == 0
    finally:
        before.set_current()
    with pytest.raises(MemoryError):
        pool.resource().allocate(65 * MIB)
