"""millpond.cupy with the real CuPy on a GPU."""

import harness
import pytest

if __name__ != "__main__":
    harness.needs("cupy")


def served():
    import cupy as cp

    import millpond
    import millpond.cupy

    millpond.cupy.use()
    pool = cp.get_default_memory_pool()
    array = cp.arange(100_000, dtype=cp.float32)
    assert pool.used_bytes() >= 400_000 and harness.in_use() == pool.used_bytes()
    assert float((array * 2)[-1]) == 199_998
    with cp.cuda.Stream(non_blocking=True) as stream:
        other = cp.ones(1000)
        assert float(other.sum()) == 1000
        del other
    stream.synchronize()
    with pytest.raises(cp.cuda.memory.OutOfMemoryError) as caught:
        cp.empty(1 << 47, cp.uint8)
    assert isinstance(caught.value.__cause__, millpond.OutOfMemoryError)
    pool.set_limit(size=pool.used_bytes() + 1000)
    with pytest.raises(cp.cuda.memory.OutOfMemoryError):
        cp.empty(1 << 20)
    pool.set_limit(size=0)
    del array
    assert pool.used_bytes() == 0
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    millpond.cupy.disable()
    kept = cp.ones(10)
    assert harness.in_use() == 0 and kept.size == 10 and cp.get_default_memory_pool().used_bytes() > 0


def record_stream():
    """The memory of an array that another stream reads is not overwritten. Without the call it is."""
    import cupy as cp

    import millpond.cupy

    millpond.cupy.use()
    busy = cp.RawKernel(
        'extern "C" __global__ void busy(long long n)'
        "{ long long start = clock64(); while (clock64() - start < n); }",
        "busy",
    )
    outcomes = {}
    for is_recorded in (True, False):
        main, side = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
        with main:
            target = cp.zeros(1 << 20, cp.uint8)
            source = cp.ones(1 << 20, cp.uint8)
        main.synchronize()
        with side:
            busy((1,), (1,), (200_000_000,))
            cp.cuda.runtime.memcpyAsync(target.data.ptr, source.data.ptr, 1 << 20, 3, side.ptr)
        if is_recorded:
            millpond.cupy.record_stream(source, side)
        address = source.data.ptr
        with main:
            del source
            later = cp.full(1 << 20, 2, cp.uint8)
        cp.cuda.Device().synchronize()
        outcomes[is_recorded] = (bool((target == 1).all()), later.data.ptr == address)
        del target, later
    assert outcomes[True] == (True, False), outcomes
    assert outcomes[False] == (False, True), f"the test cannot fail: {outcomes}"


def threads():
    """Threads on separate streams, and on the default stream, find their arrays unchanged."""
    import contextlib
    import threading

    import cupy as cp

    import millpond.cupy

    millpond.cupy.use("cuda+pool")
    wrong, rounds = [], [0] * 8

    def work(number):
        for round_ in range(200):
            own = cp.cuda.Stream(non_blocking=True) if number % 2 else contextlib.nullcontext()
            with own:
                arrays = [cp.full(1 << 10 << i % 8, number, cp.int32) for i in range(12)]
                cp.cuda.get_current_stream().synchronize()
                wrong.extend((number, round_) for array in arrays if not bool((array == number).all()))
            rounds[number] += 1
            # The arrays of a stream that ends now are freed in its order.

    running = [threading.Thread(target=work, args=(number,)) for number in range(len(rounds))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong and rounds == [200] * 8
    assert millpond.cupy._state["functions"] is not None, "CuPy 14 allocates through C"
    assert harness.in_use() == 0


@pytest.mark.parametrize("name", ["served", "record_stream", "threads"])
def test_program(name):
    harness.run(__file__, name)


if __name__ == "__main__":
    harness.main(globals())
