"""Each resource and adaptor: arrays of every type and size, its parameters, its counters, its errors."""

import gc
import sys
import weakref

import numpy as np
import pytest
from conftest import needs

import millpond
from millpond import mr

MIB = 1 << 20
TYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16"]
COUNTS = [1, 2, 7, 8, 9, 32, 128]

BUILDS = {
    "cuda": mr.CudaMemoryResource,
    "managed": mr.ManagedMemoryResource,
    "pinned": mr.PinnedHostMemoryResource,
    "system": mr.SystemMemoryResource,
    "sam_headroom": lambda: mr.SamHeadroomMemoryResource(MIB),
    "sam_headroom_text": lambda: mr.SamHeadroomMemoryResource("1MiB"),
    "pool": lambda: mr.PoolMemoryResource(mr.CudaMemoryResource(), 1 << 20),
    "pool_sizes": lambda: mr.PoolMemoryResource(mr.CudaMemoryResource(), "2MiB", "8MiB"),
    "pool_default": lambda: mr.PoolMemoryResource(mr.CudaMemoryResource()),
    "pool_managed": lambda: mr.PoolMemoryResource(mr.ManagedMemoryResource(), 1 << 20, 1 << 23),
    "pool_pinned": lambda: mr.PoolMemoryResource(mr.PinnedHostMemoryResource(), 1 << 20, 1 << 23),
    "fixed_size": lambda: mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), 1 << 20, 4),
    "fixed_size_small": lambda: mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), 1 << 12, 0),
    "fixed_size_managed": lambda: mr.FixedSizeMemoryResource(mr.ManagedMemoryResource(), 1 << 20, 4),
    "binning": lambda: mr.BinningMemoryResource(mr.CudaMemoryResource(), 10, 20),
    "binning_pool": lambda: mr.BinningMemoryResource(
        mr.PoolMemoryResource(mr.CudaMemoryResource(), 1 << 22), 10, 20
    ),
    "binning_managed": lambda: mr.BinningMemoryResource(mr.ManagedMemoryResource(), 12, 16),
    "arena": lambda: mr.ArenaMemoryResource(mr.CudaMemoryResource(), 64 << 20),
    "arena_text": lambda: mr.ArenaMemoryResource(mr.CudaMemoryResource(), "64MiB"),
    "arena_managed": lambda: mr.ArenaMemoryResource(mr.ManagedMemoryResource(), 64 << 20),
    "cuda_async": mr.CudaAsyncMemoryResource,
    "cuda_async_sizes": lambda: mr.CudaAsyncMemoryResource("1MiB", 1 << 20),
    "cuda_async_managed": mr.CudaAsyncManagedMemoryResource,
    "cuda_async_pinned": mr.CudaAsyncPinnedMemoryResource,
    "cuda_async_view": mr.CudaAsyncViewMemoryResource,
    "statistics": lambda: mr.StatisticsResourceAdaptor(mr.CudaMemoryResource()),
    "tracking": lambda: mr.TrackingResourceAdaptor(mr.CudaMemoryResource()),
    "limiting": lambda: mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 1 << 20),
    "budget": lambda: mr.BudgetResourceAdaptor(mr.CudaMemoryResource(), "build", 1 << 20),
    "prefetch": lambda: mr.PrefetchResourceAdaptor(mr.ManagedMemoryResource()),
    "thread_safe": lambda: mr.ThreadSafeResourceAdaptor(mr.CudaMemoryResource()),
    "aligned": lambda: mr.AlignedResourceAdaptor(mr.CudaMemoryResource(), 4096, 0),
    "retry": lambda: mr.RetryResourceAdaptor(mr.CudaMemoryResource()),
    "fallback": lambda: mr.FallbackResourceAdaptor(mr.CudaMemoryResource(), "managed"),
    "failure": lambda: mr.FailureCallbackResourceAdaptor(mr.CudaMemoryResource(), lambda nbytes: False),
}


def build(name):
    try:
        return BUILDS[name]()
    except millpond.UnsupportedError as error:
        pytest.skip(f"{name}: {error}")


def array_test(count, dtype, resource, stream=millpond.DEFAULT_STREAM):
    array = np.arange(count).astype(dtype)
    buffer = millpond.DeviceBuffer(size=array.nbytes, stream=stream, mr=resource)
    assert buffer.ptr % 256 == 0
    buffer.copy_from_host(array)
    again = buffer.copy_to_host(np.zeros_like(array))
    np.testing.assert_array_equal(again, array)


