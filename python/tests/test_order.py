"""The stream order of buffers: random programs under the checks of the simulated device."""

import ctypes
import functools
import gc
import os
import random
import threading
import types

import numpy as np
import oracle
import pytest

import millpond
from millpond import DeviceBuffer, Stream, _native, mr

#: The number of calls of a run, over all programs.
CALLS = int(os.environ.get("MILLPOND_ORDER_CALLS", "20000"))
PROGRAMS = 50
#: The calls of one program in the ordinary run. This many calls find each mistake.
SHORTEST = 400
STACKS = ["cuda+pool", "cuda+pool:pages=off", "cuda+binning", "cuda_async", "cuda+pool+statistics"]
FIRST_SEED = int(os.environ.get("MILLPOND_ORDER_SEED", "1"))


def program(seed, calls):
    try:
        found = oracle.Program(seed, STACKS[seed % len(STACKS)]).run(calls)
    except AssertionError as error:
        return f"MILLPOND_ORDER_SEED={seed}: {error}"
    return f"MILLPOND_ORDER_SEED={seed}: {found.splitlines()[0]}" if found else ""


@pytest.mark.parametrize("part", range(10))
def test_random_programs_keep_the_order(part):
    for seed in range(FIRST_SEED + part, FIRST_SEED + PROGRAMS, 10):
        assert not (wrong := program(seed, CALLS // PROGRAMS)), wrong


@pytest.mark.parametrize(
    "mistake",
    [oracle.BEFORE, oracle.AFTER, oracle.SOURCE, oracle.EXPORT, oracle.UNKNOWN, oracle.THREAD],
)
def test_the_checks_find_a_mistake(mistake):
    """For each mistake, the package leaves out one step of the stream order."""
    _native._oracle_mistakes(mistake)
    try:
        assert any(program(seed, SHORTEST) for seed in range(1, 40)), "nothing was found"
    finally:
        _native._oracle_mistakes(0)


def watched(stack="cuda+pool", seed=1):
    device = _native._oracle_device(64 << 20, seed)
    return device, oracle.Watched(millpond.stack(stack, device))


@pytest.mark.parametrize(
    "mistake", [oracle.AFTER, oracle.SOURCE, oracle.EXPORT, oracle.UNKNOWN, oracle.THREAD]
)
def test_the_device_itself_finds_a_block_that_goes_back_too_early(mistake):
    """The device notices the order in which the next owner gets the block, not wrong bytes."""
    _native._oracle_mistakes(mistake)
    try:
        for seed in range(1, 40):
            wrong = oracle.Program(seed)
            wrong.compares = False
            if "StreamOrder" in wrong.run(SHORTEST):
                return
        raise AssertionError("nothing was found")
    finally:
        _native._oracle_mistakes(0)


@pytest.mark.parametrize("seed", range(4))
def test_threads_that_change_one_buffer_keep_size_and_block_together(seed):
    device, resource = watched(seed=seed)
    shared = DeviceBuffer(size=100, stream=Stream(device=device), mr=resource)
    shared.fill(7)
    failures = []

    def work(number):
        choose, stream = random.Random(100 * seed + number), Stream(device=device)
        try:
            for _ in range(400):
                what = choose.randrange(7)
                if what == 0:
                    shared.resize(choose.randrange(100, 5000), stream)
                elif what == 1:
                    shared.shrink_to_fit(stream)
                elif what == 2:
                    shared.reserve(choose.randrange(100, 5000), stream)
                elif what == 3:
                    assert millpond.from_dlpack(shared, stream).tobytes()[:100] == b"\7" * 100
                elif what == 4:
                    assert shared[:100].copy().tobytes() == b"\7" * 100
                elif what == 5:
                    assert bytes(memoryview(shared))[:100] == b"\7" * 100
                else:
                    assert shared.tobytes(stream)[:100] == b"\7" * 100
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert 100 <= shared.size <= shared.capacity()
    shared = None
    gc.collect()
    assert _native._oracle_violations(device) == ""


@pytest.mark.parametrize("seed", range(4))
def test_threads_with_buffers_of_their_own_share_a_pool(seed):
    device, resource = watched(seed=seed)
    streams = [Stream(device=device, flags=number % 2) for number in range(4)]
    streams.append(millpond.PER_THREAD_DEFAULT_STREAM)
    failures, passed_on = [], []

    def work(number):
        choose, kept = random.Random(100 * seed + number), []
        try:
            for _ in range(500):
                value = choose.randrange(256)
                size, stream = choose.randint(1, 5000), choose.choice(streams)
                buffer = DeviceBuffer(size=size, stream=stream, mr=resource)
                buffer.fill(value, choose.choice(streams))
                kept.append((buffer, value))
                if len(kept) > 5:
                    buffer, value = kept.pop(choose.randrange(len(kept)))
                    passed_on.append(millpond.from_dlpack(buffer, choose.choice(streams)))
                    assert set(buffer.tobytes(choose.choice(streams))) == {value}
                    copy = DeviceBuffer(size=buffer.size, stream=choose.choice(streams), mr=resource)
                    copy.copy_from_device(buffer)
                    del buffer
                    assert set(copy.tobytes()) == {value}
                while len(passed_on) > 10:
                    # The buffer may end on a different thread than the one that made it.
                    passed_on.pop()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    passed_on.clear()
    gc.collect()
    assert _native._oracle_violations(device) == ""


def test_the_source_of_a_copy_from_another_library_may_end_at_once():
    """A source that names its stream ends in that stream's order. If it names none, the call waits."""
    for named in (True, False):
        for seed in range(1, 6):
            device, resource = watched(seed=seed)
            one, two = Stream(device=device), Stream(device=device)
            busy = DeviceBuffer(size=1 << 20, stream=two, mr=resource)
            source = DeviceBuffer(size=5000, stream=one, mr=resource)
            source.fill(1)
            target = DeviceBuffer(size=5000, stream=two, mr=resource)
            for value in range(20):
                busy.fill(value)
            # Only an address: a buffer's own interface would keep its block from ending early.
            interface = {
                "shape": (5000,),
                "typestr": "|u1",
                "data": (source.ptr, False),
                "version": 3,
                "stream": one.ptr if named else None,
            }
            if not named:
                one.synchronize()
            target.copy_from_device(oracle.Interface(interface))
            address = source.ptr
            del source
            after = DeviceBuffer(size=5000, stream=one, mr=resource)
            after.fill(9)
            assert after.ptr == address, "the test needs the same block"
            assert np.all(target.copy_to_host() == 1)
            assert _native._oracle_violations(device) == ""


def test_work_of_a_buffer_on_another_thread_follows_the_threads_own_stream():
    for seed in range(1, 10):
        device, resource = watched(seed=seed)
        mine = DeviceBuffer(size=5000, stream=millpond.PER_THREAD_DEFAULT_STREAM, mr=resource)
        for value in range(20):
            mine.fill(value)
        worker = oracle.Worker()
        assert set(worker(mine.tobytes)) == {19}
        worker(functools.partial(mine.fill, 20))
        assert set(mine.tobytes()) == {20}
        worker(functools.partial(mine.fill, 21))
        held = [mine]
        del mine
        worker(held.clear)
        other = DeviceBuffer(size=5000, stream=millpond.PER_THREAD_DEFAULT_STREAM, mr=resource)
        other.fill(3)
        assert set(other.tobytes()) == {3}
        worker.todo.put(None)
        assert _native._oracle_violations(device) == ""


@pytest.mark.parametrize("export", ["interface", "capsule"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_work_on_a_stream_that_nobody_named_is_waited_for(export, seed):
    """The stack is only a pool, so the thread's cache may take its blocks while the GIL is held."""
    device = _native._oracle_device(64 << 20, seed)
    resource, library = millpond.stack("cuda+pool", device), oracle.Library(device)
    stream = Stream(device=device, flags=1)
    for _ in range(20):
        DeviceBuffer(size=5000, mr=resource)
    buffer = DeviceBuffer(size=5000, mr=resource)
    buffer.fill(0)
    library.wait(stream.ptr, 1)
    if export == "capsule":
        taken = oracle.Taken(buffer.__dlpack__(stream=-1), with_gil=True)
    else:
        assert buffer.__cuda_array_interface__["stream"] == 1
    for value in range(30):
        library.fill(buffer.ptr, value, 5000, stream.ptr)
    if export == "capsule":
        taken.end()
        assert set(buffer.tobytes()) == {29}
    address = buffer.ptr
    del buffer
    again = DeviceBuffer(size=5000, mr=resource)
    again.fill(99)
    assert again.ptr == address, "the test needs the same block"
    stream.synchronize()
    assert set(again.tobytes()) == {99}


def test_a_change_of_size_while_another_one_allocates_is_kept():
    base, changes = mr.CudaMemoryResource(), []

    def allocate(nbytes, stream):
        # Does what another thread could do between the read of the buffer and the change of its block.
        if changes:
            changes.pop()()
        return base.allocate(nbytes, stream)

    shared = DeviceBuffer(size=100, mr=mr.CallbackMemoryResource(allocate, base.deallocate))
    shared.fill(7)
    changes.append(lambda: shared.resize(50))
    shared.reserve(5000)
    assert (shared.size, shared.capacity()) == (50, 5000) and set(shared.tobytes()) == {7}
    changes.append(lambda: shared.reserve(9000))
    shared.shrink_to_fit()
    assert (shared.size, shared.capacity()) == (50, 50)
    changes.append(lambda: shared.resize(300))
    shared.resize(200)
    assert shared.size == 200 and shared.capacity() == 300 and set(shared[:50].tobytes()) == {7}


# --- Cases that random programs do not reach ---


class Foreign:
    """A tensor over a buffer's memory, made by no module here. It records whether work ran at its end."""

    def __init__(self, buffer, stream):
        self.buffer, self.stream, self.was_done = buffer, stream, []
        self.capsule = buffer.__dlpack__(stream=-1)
        words = (ctypes.c_uint64 * 8).from_address(oracle._pointer_of(self.capsule, b"dltensor"))
        self.end = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(words[7])
        self.own_end = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._end)
        words[7] = ctypes.cast(self.own_end, ctypes.c_void_p).value

    def _end(self, tensor):
        self.was_done.append(self.stream.query())
        self.end(tensor)

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, **asked):
        self.asked = asked
        return self.capsule


@pytest.mark.parametrize("seed", range(1, 6))
def test_memory_of_another_library_ends_after_the_work_here(seed):
    device, resource = watched(seed=seed)
    stream = Stream(device=device, flags=1)
    foreign = Foreign(DeviceBuffer(size=5000, mr=resource), stream)
    imported = millpond.from_dlpack(foreign, stream)
    assert foreign.asked["stream"] == stream.ptr
    for value in range(30):
        imported.fill(value)
    del imported
    assert foreign.was_done == [True]


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_consumer_on_a_threads_own_stream_is_followed_on_another_thread(seed):
    device, resource = watched(seed=seed)
    library, worker = oracle.Library(device), oracle.Worker()
    buffer = DeviceBuffer(size=5000, stream=Stream(device=device, flags=1), mr=resource)
    taken = worker(lambda: oracle.Taken(buffer.__dlpack__(stream=2), with_gil=True))
    worker(lambda: [library.fill(taken.ptr, value, 5000, 2) for value in range(30)])
    taken.end()
    assert set(buffer.tobytes()) == {29}
    worker.todo.put(None)
    assert _native._oracle_violations(device) == ""


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_prefetch_on_another_stream_comes_before_the_free(seed):
    device, resource = watched("managed+pool", seed=seed)
    one, two = Stream(device=device, flags=1), Stream(device=device, flags=1)
    for _ in range(20):
        buffer = DeviceBuffer(size=5000, stream=one, mr=resource)
        buffer.fill(1)
        buffer.prefetch(stream=two)
        address = buffer.ptr
        del buffer
        after = DeviceBuffer(size=5000, stream=one, mr=resource)
        after.fill(9)
        assert after.ptr == address, "the test needs the same block"
        del after
    assert _native._oracle_violations(device) == ""


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_copy_to_another_device_follows_the_work_on_its_source(seed):
    device, resource = watched(seed=seed)
    source = DeviceBuffer(size=5000, stream=Stream(device=device, flags=1), mr=resource)
    for value in range(30):
        source.fill(value)
    target = DeviceBuffer(size=5000, mr=mr.CudaMemoryResource(device=millpond.Device("sim:1GiB")))
    target.copy_from_device(source)
    assert set(target.tobytes()) == {29}
    assert _native._oracle_violations(device) == ""


@pytest.mark.parametrize("seed", range(1, 6))
def test_work_beside_a_capture_of_the_blocks_stream_comes_before_the_free(seed):
    """The stream cannot wait for work outside its capture."""
    device, resource = watched(seed=seed)
    own, other = Stream(device=device, flags=1), Stream(device=device, flags=1)
    buffer = DeviceBuffer(size=5000, stream=own, mr=resource)
    _native._oracle_capture(device, own, True)
    for value in range(30):
        buffer.fill(value, other)
    _native._oracle_capture(device, own, False)
    del buffer
    DeviceBuffer(size=5000, stream=own, mr=resource).fill(99)
    assert _native._oracle_violations(device) == ""


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_copy_beside_a_capture_of_its_sources_stream_is_done_when_the_call_returns(seed):
    device, resource = watched(seed=seed)
    own, other = Stream(device=device, flags=1), Stream(device=device, flags=1)
    source = DeviceBuffer(size=5000, stream=own, mr=resource)
    source.fill(7)
    own.synchronize()
    given = types.SimpleNamespace(
        __cuda_array_interface__={**source.__cuda_array_interface__, "stream": own.ptr}
    )
    target = DeviceBuffer(size=5000, stream=other, mr=resource)
    _native._oracle_capture(device, own, True)
    target.copy_from_device(given, other)
    assert other.query()
    _native._oracle_capture(device, own, False)
    assert set(target.tobytes()) == {7}


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_consumer_that_took_an_export_in_a_capture_may_go_on_after_it(seed):
    """Once, the consumer waited for the block's stream only inside the graph."""
    device, resource = watched(seed=seed)
    library = oracle.Library(device)
    own, other = Stream(device=device, flags=1), Stream(device=device, flags=1)
    earlier = DeviceBuffer(size=5000, stream=own, mr=resource)
    for value in range(30):
        earlier.fill(value)
    del earlier
    buffer = DeviceBuffer(size=5000, stream=own, mr=resource)
    _native._oracle_capture(device, own, True)
    library.wait(other.ptr, own.ptr)
    taken = oracle.Taken(buffer.__dlpack__(stream=other.ptr), with_gil=True)
    library.wait(own.ptr, other.ptr)
    _native._oracle_capture(device, own, False)
    library.fill(taken.ptr, 1, 5000, other.ptr)
    taken.end()
    assert _native._oracle_violations(device) == ""


@pytest.mark.parametrize("seed", range(1, 6))
def test_an_export_between_two_threads_streams_ends_in_order_on_a_third_thread(seed):
    """Once, the legacy default stream stood for both, and neither waited for the other."""
    device, resource = watched(seed=seed)
    library, one, two = oracle.Library(device), oracle.Worker(), oracle.Worker()
    own = millpond.PER_THREAD_DEFAULT_STREAM
    buffers = [one(lambda: DeviceBuffer(size=5000, stream=own, mr=resource))]
    taken = two(lambda: oracle.Taken(buffers[0].__dlpack__(stream=2), with_gil=True))
    two(lambda: [library.fill(taken.ptr, value, 5000, 2) for value in range(30)])
    taken.end()
    one(buffers.clear)
    one(lambda: DeviceBuffer(size=5000, stream=own, mr=resource).fill(99))
    for worker in (one, two):
        worker.todo.put(None)
    assert _native._oracle_violations(device) == ""


@pytest.mark.parametrize("seed", range(1, 6))
def test_memory_of_another_library_ends_after_the_work_here_beside_a_capture(seed):
    """Once, the wait ended the capture, and the memory went back before the work was done."""
    device, resource = watched(seed=seed)
    library = oracle.Library(device)
    stream, witness = Stream(device=device, flags=1), Stream(device=device, flags=1)
    foreign = Foreign(DeviceBuffer(size=5000, mr=resource), witness)
    imported = millpond.from_dlpack(foreign, stream)
    for value in range(30):
        imported.fill(value)
    library.wait(witness.ptr, stream.ptr)
    _native._oracle_capture(device, stream, True)
    del imported
    _native._oracle_capture(device, stream, False)
    assert foreign.was_done == [True]
    assert _native._oracle_violations(device) == ""


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_end_of_an_export_leaves_a_capture_of_the_blocks_stream_alone(seed):
    device, resource = watched(seed=seed)
    own, other = Stream(device=device, flags=1), Stream(device=device, flags=1)
    buffer = DeviceBuffer(size=5000, stream=own, mr=resource)
    taken = oracle.Taken(buffer.__dlpack__(stream=other.ptr), with_gil=True)
    _native._oracle_capture(device, own, True)
    taken.end()
    _native._oracle_capture(device, own, False)


@pytest.mark.parametrize("seed", range(1, 6))
def test_copies_of_pinned_memory_of_the_host_are_done_when_the_call_returns(seed):
    """The driver returns early for pinned memory, unlike for other host memory."""
    device, resource = watched(seed=seed)
    stream = Stream(device=device, flags=1)
    pinned = DeviceBuffer(size=5000, mr=mr.PinnedHostMemoryResource(device=device))
    host = (ctypes.c_uint8 * 5000).from_address(pinned.ptr)
    buffer = DeviceBuffer(size=5000, stream=stream, mr=resource)
    for value in range(1, 20):
        ctypes.memset(host, value, 5000)
        buffer.copy_from_host(host)
        ctypes.memset(host, 0, 5000)
        assert set(buffer.tobytes()) == {value}
        buffer.fill(100 + value)
        buffer.copy_to_host(host)
        assert set(bytes(host)) == {100 + value}


@pytest.mark.parametrize("source", ["address", "buffer", "interface"])
@pytest.mark.parametrize("stream", [0, 1, 2, None])
def test_a_copy_of_other_memory_is_waited_for_on_a_default_stream_alone(source, stream):
    """As in RMM. The source changes after the call. None stands for a stream of the program."""
    seen = set()
    for seed in range(1, 6):
        device, resource = watched(seed=seed)
        pinned = DeviceBuffer(size=5000, mr=mr.PinnedHostMemoryResource(device=device))
        ctypes.memset(pinned.ptr, 7, 5000)
        on = Stream(device=device) if stream is None else Stream(stream)
        address = pinned.ptr if source == "address" else 0
        copy = DeviceBuffer(ptr=address, size=5000, stream=on, mr=resource)
        if source == "buffer":
            copy.copy_from_device(pinned)
        elif source == "interface":
            interface = {**pinned.__cuda_array_interface__, "stream": on.ptr or 1}
            copy.copy_from_device(oracle.Interface(interface))
        ctypes.memset(pinned.ptr, 9, 5000)
        seen.update(copy.tobytes())
    assert seen == {7} if stream is not None else 9 in seen


@pytest.mark.parametrize(("stack", "moves"), [("managed", True), ("cuda", False)])
def test_a_prefetch_is_work_for_its_stream_if_the_memory_can_move(stack, moves):
    is_busy = set()
    for seed in range(1, 6):
        device, resource = watched(stack, seed)
        own, other = Stream(device=device, flags=1), Stream(device=device, flags=1)
        buffer = DeviceBuffer(size=5000, stream=own, mr=resource)
        for value in range(30):
            buffer.fill(value)
        buffer.prefetch(stream=other)
        is_busy.add(not other.query())
    assert (True in is_busy) is moves


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_the_blocks_alone_that_its_parent_has_kept():
    device, resource = watched()
    stream, ended = Stream(device=device), []

    class Noting(Foreign):
        def _end(self, tensor):
            ended.append(os.getpid())
            self.end(tensor)

    foreign = Noting(DeviceBuffer(size=5000, mr=resource), stream)
    imported = millpond.from_dlpack(foreign, stream)
    assert imported.__cuda_array_interface__["data"][0] == imported.ptr
    _native._oracle_mistakes(oracle.WAIT)
    try:
        del imported
        assert ended == [], "the block is kept"
        child = os.fork()
        if child == 0:
            code = 9
            try:
                with pytest.raises(millpond.UnsupportedError, match="forked"):
                    DeviceBuffer(size=5000, stream=stream, mr=resource)
                code = len(ended)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        _native._oracle_mistakes(0)
    DeviceBuffer(size=5000, stream=stream, mr=resource)
    assert ended == [os.getpid()]


def test_a_block_that_cannot_be_waited_for_is_kept_and_comes_back_later():
    """The device refuses a wait during a graph capture. Such blocks were once lost silently."""
    device = _native._oracle_device(64 << 20, 1)
    resource = mr.StatisticsResourceAdaptor(millpond.stack("cuda+pool", device))
    stream = Stream(device=device)
    buffer = DeviceBuffer(size=1 << 20, stream=stream, mr=resource)
    assert buffer.__cuda_array_interface__["data"][0] == buffer.ptr
    _native._oracle_mistakes(oracle.WAIT)
    try:
        del buffer
        gc.collect()
        other = DeviceBuffer(size=2 << 20, stream=stream, mr=resource)
        assert resource.allocation_counts.current_count == 2, "the first block may be in use"
    finally:
        _native._oracle_mistakes(0)
    del other
    again = DeviceBuffer(size=3 << 20, stream=stream, mr=resource)
    assert resource.allocation_counts.current_count == 1, "it came back"
    del again
