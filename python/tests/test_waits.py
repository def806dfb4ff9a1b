"""Waits, and the things that they must not block: the GIL, Ctrl-C, the collector, forked children."""

import ctypes
import gc
import os
import signal
import time
import weakref

import pytest
from test_processes import script

import millpond
from millpond import DeviceBuffer, mr

DROP = """
import faulthandler, sys, threading, time
faulthandler.dump_traceback_later(60, exit=True)
import millpond
from millpond import mr
base = mr.CudaMemoryResource()
is_slow, is_inside = threading.Event(), threading.Event()
def allocate(nbytes, stream):
    if is_slow.is_set():
        is_inside.set()
        time.sleep(0.3)  # another thread runs Python meanwhile, while this one holds the adaptor's lock
    return base.allocate(nbytes, stream)
own = mr.CallbackMemoryResource(allocate, base.deallocate)
top = mr.ThreadSafeResourceAdaptor(own)
buffer = millpond.DeviceBuffer(size=1000, mr=top)
{make}
del buffer
is_slow.set()
thread = threading.Thread(target=lambda: top.allocate(2000))
thread.start()
is_inside.wait()
{drop}
thread.join()
print("end")
"""


@pytest.mark.parametrize(
    ("make", "drop"),
    [
        ("thing = buffer", "del thing"),
        ("thing = buffer[10:20]", "del thing"),
        ("thing = buffer.__dlpack__()", "del thing"),
        ("thing = buffer.__dlpack__(max_version=(1, 0))", "del thing"),
        ("thing = millpond.from_dlpack(buffer)", "del thing"),
        ("thing = memoryview(buffer); buffer.resize(100000)", "del thing"),
        ("thing = memoryview(buffer); buffer.resize(100000)", "thing.release()"),
        ("thing = buffer; buffer = None", "thing.resize(100000)"),
        ("thing = mr.PoolMemoryResource(top, 1 << 20)", "del thing"),
        ("thing = mr.PoolMemoryResource(top, 1 << 20)", "thing.trim()"),
        ("import oracle; thing = oracle.Taken(buffer.__dlpack__(), True)", "thing.end()"),
        ("import oracle; thing = oracle.Taken(buffer.__dlpack__(), False)", "thing.end()"),
        ("thing = buffer", "top.is_equal(mr.ThreadSafeResourceAdaptor(own)); del thing"),
        ("thing = buffer", "repr(top), top.text, top.device, thing.__dlpack_device__()"),
    ],
)
def test_nothing_waits_with_pythons_lock(make, drop):
    program = DROP.format(make=make, drop=drop)
    path = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
    assert script(program, PYTHONPATH=path) == "end"


# --- Signals ---


class Raised(Exception):
    pass


@pytest.fixture
def alarm():
    """Raise an exception from a signal handler after a short time."""

    def raise_it(kind, seconds=0.05):
        def handler(*_):
            raise kind

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.getsignal(signal.SIGALRM)
    yield raise_it
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def waiting(**options):
    """A resource with 1024 bytes, 1000 of them in use, that waits up to 60 s for a free."""
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 1024)
    resource = mr.RetryResourceAdaptor(limited, timeout=60.0)
    return resource, DeviceBuffer(size=1000, mr=resource)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError, Raised, SystemExit, MemoryError])
@pytest.mark.parametrize(
    "call",
    [
        lambda resource: DeviceBuffer(size=1000, mr=resource),
        lambda resource: resource.allocate(1000),
        lambda resource: DeviceBuffer(size=10, mr=resource).resize(1000),
        lambda resource: millpond.to_device(bytes(1000), mr=resource),
        lambda resource: DeviceBuffer(size=1000, mr=mr.ThreadSafeResourceAdaptor(resource)),
        lambda resource: DeviceBuffer(
            size=1000, mr=mr.FailureCallbackResourceAdaptor(resource, lambda nbytes: True)
        ),
    ],
)
def test_a_signal_ends_a_wait(alarm, kind, call):
    resource, kept = waiting()
    begin = time.monotonic()
    alarm(kind)
    with pytest.raises(kind) as raised:
        call(resource)
    assert type(raised.value) is kind and time.monotonic() - begin < 50
    assert len(kept) == 1000
    del kept
    assert len(DeviceBuffer(size=1000, mr=resource)) == 1000


