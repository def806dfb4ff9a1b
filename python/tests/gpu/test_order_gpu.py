"""Stream order of buffers on a GPU: a model knows the bytes of each program, and work is in flight."""

import os

import harness
import oracle
import pytest

import millpond
from millpond import DeviceBuffer, Stream, _native, mr

harness.needs()

STACKS = ["cuda+pool", "cuda+pool:pages=off", "cuda_async", "cuda+pool+statistics", "cuda+binning"]
MIB = 1 << 20
#: The number of calls of a run, over all programs.
CALLS = int(os.environ.get("MILLPOND_ORDER_CALLS", "20000"))


class OnGpu(oracle.Program):
    """The random programs of the package's tests, on streams that are far behind the host."""

    LARGEST = 1 << 20

    def open(self, seed):
        return millpond.Device()

    def build(self, stack):
        resource = millpond.stack(stack, self.device)
        self.busy = DeviceBuffer(size=128 * MIB, stream=Stream(device=self.device), mr=resource)
        return resource

    def violations(self):
        return ""

    def do_busy(self):
        """Work of about a millisecond that uses no buffer of the model."""
        stream = self.stream()
        for value in range(20):
            self.library.fill(self.busy.ptr, value, self.busy.size, stream.ptr)

    do_busy_again = do_busy_more = do_busy


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_keep_the_order(seed):
    OnGpu(seed, STACKS[seed % len(STACKS)]).run(CALLS // 10)


def finds_other_bytes(seed):
    try:
        OnGpu(seed).run(1000)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("mistake", [oracle.BEFORE, oracle.AFTER])
def test_the_programs_find_a_mistake(mistake):
    _native._oracle_mistakes(mistake)
    try:
        assert any(finds_other_bytes(seed) for seed in range(20)), "nothing was found"
    finally:
        _native._oracle_mistakes(0)


def busy(stream, resource):
    """Keep a stream behind the host for tens of milliseconds."""
    block = DeviceBuffer(size=256 * MIB, stream=stream, mr=resource)
    for value in range(250):
        block.fill(value)
    return block


@pytest.mark.parametrize("stack", STACKS)
def test_the_source_of_a_copy_may_go_at_once(stack):
    resource = millpond.stack(stack)
    one, two = Stream(), Stream()
    source = DeviceBuffer(size=8 * MIB, stream=one, mr=resource)
    source.fill(1)
    target = DeviceBuffer(size=8 * MIB, stream=two, mr=resource)
    kept = busy(two, resource)
    target.copy_from_device(source)
    del source
    after = DeviceBuffer(size=8 * MIB, stream=one, mr=resource)
    after.fill(9)
    assert set(target.tobytes()) == {1} and set(after.tobytes()) == {9} and kept.size


@pytest.mark.parametrize("stack", STACKS)
def test_a_fill_on_another_stream_is_before_the_free(stack):
    resource = millpond.stack(stack)
    one, two = Stream(), Stream()
    kept = busy(two, resource)
    block = DeviceBuffer(size=8 * MIB, stream=one, mr=resource)
    block.fill(5, stream=two)
    del block
    after = DeviceBuffer(size=8 * MIB, stream=one, mr=resource)
    after.fill(9)
    one.synchronize()
    two.synchronize()
    assert set(after.tobytes()) == {9} and kept.size


@pytest.mark.parametrize("stack", STACKS)
def test_the_work_of_a_consumer_is_before_the_free(stack):
    resource = millpond.stack(stack)
    one, two = Stream(), Stream()
    block = DeviceBuffer(size=8 * MIB, stream=one, mr=resource)
    block.fill(1)
    consumer = millpond.from_dlpack(block, stream=two)
    kept = busy(two, resource)
    consumer.fill(5)
    del block, consumer
    after = DeviceBuffer(size=8 * MIB, stream=one, mr=resource)
    after.fill(9)
    one.synchronize()
    two.synchronize()
    assert set(after.tobytes()) == {9} and kept.size


@pytest.mark.parametrize("does", ["allocates", "trims", "frees"])
def test_a_callback_below_a_pool_may_use_the_pool(does):
    """The callback's blocks keep their contents while they have an owner."""
    held, kept, calls = [], [], []

    def spill(nbytes):
        calls.append(nbytes)
        if does == "allocates":
            kept.append(DeviceBuffer(size=MIB, mr=pool))
            kept[-1].fill(77)
        elif does == "frees" and held:
            kept.append(held.pop().tobytes()[:1])
            # The pool has the block now. The limit below counts it until it is freed.
            pool.trim(0)
            return True
        else:
            pool.trim(0)
        return False

    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 64 * MIB)
    pool = mr.PoolMemoryResource(mr.FailureCallbackResourceAdaptor(limited, spill), initial_pool_size=0)
    for value in (3, 4):
        held.append(DeviceBuffer(size=20 * MIB, mr=pool))
        held[-1].fill(value)
    if does == "frees":
        block = DeviceBuffer(size=30 * MIB, mr=pool)
        block.fill(5)
        assert set(block.tobytes()) == {5} and kept == [b"\4"]
    else:
        with pytest.raises(MemoryError):
            DeviceBuffer(size=40 * MIB, mr=pool)
        assert [set(block.tobytes()) for block in held] == [{3}, {4}]
        assert all(set(block.tobytes()) == {77} for block in kept)
    assert calls