def all_arrays_test(resource):
    """Tests every type and count on one resource: building one takes longer than an array."""
    for dtype in TYPES:
        for count in COUNTS:
            array_test(count, dtype, resource)


@pytest.mark.parametrize("name", BUILDS)
def test_arrays(name):
    all_arrays_test(build(name))


@pytest.mark.parametrize("managed", [False, True])
@pytest.mark.parametrize("pool", [False, True])
def test_arrays_after_reinitialize(managed, pool):
    millpond.reinitialize(
        pool_allocator=pool, managed_memory=managed, initial_pool_size=MIB if pool else None
    )
    assert mr.get_current_device_resource_type() is (
        mr.PoolMemoryResource if pool else mr.ManagedMemoryResource if managed else mr.CudaMemoryResource
    )
    all_arrays_test(None)


@pytest.mark.parametrize("kind", ["default", "new", "per_thread", "pool"])
@pytest.mark.parametrize("name", ["pool", "cuda_async", "arena", "fixed_size", "binning", "managed"])
def test_streams(name, kind):
    stream = {
        "default": lambda: millpond.DEFAULT_STREAM,
        "new": millpond.Stream,
        "per_thread": lambda: millpond.PER_THREAD_DEFAULT_STREAM,
        "pool": lambda: millpond.StreamPool(2).get_stream(),
    }[kind]()
    array_test(1000, "i4", build(name), stream)


@pytest.mark.parametrize("name", BUILDS)
def test_raw_blocks_and_defaults(name):
    resource = build(name)
    assert isinstance(resource, mr.DeviceMemoryResource) and resource.text in repr(resource)
    block = resource.allocate(1000)
    assert block % 256 == 0
    resource.deallocate(block, 1000)
    stream = millpond.Stream()
    block = resource.allocate(1000, stream)
    resource.deallocate(block, 1000, stream)
    stream.synchronize()
    mr.set_current_device_resource(resource)
    assert mr.get_current_device_resource() is resource
    assert millpond.DeviceBuffer(size=8).mr is resource


@pytest.mark.parametrize(
    "adaptor",
    [
        mr.PoolMemoryResource,
        mr.ArenaMemoryResource,
        mr.FixedSizeMemoryResource,
        mr.BinningMemoryResource,
        mr.StatisticsResourceAdaptor,
        mr.TrackingResourceAdaptor,
        mr.PrefetchResourceAdaptor,
        mr.ThreadSafeResourceAdaptor,
    ],
)
def test_an_adaptor_keeps_its_upstream(adaptor):
    upstream = mr.CudaMemoryResource()
    known = weakref.ref(upstream)
    resource = adaptor(upstream)
    assert resource.upstream_mr is upstream and resource.get_upstream() is upstream
    del upstream
    gc.collect()
    assert known() is not None
    array_test(10, "u1", resource)
    with pytest.raises(TypeError, match="upstream_mr"):
        adaptor(None)


def test_pool_sizes():
    with pytest.raises(ValueError):
        mr.PoolMemoryResource(mr.CudaMemoryResource(), 8 * MIB, 4 * MIB)
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), "1MiB", "4MiB")
    assert pool.pool_size() >= MIB
    with pytest.raises(MemoryError):
        millpond.DeviceBuffer(size=5 * MIB, mr=pool)
    buffer = millpond.DeviceBuffer(size=3 * MIB, mr=pool)
    del buffer
    assert pool.trim() > 0


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("1B", 1), ("10B", 10), ("1KB", 1000), ("1 KiB", 1024), ("1.5 MiB", 3 << 19), ("2GB", 2 * 10**9)]
    + [("1TB", 10**12), ("1TiB", 1 << 40), ("3pib", 3 << 50), (7, 7)],
)
def test_sizes_as_text(text, bytes_):
    assert mr.parse_bytes(text) == bytes_


@pytest.mark.parametrize("text", ["foo", "1XB", "-1", "", "MiB", "1 2", "1", "50"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError):
        mr.PoolMemoryResource(mr.CudaMemoryResource(), text)


def test_fixed_size_refuses_larger_requests():
    fixed = mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), 4096, 1)
    millpond.DeviceBuffer(size=4096, mr=fixed)
    with pytest.raises(MemoryError):
        millpond.DeviceBuffer(size=4097, mr=fixed)