def served_the_second_time(raised):
    """A resource whose function raises in the first of two attempts at each request."""
    base, calls = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource()), []

    def allocate(nbytes, stream):
        calls.append(nbytes)
        if len(calls) % 2:
            raise raised
        return base.allocate(nbytes, stream)

    own = mr.CallbackMemoryResource(allocate, base.deallocate)
    return base, mr.FailureCallbackResourceAdaptor(own, lambda nbytes: True)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(
    "call",
    [
        lambda resource: DeviceBuffer(size=1000, mr=resource),
        lambda resource: resource.allocate(1000),
        lambda resource: millpond.to_device(b"a", mr=resource),
    ],
)
def test_ctrl_c_in_a_call_that_is_served_all_the_same_is_raised(kind, call):
    base, resource = served_the_second_time(kind)
    with pytest.raises(kind):
        call(resource)
    assert base.allocation_counts.total_count > 0 and base.allocation_counts.current_count == 0


def test_what_a_function_raised_in_a_call_that_succeeded_is_forgotten():
    _, resource = served_the_second_time(MemoryError("the first time"))
    assert len(DeviceBuffer(size=10, mr=resource)) == 10
    limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 1)
    for call in (lambda: limited.allocate(10), lambda: DeviceBuffer(size=10, mr=limited)):
        with pytest.raises(MemoryError) as error:
            call()
        assert error.value.__cause__ is None
    _, resource = served_the_second_time(ValueError("the first time"))
    buffer = DeviceBuffer(size=10, mr=resource)
    with pytest.raises(BufferError):
        millpond.from_dlpack(buffer).resize(100)
    with pytest.raises(MemoryError):
        DeviceBuffer(size=1, mr=limited).resize(100)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_a_signal_while_an_error_is_made_keeps_its_class(kind):
    """The signal arrives during the failing call. Python handles it while it makes the error."""

    def handler(*_):
        raise kind

    number = signal.SIGALRM
    before = signal.signal(number, handler)
    try:
        limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 1)
        # A function that runs no Python code. It gets the size, which is the number of the signal.
        arrive = ctypes.pythonapi.PyErr_SetInterruptEx
        resource = mr.FailureCallbackResourceAdaptor(limited, arrive)
        with pytest.raises(kind):
            DeviceBuffer(size=int(number), mr=resource)
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_in_a_function_of_the_program_is_no_error_of_it(kind):
    def allocate(nbytes, stream):
        raise kind

    resource = mr.CallbackMemoryResource(allocate, lambda *_: None)
    with pytest.raises(kind):
        DeviceBuffer(size=10, mr=resource)


def test_ctrl_c_in_a_function_that_takes_a_block_back_comes_again():
    """A free cannot fail, so the exception comes later."""
    text = (
        # A background job starts with the signal ignored.
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import millpond\n"
        "from millpond import mr\n"
        "base = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())\n"
        "def deallocate(*block):\n"
        "    base.deallocate(*block)\n"
        "    raise KeyboardInterrupt\n"
        "buffer = millpond.DeviceBuffer(size=9, mr=mr.CallbackMemoryResource(base.allocate, deallocate))\n"
        "try:\n"
        "    del buffer\n"
        "    for _ in range(1_000_000): pass\n"
        "except KeyboardInterrupt:\n"
        "    print(base.allocation_counts.current_count)\n"
    )
    assert script(text) == "0"


# --- The collector ---


class Big:
    pass


