"""The driver's pools: properties, attributes, access, lifetimes, and blocks of other processes.

Simulated processes live in this one: an imported pool has its own addresses.
"""

import gc
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import millpond
from millpond import mr
from millpond.compat.rmm.pylibrmm.device_buffer import copy_host_to_ptr

MIB = 1 << 20

if not millpond.Device().is_simulated:
    pytest.skip("gpu/test_pools_gpu.py has the tests for a GPU", allow_module_level=True)


def named(ptr, size):
    """Return an object with CUDA's array interface."""
    interface = {"shape": (size,), "typestr": "|u1", "data": (ptr, False), "version": 3}
    return SimpleNamespace(__cuda_array_interface__=interface)


def read(ptr, size):
    """Return the bytes of device memory."""
    copy = millpond.DeviceBuffer(size=size, mr=mr.CudaMemoryResource())
    copy.copy_from_device(named(ptr, size))
    return copy.tobytes()


@pytest.fixture
def shared():
    """A pool, the same pool as another process imports it, and a resource over the pool."""
    pool = mr.MemoryPool(handles="fd")
    fd = pool.export_fd()
    imported = mr.MemoryPool.import_fd(fd)
    os.close(fd)
    return pool, imported, pool.resource()


def test_a_pool_has_the_properties_that_it_was_made_with():
    pool = mr.MemoryPool(
        handles="fd/fabric", max_bytes="64MiB", hw_decompress=True, release_threshold=MIB, reuse="follow"
    )
    assert (pool.location, pool.numa, pool.managed) == ("device", None, False)
    assert (pool.handles, pool.max_bytes, pool.hw_decompress) == ("fd/fabric", 64 * MIB, True)
    assert (pool.release_threshold, pool.reuse, pool.is_imported) == (MIB, "follow", False)
    host = mr.MemoryPool(location="host", numa=0)
    assert (host.location, host.numa) == ("host", 0)
    assert mr.MemoryPool(location="host").numa is None
    assert mr.MemoryPool(managed=True).managed
    with pytest.raises(MemoryError):
        pool.resource().allocate(65 * MIB)
    with pytest.raises(millpond.MillpondError, match="no NUMA node 7"):
        mr.MemoryPool(location="host", numa=7)
    with pytest.raises(millpond.UnsupportedError, match="managed memory cannot be exported"):
        mr.MemoryPool(managed=True, handles="fd")


def test_a_pool_of_the_host_has_the_hosts_figures():
    of_device = mr.CudaMemoryResource().memory_info()
    for pool in (mr.MemoryPool(location="host"), mr.MemoryPool.default(location="host")):
        assert pool.resource().memory_info()[1] != of_device[1]
    assert mr.MemoryPool.default().resource().memory_info()[1] == of_device[1]


def test_a_copy_to_a_pool_without_access_says_what_to_set():
    pool = mr.MemoryPool(location="host")
    buffer = millpond.DeviceBuffer(size=8, mr=pool.resource())
    other = millpond.DeviceBuffer(size=8, mr=mr.CudaMemoryResource())
    for copy in (
        lambda: buffer.copy_from_host(b"12345678"),
        lambda: buffer.copy_from_device(other),
        lambda: other.copy_from_device(buffer),
        buffer.copy_to_host,
    ):
        with pytest.raises(millpond.InvalidArgumentError, match="has no access to the pool .* `set_access`"):
            copy()
    pool.set_access("read_write", millpond.Device())
    buffer.copy_from_host(b"12345678")
    assert buffer.tobytes() == b"12345678"


def test_a_simulated_pool_cannot_cross_processes():
    fd = mr.MemoryPool(handles="fd").export_fd()
    program = f"import millpond; millpond.mr.MemoryPool.import_fd({fd})"
    answer = subprocess.run([sys.executable, "-c", program], pass_fds=[fd], capture_output=True, text=True)
    os.close(fd)
    assert "UnsupportedError" in answer.stderr
    assert "simulated memory cannot cross processes" in answer.stderr


