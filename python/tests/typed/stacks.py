"""Stacks from text and from classes, default resources, sizes, and errors."""

from typing import assert_type

import millpond
from millpond import mr
from millpond.typing import Size


def build(limit: Size) -> mr.DeviceMemoryResource:
    """Return a pool with a limit on top."""
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), initial_pool_size="1MiB", maximum_pool_size="50%")
    assert_type(pool.pool_size(), int)
    assert_type(pool.upstream_mr, mr.DeviceMemoryResource)
    return mr.LimitingResourceAdaptor(pool, limit)


resource = build("64MiB")
mr.set_current_device_resource(resource)
assert_type(mr.get_current_device_resource(), mr.DeviceMemoryResource)
assert_type(mr.get_current_device_resource_type(), type[mr.DeviceMemoryResource])
assert_type(millpond.stack("cuda+pool:initial=1MiB+statistics"), mr.DeviceMemoryResource)

if isinstance(resource, mr.LimitingResourceAdaptor):
    assert_type(resource.get_allocation_limit(), int)

budget = mr.BudgetResourceAdaptor(resource, "typed", "1MiB", priority=1, wait=0.5, zero=False)
assert_type(budget.get_allocated_bytes(), int)

ptr = resource.allocate(1000)
assert_type(ptr, int)
resource.deallocate(ptr, 1000)
assert_type(resource.memory_info(), tuple[int, int])
assert_type(resource.device, millpond.Device)
assert_type(resource.device.ordinal, int)

base = mr.CudaMemoryResource(device=millpond.Device())
binning = mr.BinningMemoryResource(base, 18, 20)
binning.add_bin(1 << 22, mr.PoolMemoryResource(base, 1 << 20))
arena = mr.ArenaMemoryResource(base, "16MiB")
blocks = mr.FixedSizeMemoryResource(base, "1MiB", 4)
handle: int = mr.CudaAsyncMemoryResource(release_threshold="1GiB").pool_handle()

millpond.reinitialize(pool_allocator=True, initial_pool_size=1 << 20, devices=[0])
mr.reset_per_device_resource(0)

try:
    millpond.DeviceBuffer(size=2 << 20, mr=millpond.stack("cuda+limiting:limit=1MiB"))
except millpond.OutOfMemoryError as error:
    assert_type(error.report, str)
    assert error.data is None or "requested" in str(error.data)
try:
    millpond.stack("cuda+pol")
except ValueError as error:
    assert isinstance(error, millpond.StackError)
    assert_type(error.code, int)