def test_bins():
    counted = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    bins = mr.BinningMemoryResource(mr.CudaMemoryResource(), 12, 14)
    assert bins.bin_mrs == [] and bins.text == "cuda+binning:bins=4KiB/8KiB/16KiB"
    before = millpond.DeviceBuffer(size=100, mr=bins)
    bins.add_bin(1 << 10, counted)
    bins.add_bin(1 << 20)
    assert bins.bin_mrs == [counted]
    inside = millpond.DeviceBuffer(size=1000, mr=bins)
    assert counted.allocation_counts.current_bytes >= 1000
    outside = millpond.DeviceBuffer(size=2000, mr=bins)
    assert counted.allocation_counts.current_count == 1
    del before, inside, outside
    assert counted.allocation_counts.current_bytes == 0
    with pytest.raises(ValueError):
        mr.BinningMemoryResource(mr.CudaMemoryResource(), 5)


def test_limiting():
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 4 * MIB)
    assert limited.get_allocation_limit() == 4 * MIB and limited.get_allocated_bytes() == 0
    first = millpond.DeviceBuffer(size=MIB, mr=limited)
    assert limited.get_allocated_bytes() == MIB
    with pytest.raises(millpond.OutOfMemoryError):
        millpond.DeviceBuffer(size=4 * MIB, mr=limited)
    del first
    assert limited.get_allocated_bytes() == 0


def test_budgets():
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    job = mr.BudgetResourceAdaptor(pool, "test job", 8 * MIB)
    etl = mr.BudgetResourceAdaptor(pool, "etl", 8 * MIB, parent="test job")
    train = mr.BudgetResourceAdaptor(
        pool, "train", "8MiB", parent="test job", guaranteed="4MiB", priority=1, wait=0.001, zero=True
    )
    assert train.get_allocation_limit() == 8 * MIB and isinstance(train, mr.LimitingResourceAdaptor)
    borrowed = millpond.DeviceBuffer(size=6 * MIB, mr=etl)
    with pytest.raises(millpond.OutOfMemoryError, match="budget `test job` refused.*etl did not give back"):
        millpond.DeviceBuffer(size=4 * MIB, mr=train)
    del borrowed
    buffer = millpond.DeviceBuffer(size=4 * MIB, mr=train)
    assert not buffer.copy_to_host(np.ones(4 * MIB, np.uint8)).any()
    assert (job.get_allocated_bytes(), etl.get_allocated_bytes()) == (4 * MIB, 0)
    for arguments, options, match in [
        (("etl", 8 * MIB), {}, "with other options"),
        (("other", MIB), {"parent": "missing"}, "no budget of this name"),
        (("other", MIB), {"guaranteed": MIB}, "no parent to guarantee"),
        (("", MIB), {}, "is empty"),
        (("other", MIB), {"priority": -1}, "`priority` must be a number from 0"),
        (("other", MIB), {"wait": -1}, "`wait` must be a number of seconds"),
    ]:
        with pytest.raises(ValueError, match=match):
            mr.BudgetResourceAdaptor(pool, *arguments, **options)
    with pytest.raises(TypeError, match="`name` must be the name of a budget"):
        mr.BudgetResourceAdaptor(pool, 1, MIB)