def test_a_pool_counts_its_memory_and_returns_it():
    pool = mr.MemoryPool(release_threshold="1GiB")
    resource = pool.resource()
    blocks = [resource.allocate(MIB) for _ in range(4)]
    assert pool.used_bytes == pool.used_high == 4 * MIB <= pool.reserved_bytes == pool.reserved_high
    for block in blocks[1:]:
        resource.deallocate(block, MIB)
    assert pool.used_bytes == MIB and pool.used_high == 4 * MIB
    pool.reset_highs()
    assert pool.used_high == MIB
    resource.deallocate(blocks[0], MIB)
    held = pool.reserved_bytes
    assert pool.trim() == held > 0 and pool.reserved_bytes == 0
    with pytest.raises(ValueError, match="`keep_bytes` must be"):
        pool.trim(-1)
    with pytest.raises(ValueError, match="`reuse` must be"):
        pool.reuse = "follow/never"


def test_a_pool_lives_while_it_is_current():
    before = mr.MemoryPool.current()
    assert before == mr.MemoryPool.default()
    pool = mr.MemoryPool(max_bytes=64 * MIB)
    handle = pool.pool_handle
    pool.set_current()
    del pool
    gc.collect()
    current = mr.MemoryPool.current()
    assert current.pool_handle == handle != before.pool_handle and current.max_bytes == 64 * MIB
    assert mr.CudaAsyncViewMemoryResource(pool="current").pool_handle() == handle
    before.set_current()
    assert mr.MemoryPool.current() == before != current


def test_blocks_outlive_their_pool():
    pool = mr.MemoryPool()
    resource = pool.resource()
    ptr = resource.allocate(3)
    millpond.DeviceBuffer(size=3, mr=resource)  # its block is freed
    device = pool.device
    buffer = millpond.DeviceBuffer(size=3, mr=resource)
    buffer.copy_from_host(b"abc")
    free = device.memory_info()[0]
    del pool, resource
    gc.collect()
    assert read(ptr, 3) is not None and buffer.tobytes() == b"abc"
    assert mr.MemoryPool.of(buffer.mr).used_bytes == 1024
    del buffer
    gc.collect()
    assert device.memory_info()[0] <= free, "the block is live, so it keeps its memory"


def test_a_pool_is_the_base_of_a_stack():
    pool = mr.MemoryPool(max_bytes=64 * MIB)
    for base in (pool.resource(), mr.CudaAsyncViewMemoryResource(pool=pool)):
        stack = mr.StatisticsResourceAdaptor(base)
        assert mr.MemoryPool.of(stack) == pool and stack.text == "cuda_async_view:pool=other+statistics"
        buffer = millpond.DeviceBuffer(size=1000, mr=stack)
        assert pool.used_bytes == 1024
        del buffer
    with pytest.raises(millpond.UnsupportedError, match="has a driver pool"):
        mr.MemoryPool.of(mr.CudaMemoryResource())
    with pytest.raises(TypeError, match="`pool` must be a MemoryPool"):
        mr.CudaAsyncViewMemoryResource(pool=5)
    with pytest.raises(ValueError, match="not both"):
        mr.CudaAsyncViewMemoryResource(1, pool=pool)


def test_a_host_pool_gives_its_device_access():
    pool = mr.MemoryPool(location="host")
    device = pool.device
    assert pool.access(device) == "none" and not pool.resource().is_device_accessible
    pool.set_access("read_write", device)
    assert pool.access() == "read_write"
    resource = pool.resource()
    assert resource.is_device_accessible and resource.is_host_accessible
    with pytest.raises(millpond.MillpondError):
        mr.MemoryPool().set_access("none", device)
    with pytest.raises(ValueError, match="`access` must be one of"):
        pool.set_access("write", device)