def cycles():
    base = mr.CudaMemoryResource()

    def callback(big):
        def allocate(nbytes, stream, big=big):
            return base.allocate(nbytes, stream)

        resource = mr.CallbackMemoryResource(allocate, lambda *block: base.deallocate(*block))
        allocate.resource = resource

    def handler(big):
        def handle(nbytes, big=big):
            return False

        handle.resource = mr.FailureCallbackResourceAdaptor(base, handle)

    def method(big):
        class Spill:
            def __init__(self):
                self.big, self.mr = big, mr.FailureCallbackResourceAdaptor(base, self.spill)

            def spill(self, nbytes):
                return False

        Spill()

    def pool(big):
        class Spill:
            def __init__(self):
                self.big = big
                self.mr = mr.PoolMemoryResource(mr.FailureCallbackResourceAdaptor(base, self.spill))
                DeviceBuffer(size=10, mr=self.mr)

            def spill(self, nbytes):
                return False

        Spill()

    def pool_of_functions(big):
        def allocate(nbytes, stream, big=big):
            return base.allocate(nbytes, stream)

        def deallocate(ptr, nbytes, stream, allocate=allocate):
            base.deallocate(ptr, nbytes, stream)

        pool = mr.PoolMemoryResource(mr.CallbackMemoryResource(allocate, deallocate))
        # More blocks than a thread caches for a pool.
        for _ in range(50):
            DeviceBuffer(size=10, mr=pool)
        deallocate.pool = allocate.pool = pool

    def buffers(big):
        class Spill:
            def __init__(self):
                self.big, self.mr = big, mr.FailureCallbackResourceAdaptor(base, self.spill)
                self.kept = [DeviceBuffer(size=10, mr=self.mr) for _ in range(3)]

            def spill(self, nbytes):
                return False

        Spill()

    def kept_buffers(big):
        kept = []

        def allocate(nbytes, stream, big=big):
            return base.allocate(nbytes, stream)

        def deallocate(ptr, nbytes, stream, kept=kept):
            base.deallocate(ptr, nbytes, stream)

        resource = mr.CallbackMemoryResource(allocate, deallocate)
        kept += [DeviceBuffer(size=10, mr=resource) for _ in range(3)]
        kept += [kept[0][2:4], kept[1].copy()]
        kept[2].resize(1000)

    def kept_buffers_of_a_pool(big):
        kept = []

        def allocate(nbytes, stream, big=big):
            return base.allocate(nbytes, stream)

        def deallocate(ptr, nbytes, stream, kept=kept):
            base.deallocate(ptr, nbytes, stream)

        own = mr.CallbackMemoryResource(allocate, deallocate)
        pool = mr.PoolMemoryResource(own, 1 << 20)
        kept += [DeviceBuffer(size=10, mr=resource) for resource in (own, pool, pool)]
        kept.append(bytes(memoryview(kept[1])))

    def buffer(big):
        class Own(DeviceBuffer):
            pass

        own = Own(size=10)
        own.me, own.big = own, big

    def attribute(big):
        resource = mr.CudaMemoryResource()
        resource.me, resource.big = resource, big

    def buffer_and_resource(big):
        resource = mr.CudaMemoryResource()
        resource.buffer, resource.big = DeviceBuffer(size=10, mr=resource), big

    return [value for name, value in sorted(locals().items()) if callable(value) and name != "base"]


@pytest.mark.parametrize("make", cycles(), ids=lambda make: make.__name__)
def test_cycles_are_collected(make):
    big = Big()
    is_there = weakref.ref(big)
    make(big)
    del big
    gc.collect()
    assert is_there() is None


@pytest.mark.parametrize("has_pool", [False, True])
def test_blocks_of_a_cycle_go_back_by_the_functions_of_the_program(has_pool, capfd):
    """All blocks are freed while the functions still work, even blocks of a pool on top."""
    counted = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    kept, freed = [], []

    class Memory:
        def allocate(self, nbytes, stream):
            return counted.allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            freed.append(nbytes)
            self.kept and counted.deallocate(ptr, nbytes, stream)

    memory = Memory()
    memory.kept = kept
    resource = mr.CallbackMemoryResource(memory.allocate, memory.deallocate)
    if has_pool:
        resource = mr.PoolMemoryResource(resource, 1 << 20)
    kept += [DeviceBuffer(size=size, mr=resource) for size in (100, 200)]
    is_there = weakref.ref(memory)
    del memory, resource, kept
    gc.collect()
    assert is_there() is None and counted.allocation_counts.current_count == 0
    assert sorted(freed) == ([1 << 20] if has_pool else [100, 200])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("has_functions", [False, True])