def test_an_idle_budget_is_called_back(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    cuda = mr.CudaMemoryResource()
    job = mr.BudgetResourceAdaptor(cuda, "called job", 8 * MIB)
    idle = mr.BudgetResourceAdaptor(cuda, "called idle", 8 * MIB, parent="called job")
    needy = mr.BudgetResourceAdaptor(
        cuda, "called needy", 8 * MIB, parent="called job", guaranteed=8 * MIB, wait=0
    )
    cache, asked = [millpond.DeviceBuffer(size=8 * MIB, mr=idle)], []

    def free(nbytes):
        asked.append(nbytes)
        cache.clear()

    idle.on_call_back(free)
    buffer = millpond.DeviceBuffer(size=6 * MIB, mr=needy)
    assert (asked, job.get_allocated_bytes()) == ([6 * MIB], 6 * MIB)
    del buffer

    def fail(nbytes):
        raise ValueError("no")

    for function, count in [(fail, 1), (None, 0)]:
        idle.on_call_back(function)
        buffer = millpond.DeviceBuffer(size=8 * MIB, mr=idle)
        with pytest.raises(millpond.OutOfMemoryError, match="called idle"):
            needy.allocate(MIB)
        assert len(unraisable) == count
        unraisable.clear()
        del buffer
    with pytest.raises(TypeError, match="`callback`"):
        idle.on_call_back(1)


def test_a_pool_above_an_idle_budget_is_trimmed():
    parent = millpond.stack("cuda+budget:name=shared,limit=64MiB")
    idle = millpond.stack("cuda+budget:name=idle,limit=64MiB,parent=shared+pool:decay=off")
    text = "cuda+budget:name=needy,limit=64MiB,parent=shared,guaranteed=32MiB,wait=60s+pool"
    needy = millpond.stack(text)
    buffers = [millpond.DeviceBuffer(size=MIB, mr=idle) for _ in range(48)]
    del buffers
    assert parent.get_allocated_bytes() > 32 * MIB
    assert millpond.DeviceBuffer(size=30 * MIB, mr=needy).size == 30 * MIB


@pytest.mark.parametrize("stacks", [False, True])
def test_tracking(stacks):
    tracked = mr.TrackingResourceAdaptor(mr.CudaMemoryResource(), capture_stacks=stacks)
    assert tracked.get_allocated_bytes() == 0 and tracked.get_outstanding_allocations_str() == ""
    buffers = [millpond.DeviceBuffer(size=1000, mr=tracked) for _ in range(10)]
    del buffers[9], buffers[0]
    assert tracked.get_allocated_bytes() == 8000
    text = tracked.get_outstanding_allocations_str()
    assert text.count(hex(buffers[0].ptr)[2:]) >= 1
    known = tracked._block_at(buffers[0].ptr)
    assert '"bytes":1000' in known and tracked._block_at(1) is None
    del buffers
    assert tracked.get_outstanding_allocations_str() == ""
    tracked.log_outstanding_allocations()


def test_tracking_under_statistics():
    tracked = mr.TrackingResourceAdaptor(mr.CudaMemoryResource())
    counted = mr.StatisticsResourceAdaptor(tracked)
    buffer = millpond.DeviceBuffer(size=64, mr=counted)
    assert tracked.get_allocated_bytes() == counted.allocation_counts.current_bytes == 64
    del buffer
    assert tracked.get_allocated_bytes() == 0


def test_a_failure_callback_makes_room():
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 4 * MIB)
    kept, asked = [millpond.DeviceBuffer(size=3 * MIB, mr=limited)], []

    def spill(nbytes):
        asked.append(nbytes)
        return bool(kept and kept.pop())

    resource = mr.FailureCallbackResourceAdaptor(limited, spill)
    millpond.DeviceBuffer(size=2 * MIB, mr=resource)
    assert asked == [2 * MIB]
    with pytest.raises(MemoryError):
        millpond.DeviceBuffer(size=5 * MIB, mr=resource)
    assert asked == [2 * MIB, 5 * MIB]


def test_callbacks_are_called_in_order():
    base, calls = mr.CudaMemoryResource(), []

    def allocate(size, stream):
        calls.append(("allocate", size))
        return base.allocate(size, stream)

    def deallocate(ptr, size, stream):
        calls.append(("deallocate", size))
        base.deallocate(ptr, size, stream)

    resource = mr.CallbackMemoryResource(allocate, deallocate)
    buffer = millpond.DeviceBuffer(size=256, mr=resource)
    known = weakref.ref(resource)
    del resource
    gc.collect()
    assert known() is not None, "the buffer keeps its resource"
    del buffer
    assert calls == [("allocate", 256), ("deallocate", 256)]


@pytest.mark.parametrize(
    ("raised", "caught"),
    [(MemoryError, MemoryError), (ValueError, RuntimeError), (RuntimeError, RuntimeError)],
)
def test_what_a_callback_raises(raised, caught):
    def allocate(size, stream):
        raise raised("My alloc error")

    resource = mr.CallbackMemoryResource(allocate, lambda ptr, size, stream: None)
    with pytest.raises(caught) as error:
        millpond.DeviceBuffer(size=256, mr=resource)
    assert "My alloc error" in str(error.value) or "My alloc error" in str(error.value.__cause__)


