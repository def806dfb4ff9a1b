"""PyTorch's promises for a `MemPool` with a custom allocator, checked for millpond's allocator on a GPU."""

import gc

import harness
import pytest

if __name__ != "__main__":
    harness.needs("torch")

MIB = 1 << 20


def bytes_of(torch, pool):
    """Return the bytes of PyTorch's segments in a pool."""
    segments = torch.cuda.memory_snapshot()
    return sum(it["total_size"] for it in segments if tuple(it["segment_pool_id"]) == tuple(pool.id))


def routed():
    """Only the allocations inside the block come from the innermost pool."""
    import torch

    import millpond.torch as ours

    outer, inner = ours.mem_pool("cuda+pool"), ours.mem_pool()
    assert tuple(outer.id) != tuple(inner.id)
    kept = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")]
    assert harness.in_use() == bytes_of(torch, outer) == bytes_of(torch, inner) == 0
    with ours.use_mem_pool(outer):
        kept.append(torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"))
        with ours.use_mem_pool(inner):
            kept.append(torch.empty(50 * MIB, dtype=torch.uint8, device="cuda"))
        kept.append(torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"))
    assert bytes_of(torch, outer) >= 60 * MIB > bytes_of(torch, inner) >= 50 * MIB
    assert harness.in_use() == bytes_of(torch, outer) + bytes_of(torch, inner)
    held = harness.in_use()
    kept.append(torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"))
    assert harness.in_use() == held


def reused():
    """Freed memory is reused inside the pool, and not outside."""
    import torch

    import millpond.torch as ours

    pool = ours.mem_pool("cuda+pool")

    def address():
        return torch.empty(8 * MIB, dtype=torch.uint8, device="cuda").data_ptr()

    with ours.use_mem_pool(pool):
        first = address()
        assert address() == first
    assert address() != first
    with ours.use_mem_pool(pool):
        assert address() == first


def outlived():
    """Tensors outlive the pool. With the last tensor the memory is returned to millpond."""
    import torch

    import millpond.torch as ours

    pool = ours.mem_pool("cuda+pool")
    with ours.use_mem_pool(pool):
        tensor = torch.full((8 * MIB,), 3, dtype=torch.uint8, device="cuda")
    del pool
    gc.collect()
    other = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    assert bool((tensor == 3).all()) and harness.in_use() >= 8 * MIB
    del tensor, other
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert harness.in_use() == 0


def out_of_memory():
    """PyTorch raises its own error at millpond's limit. Afterwards there is memory again."""
    import torch

    import millpond.torch as ours

    pool = ours.mem_pool("cuda+pool+limiting:limit=96MiB")
    with ours.use_mem_pool(pool):
        first = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del first
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")


def threads():
    """Each thread uses the pool that it chose, and no thread changes another's tensors."""
    import threading

    import torch

    import millpond.torch as ours

    pools, wrong = [ours.mem_pool("cuda+pool"), ours.mem_pool(), None], []
    barrier = threading.Barrier(len(pools))

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for round_ in range(50):
                tensors = [torch.full((MIB << i % 4,), number, device="cuda") for i in range(8)]
                stream.synchronize()
                wrong.extend(round_ for tensor in tensors if not bool((tensor == number).all()))
        barrier.wait(60)

    def serve(number):
        pool = pools[number]
        if pool is None:
            return work(number)
        with ours.use_mem_pool(pool):
            return work(number)

    running = [threading.Thread(target=serve, args=(number,)) for number in range(len(pools))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong
    assert all(bytes_of(torch, pool) >= 32 * MIB for pool in pools[:2])
    assert harness.in_use() == sum(bytes_of(torch, pool) for pool in pools[:2])


@pytest.mark.parametrize("name", ["routed", "reused", "outlived", "out_of_memory", "threads"])
def test_program(name):
    harness.run(__file__, name)


if __name__ == "__main__":
    harness.main(globals())