def test_resources_that_the_functions_of_a_cycle_use_are_whole_until_its_end(has_functions):
    """The collector may finalise the lower resource before the resource whose functions use it."""
    device = millpond.Device("sim:1GiB")
    free = device.memory_info()[0]

    def make(order):
        kept, made = [], {}
        base = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource(device=device))

        def allocate(nbytes, stream, made=made):
            return made["base"].allocate(nbytes, stream)

        def deallocate(ptr, nbytes, stream, made=made, kept=kept):
            made["base"].deallocate(ptr, nbytes, stream)

        def give_back(ptr, nbytes, stream, kept=kept):
            base.deallocate(ptr, nbytes, stream)

        for name in order:
            if name == "own":
                made["own"] = mr.CallbackMemoryResource(allocate, deallocate, device=device)
            elif has_functions:
                made["base"] = mr.CallbackMemoryResource(base.allocate, give_back, device=device)
            else:
                made["base"] = base
        pool = mr.PoolMemoryResource(made["own"], 1 << 20)
        kept += [DeviceBuffer(size=10, mr=resource) for resource in (made["own"], pool)]
        return kept[0].__dlpack__()

    for order in (("base", "own"), ("own", "base")):
        export = make(order)
        gc.collect()
        assert device.memory_info()[0] < free, "the export keeps the cycle"
        del export
        gc.collect()
        assert device.memory_info()[0] == free, order


def test_a_buffer_that_a_finaliser_rescues_is_empty():
    base, rescued = mr.CudaMemoryResource(), []

    class Rescuer:
        def __del__(self):
            rescued.append(self.buffer)

    def cycle():
        keeper = Rescuer()

        def allocate(nbytes, stream, keeper=keeper):
            return base.allocate(nbytes, stream)

        resource = mr.CallbackMemoryResource(allocate, base.deallocate)
        keeper.buffer = DeviceBuffer(size=10, mr=resource)

    cycle()
    gc.collect()
    (buffer,) = rescued
    assert (buffer.size, buffer.ptr, buffer.capacity(), len(buffer)) == (0, 0, 0, 0)
    assert "collected" in repr(buffer)
    for use in (
        lambda: buffer.fill(1),
        lambda: buffer.tobytes(),
        lambda: buffer.copy(),
        lambda: buffer.resize(100),
        lambda: buffer.stream,
        lambda: buffer[:0],
        lambda: memoryview(buffer),
        lambda: buffer.__dlpack__(),
        lambda: buffer.__cuda_array_interface__,
        lambda: millpond.to_device(b"abc").copy_from_device(buffer),
    ):
        with pytest.raises(ValueError, match="collected this buffer"):
            use()


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_an_export_of_a_buffer_in_a_cycle_keeps_its_memory(version):
    """The collector sees the cycle, but not the capsule's use of the block."""
    counted, freed = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource()), []

    def make():
        kept = []

        def deallocate(ptr, nbytes, stream, kept=kept):
            freed.append(nbytes)
            counted.deallocate(ptr, nbytes, stream)

        kept.append(millpond.to_device(b"abc", mr=mr.CallbackMemoryResource(counted.allocate, deallocate)))
        return kept[0].__dlpack__(max_version=version), kept[0].__dlpack_device__()

    class Export:
        capsule, device = make()

        def __dlpack_device__(self):
            return self.device

        def __dlpack__(self, **_):
            return self.capsule

    gc.collect()
    assert millpond.from_dlpack(Export()).tobytes() == b"abc"
    gc.collect()
    assert freed == [3] and counted.allocation_counts.current_count == 0


@pytest.mark.parametrize("drops", range(9))
def test_an_export_of_a_block_that_the_thread_has_cached_keeps_its_memory(drops):
    """After some drops, the pool's blocks come from the thread's cache, and return to it."""
    counted, freed = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource()), []

    def make():
        kept = []

        def deallocate(ptr, nbytes, stream, kept=kept):
            freed.append(nbytes)
            counted.deallocate(ptr, nbytes, stream)

        pool = mr.PoolMemoryResource(mr.CallbackMemoryResource(counted.allocate, deallocate), 1 << 20)
        for _ in range(drops):
            DeviceBuffer(size=3, mr=pool)
        kept.append(DeviceBuffer(size=3, mr=pool))
        kept[0].copy_from_host(b"abc")
        return kept[0].__dlpack__(), kept[0].__dlpack_device__()

    class Export:
        capsule, device = make()

        def __dlpack_device__(self):
            return self.device

        def __dlpack__(self, **_):
            return self.capsule

    gc.collect()
    assert freed == []
    assert millpond.from_dlpack(Export()).tobytes() == b"abc"
    gc.collect()
    assert freed == [1 << 20] and counted.allocation_counts.current_count == 0