@pytest.mark.parametrize("enable_ipc", [False, True])
@pytest.mark.parametrize("threshold", [None, 0, "1MiB"])
def test_async_options(enable_ipc, threshold):
    resource = mr.CudaAsyncMemoryResource(release_threshold=threshold, enable_ipc=enable_ipc)
    assert resource.pool_handle() != 0
    array_test(100, "f8", resource)


def test_an_async_pool_for_fabric_works_or_says_why():
    try:
        resource = mr.CudaAsyncMemoryResource(enable_fabric=True)
    except millpond.MillpondError as error:
        assert "fabric" in str(error).lower() or error.code != 0
    else:
        array_test(100, "f8", resource)


def test_a_view_of_a_pool():
    pool = mr.CudaAsyncMemoryResource()
    view = mr.CudaAsyncViewMemoryResource(pool.pool_handle())
    assert view.pool_handle() == pool.pool_handle()
    array_test(100, "i8", view)
    with pytest.raises(ValueError):
        mr.CudaAsyncViewMemoryResource(0)


def test_a_managed_async_pool():
    resource = build("cuda_async_managed")
    assert resource.pool_handle() != 0 and resource.is_host_accessible


@pytest.mark.parametrize(
    ("name", "host"), [("cuda", False), ("managed", True), ("pinned", True), ("pool", False)]
)
def test_what_reaches_the_memory(name, host):
    resource = build(name)
    assert resource.is_device_accessible and resource.is_host_accessible is host


def test_prefetch_of_memory_that_cannot_is_no_error():
    for name in ["cuda", "managed", "pinned"]:
        buffer = millpond.DeviceBuffer(size=1000, mr=build(name))
        buffer.prefetch()
        buffer.prefetch(device=-1)
        buffer.prefetch(device=0, stream=millpond.Stream())


def test_an_out_of_memory_error_carries_the_report():
    pool = needs("cuda+pool:max=8MiB+statistics")
    keep = millpond.DeviceBuffer(size=6 * MIB, mr=pool)
    with pytest.raises(millpond.OutOfMemoryError) as caught:
        millpond.DeviceBuffer(size=6 * MIB, mr=pool)
    error = caught.value
    assert isinstance(error, MemoryError) and "6MiB" in error.report and isinstance(error.data, dict)
    report = millpond.memory_report(pool)
    assert report.data["stack"] == pool.text and pool.text in str(report)
    assert report._repr_html_().startswith("<table>") and pool.text in report._repr_html_()
    assert len(keep) == 6 * MIB


def test_stacks_by_text():
    assert isinstance(millpond.stack("cuda+pool:initial=1GiB+statistics"), mr.StatisticsResourceAdaptor)
    with pytest.raises(millpond.StackError):
        millpond.stack("cuda+pond")
    with pytest.raises(millpond.StackError):
        millpond.stack("cuda+pool:inital=1GiB")
    nested = millpond.stack("cuda+binning:bins=1MiB(cuda+pool)")
    assert nested.text.endswith("(cuda+pool)")


def test_buffers_outlive_their_resource_object():
    resource = mr.PoolMemoryResource(mr.CudaMemoryResource(), MIB)
    buffer = millpond.to_device(b"kept", mr=resource)
    known = weakref.ref(resource)
    del resource
    gc.collect()
    assert known() is not None and buffer.tobytes() == b"kept"
    del buffer
    gc.collect()
    assert known() is None


def test_a_cycle_of_buffers_is_collected():
    counted = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())

    class Node:
        pass

    node = Node()
    node.buffer, node.self = millpond.DeviceBuffer(size=100, mr=counted), node
    del node
    gc.collect()
    assert counted.allocation_counts.current_bytes == 0


def test_a_callback_that_frees_leaves_a_raised_exception_alone():
    """A temporary buffer ends while the exception of its call is propagating."""
    upstream, freed = mr.CudaMemoryResource(), []

    def free(ptr, size, stream):
        upstream.deallocate(ptr, size, stream)
        freed.append(size)

    here, other = millpond.to_device(b"a"), millpond.Stream(device=millpond.Device("sim:1GiB"))
    mr.set_current_device_resource(mr.CallbackMemoryResource(upstream.allocate, free))
    with pytest.raises(ValueError, match="use a stream of the memory's device"):
        here.copy_from_device(millpond.to_device(b"b"), other)
    assert freed == [1]