def test_the_host_accesses_host_memory_and_no_device_memory():
    own, host, managed = mr.MemoryPool(), mr.MemoryPool(location="host"), mr.MemoryPool(managed=True)
    pools = own, host
    for numa in (None, 0):
        place = {"location": "host", "numa": numa}
        assert (own.access(**place), host.access(**place)) == ("none", "read_write")
        host.set_access("read_write", **place)
        for pool, access in ((own, "read_write"), (own, "none"), (host, "none")):
            with pytest.raises(millpond.InvalidArgumentError, match="the driver refuses this access of"):
                pool.set_access(access, **place)
        for access in ("read_write", "none"):
            managed.set_access(access, **place)
            assert managed.access(**place) == access
    with pytest.raises(millpond.InvalidArgumentError, match="no current NUMA node"):
        host.access(location="host", numa="current")
    with pytest.raises(millpond.InvalidArgumentError, match="no access for reading only"):
        host.set_access("read")
    with pytest.raises(millpond.InvalidArgumentError, match="always accesses its own memory"):
        own.set_access("none")
    with pytest.raises(ValueError, match="`device` or location='host', not both"):
        pools[0].access(0, location="host")
    with pytest.raises(ValueError, match="`devices` or location='host', not both"):
        pools[0].set_access("none", 0, location="host")
    with pytest.raises(ValueError, match="`numa` is for host memory"):
        pools[0].access(numa=0)
    with pytest.raises(TypeError, match="`numa` must be the number of a NUMA node, 'current'"):
        pools[0].access(location="host", numa="here")
    pools[1].set_access("read_write")
    assert pools[1].access() == "read_write"


def test_default_pools_are_those_of_a_place_and_a_kind():
    assert mr.MemoryPool.default(0) == mr.MemoryPool.default() == mr.MemoryPool.default(managed=False)
    host, managed = mr.MemoryPool.default(location="host"), mr.MemoryPool.default(managed=True)
    assert (host.location, host.managed, managed.location, managed.managed) == ("host", False, "device", True)
    assert mr.MemoryPool.default(location="host", numa=0).numa == 0
    assert managed == mr.MemoryPool.of(mr.CudaAsyncManagedMemoryResource())
    with pytest.raises(millpond.MillpondError, match="no NUMA node 7"):
        mr.MemoryPool.default(location="host", numa=7)


@pytest.mark.parametrize("handles", ["fabric", "fd/fabric"])
def test_a_fabric_handle_shares_a_pool(handles):
    pool = mr.MemoryPool(handles=handles)
    buffer = millpond.DeviceBuffer(size=3, mr=pool.resource())
    buffer.copy_from_host(b"abc")
    data = pool.export_pointer(buffer.ptr)
    imported = mr.MemoryPool.import_fabric(bytearray(pool.export_fabric()))
    with imported.import_pointer(data, 3) as block:
        assert imported.is_imported and read(block.ptr, 3) == b"abc"
    resource = mr.CudaAsyncMemoryResource(enable_fabric=True)
    of_resource = mr.MemoryPool.of(resource).export_fabric()
    assert mr.MemoryPool.import_fabric(of_resource) != imported


def test_another_process_reads_and_writes_a_block(shared):
    pool, imported, resource = shared
    buffer = millpond.DeviceBuffer(size=3, mr=resource)
    buffer.copy_from_host(b"abc")
    block = imported.import_pointer(pool.export_pointer(buffer.ptr), 3)
    address = block.ptr
    assert address not in (0, buffer.ptr) and imported.is_imported
    assert read(address, 3) == b"abc"
    copy_host_to_ptr(b"xyz", address)
    assert buffer.tobytes() == b"xyz"
    pair = millpond.DeviceBuffer(size=3, mr=resource)
    used = pool.used_bytes
    with imported.import_pointer(pool.export_pointer(pair.ptr), 3) as other:
        assert other.ptr not in (0, address, pair.ptr)
    assert other.ptr == 0 and read(address, 3) == b"xyz"
    stream = millpond.Stream()
    block.free(stream)
    block.free(stream)
    stream.synchronize()
    assert (block.ptr, block.size) == (0, 3)
    with pytest.raises(millpond.DriverError, match="accessible"):
        read(address, 3)
    with pytest.raises(ValueError, match="was freed"):
        millpond.DeviceBuffer(size=3).copy_from_device(block)
    assert buffer.tobytes() == b"xyz" and pool.used_bytes == used, "the exporter's blocks stay"


def test_an_imported_block_keeps_its_pool_until_it_ends(shared):
    pool, imported, resource = shared
    buffer = millpond.DeviceBuffer(size=3, mr=resource)
    buffer.copy_from_host(b"abc")
    block = imported.import_pointer(pool.export_pointer(buffer.ptr), 3)
    del imported
    gc.collect()
    copy = millpond.DeviceBuffer(size=3)
    copy.copy_from_device(block)
    assert copy.tobytes() == b"abc"
    del block
    del buffer, resource, pool