@pytest.mark.parametrize("has_super", [False, True])
def test_a_cycle_of_a_class_with_a_finaliser_of_its_own_is_collected(has_super):
    finalised, counted = [], mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())

    class Own(mr.CallbackMemoryResource):
        def __del__(self):
            finalised.append(1)
            if has_super:
                super().__del__()

    def make():
        kept = []

        def deallocate(ptr, nbytes, stream, kept=kept):
            counted.deallocate(ptr, nbytes, stream)

        kept += [DeviceBuffer(size=10, mr=Own(counted.allocate, deallocate)) for _ in range(20)]

    make()
    gc.collect()
    assert finalised == [1] * 20 and counted.allocation_counts.current_count == 0


@pytest.mark.parametrize("owner", ["default", "buffer", "export", "pool", "given", "slice", "object"])
def test_functions_that_are_in_use_are_not_collected(owner):
    """The resource's Python object is gone, but something else still uses the resource."""
    base = mr.CudaMemoryResource()

    def allocate(nbytes, stream):
        return base.allocate(nbytes, stream)

    def deallocate(ptr, nbytes, stream):
        base.deallocate(ptr, nbytes, stream)

    resource = mr.CallbackMemoryResource(allocate, deallocate)
    allocate.resource = deallocate.resource = resource
    counted = mr.StatisticsResourceAdaptor(resource)
    if owner == "default":
        mr.set_current_device_resource(counted)
        kept = None
    elif owner == "pool":
        kept = DeviceBuffer(size=100, mr=mr.PoolMemoryResource(counted))
    elif owner == "given":
        kept = DeviceBuffer(size=100, mr=resource)
    elif owner == "slice":
        kept = DeviceBuffer(size=100, mr=resource)[10:20]
    elif owner == "object":
        # The resource has two Python objects, and one of them ends in a cycle.
        kept = DeviceBuffer(size=100, mr=resource)
        other = mr._as_class(resource)
        other.me = other
        del other
    else:
        mr.set_current_device_resource(counted)
        kept = DeviceBuffer(size=100)
        mr.reset_per_device_resource(None)
        if owner == "export":
            kept = kept.__dlpack__()
    del allocate, deallocate, resource, counted
    for _ in range(3):
        gc.collect()
    if owner == "default":
        assert millpond.to_device(b"abc").tobytes() == b"abc"
    if isinstance(kept, DeviceBuffer):
        kept.fill(7)
        assert set(kept.tobytes()) == {7}
    del kept
    gc.collect()


# --- Forked children ---


@pytest.mark.parametrize("stack", ["cuda", "cuda+pool", "cuda+thread_safe+statistics", "cuda_async"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_a_forked_child_of_busy_threads_is_refused_and_ends(stack):
    assert (
        script(
            "import millpond, os, threading, warnings\n"
            "warnings.filterwarnings('ignore', '.*multi-threaded', DeprecationWarning)\n"
            f"resource = millpond.stack({stack!r})\n"
            "millpond.mr.set_current_device_resource(resource)\n"
            "is_over = False\n"
            "def work(number):\n"
            "    stream, kept = millpond.Stream(), []\n"
            "    while not is_over:\n"
            "        size = 1000 + 4096 * number + 777 * len(kept)\n"
            "        kept.append(millpond.DeviceBuffer(size=size, stream=stream))\n"
            "        if len(kept) > 30: kept.clear()\n"
            "threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]\n"
            "for thread in threads: thread.start()\n"
            "def refused(call):\n"
            "    try: call()\n"
            "    except millpond.MillpondError as error: assert 'forked' in str(error), error\n"
            "    else: raise AssertionError('the child got memory')\n"
            "import signal\n"
            "def child():\n"
            "    signal.alarm(60)\n"
            "    refused(lambda: millpond.DeviceBuffer(size=500_000))\n"
            "    refused(lambda: millpond.DeviceBuffer(size=1000, mr=resource))\n"
            "    refused(lambda: resource.allocate(10))\n"
            "    refused(millpond.Stream)\n"
            "ended = []\n"
            "for _ in range(20):\n"
            "    pid = os.fork()\n"
            "    if pid == 0:\n"
            "        try: child()\n"
            "        except BaseException as error:\n"
            "            os.write(1, repr(error).encode())\n"
            "            os._exit(3)\n"
            "        os._exit(0)\n"
            "    ended.append(os.waitpid(pid, 0)[1])\n"
            "is_over = True\n"
            "for thread in threads: thread.join()\n"
            "print(*set(ended))"
        )
        == "0"
    )