def test_wrong_shares_are_refused(shared, tmp_path):
    pool, imported, resource = shared
    ptr = resource.allocate(1000)
    data = pool.export_pointer(ptr)
    for refused in (imported.resource, imported.set_current, imported.trim, imported.export_fd):
        with pytest.raises(millpond.UnsupportedError, match="an imported pool cannot"):
            refused()
    for count in (
        "used_bytes",
        "used_high",
        "reserved_bytes",
        "reserved_high",
        "release_threshold",
        "reuse",
    ):
        with pytest.raises(millpond.UnsupportedError, match="an imported pool cannot"):
            getattr(imported, count)
    with pytest.raises(millpond.UnsupportedError, match="an imported pool cannot count its memory"):
        imported.reset_highs()
    with pytest.raises(millpond.InvalidArgumentError, match="this process made the pool"):
        pool.import_pointer(data, 1000)
    with pytest.raises(millpond.InvalidArgumentError, match="describes no live block"):
        imported.import_pointer(bytes(64), 1000)
    resource.deallocate(ptr, 1000)
    with pytest.raises(millpond.InvalidArgumentError, match="describes no live block"):
        imported.import_pointer(data, 1000)
    with pytest.raises(millpond.InvalidArgumentError, match="in no block of this pool"):
        pool.export_pointer(millpond.DeviceBuffer(size=8).ptr)
    plain = mr.MemoryPool()
    with pytest.raises(millpond.InvalidArgumentError, match="made without file descriptors"):
        plain.export_fd()
    with pytest.raises(millpond.InvalidArgumentError, match="made without fabric handles"):
        pool.export_fabric()
    with pytest.raises(millpond.InvalidArgumentError, match="names no pool"):
        mr.MemoryPool.import_fabric(bytes(64))
    for handle in (b"short", 5):
        with pytest.raises((TypeError, ValueError), match="`handle` must be the 64 bytes"):
            mr.MemoryPool.import_fabric(handle)
    with open(tmp_path / "file", "w") as file, pytest.raises(millpond.InvalidArgumentError, match="no pool"):
        mr.MemoryPool.import_fd(file.fileno())
    for data in (b"short", 5):
        with pytest.raises((TypeError, ValueError), match="`data` must be the 64 bytes"):
            imported.import_pointer(data, 1)


def test_pools_of_other_libraries_are_known_by_their_handle():
    pool = mr.MemoryPool(max_bytes=MIB)
    again = mr.MemoryPool.from_handle(pool.pool_handle)
    assert again == pool and hash(again) == hash(pool) and again.max_bytes == MIB
    assert pool != mr.MemoryPool() and pool != 5
    assert repr(pool) == f"<MemoryPool {pool.pool_handle:#x} of {pool.device!r}>"


def test_pinned_memory_of_a_pool_is_for_host_and_device():
    import ctypes

    resource = mr.CudaAsyncPinnedMemoryResource(max="64MiB")
    pool = mr.MemoryPool.of(resource)
    assert (pool.location, pool.numa, pool.max_bytes) == ("host", None, 64 * MIB)
    assert pool.access() == "read_write" and pool.pool_handle == resource.pool_handle()
    stream = millpond.Stream()
    buffer = millpond.DeviceBuffer(size=3, stream=stream, mr=resource)
    buffer.copy_from_host(b"abc", stream)
    stream.synchronize()
    assert ctypes.string_at(buffer.ptr, 3) == b"abc"
    text = millpond.stack("cuda_async_pinned:numa=0+statistics").text
    assert text == "cuda_async_pinned:numa=0+statistics"


def test_graphs_count_no_memory_of_pools():
    graphs = mr.GraphMemory()
    millpond.DeviceBuffer(size=1000, mr=mr.CudaAsyncMemoryResource())
    counts = (graphs.used_bytes, graphs.used_high, graphs.reserved_bytes, graphs.reserved_high)
    assert counts == (0, 0, 0, 0)
    graphs.reset_highs()
    graphs.trim()
