"""Wrong arguments, objects and moments. Each raises an error that names a remedy; nothing crashes, hangs or
gets lost."""

import copy
import ctypes
import os
import pickle

import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_processes import script

import millpond
from millpond import DeviceBuffer, mr, to_device

TESTS = os.path.dirname(__file__)


def program(text, **environment):
    """Run a program that may import this folder's files, under a watchdog. Return its output."""
    head = "import faulthandler; faulthandler.dump_traceback_later(60, exit=True)\n"
    path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    return script(head + text, PYTHONPATH=path, **environment)


# --- Blocks ---


@pytest.mark.parametrize("stack", ["cuda+pool", "cuda+pool+statistics", "cuda+pool+thread_safe+tracking"])
def test_a_block_that_a_resource_refuses_is_an_error_that_says_why(stack, capfd):
    resource, other = millpond.stack(stack), millpond.stack("cuda")
    ptr, foreign = resource.allocate(1000), other.allocate(1000)
    for wrong in ((foreign, 1000), (ptr + 256, 1000), (ptr, 500_000)):
        with pytest.raises(millpond.InvalidArgumentError, match="refused to deallocate"):
            resource.deallocate(*wrong)
    resource.deallocate(ptr, 1000)
    with pytest.raises(millpond.InvalidArgumentError, match="once"):
        resource.deallocate(ptr, 1000)
    # A refused call is not the cause of a later error.
    resource.deallocate(resource.allocate(10), 10)
    other.deallocate(foreign, 1000)
    assert "panicked" not in capfd.readouterr().err


# --- Sizes ---


class Interface:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


@pytest.mark.parametrize("kind", ["|u1", "<i4", "<f8", "<c16"])
@pytest.mark.parametrize("length", [1 << 60, 1 << 61, 1 << 62, (1 << 63) - 1, (1 << 64) - 1])
def test_an_interface_of_more_bytes_than_there_are_is_refused(kind, length):
    target = to_device(b"kept")
    source = Interface(shape=(length,), typestr=kind, data=(target.ptr, False), version=3, stream=1)
    with pytest.raises(ValueError, match="do not fit"):
        target.copy_from_device(source)
    assert target.tobytes() == b"kept"


class Capsule:
    """Passes on a capsule with a changed tensor."""

    def __init__(self, buffer, extent=None, dimensions=None, kind=None):
        self.buffer, self.capsule = buffer, buffer.__dlpack__(stream=-1)
        words = (ctypes.c_uint64 * 8).from_address(oracle._pointer_of(self.capsule, b"dltensor"))
        if extent is not None:
            ctypes.c_int64.from_address(words[3]).value = extent
        if dimensions is not None:
            words[2] = (words[2] & ~0xFFFF_FFFF) | (dimensions & 0xFFFF_FFFF)
        if kind is not None:
            words[2] = (words[2] & 0xFFFF_FFFF) | kind << 32

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, **_):
        return self.capsule


@pytest.mark.parametrize("extent", [-1, -(1 << 63), 1 << 60, (1 << 63) - 1])
def test_a_tensor_of_more_bytes_than_there_are_is_refused(extent):
    counted = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    for kind in (0x1_4001, 0x4_FF01):  # 64 bits, and four lanes of 255 bits
        with pytest.raises(BufferError, match="is too large"):
            millpond.from_dlpack(Capsule(to_device(b"abc", mr=counted), extent, kind=kind))
    assert counted.allocation_counts.current_count == 0


def test_a_tensor_without_dimensions_is_one_item():
    for dimensions in (0, -1):
        assert millpond.from_dlpack(Capsule(to_device(b"abc"), dimensions=dimensions)).tobytes() == b"a"


@pytest.mark.parametrize("size", [0.5, 0.001, 0.999])
def test_a_share_is_written_with_a_percent_sign(size):
    upstream = mr.CudaMemoryResource()
    for build in (
        lambda: mr.PoolMemoryResource(upstream, size),
        lambda: mr.PoolMemoryResource(upstream, maximum_pool_size=size),
        lambda: mr.LimitingResourceAdaptor(upstream, size),
        lambda: mr.ArenaMemoryResource(upstream, size),
        lambda: mr.parse_bytes(size),
    ):
        with pytest.raises(ValueError, match=f'did you mean "{100 * size:g}%"'):
            build()
    assert mr.LimitingResourceAdaptor(upstream, 2e9).get_allocation_limit() == 2_000_000_000


def test_sizes_that_no_memory_has_are_refused():
    upstream = mr.CudaMemoryResource()
    for build in (
        lambda: mr.LimitingResourceAdaptor(upstream, -1),
        lambda: mr.PoolMemoryResource(upstream, -5),
        lambda: mr.FixedSizeMemoryResource(upstream, -1),
        lambda: mr.BinningMemoryResource(upstream, 0, 1 << 40),
        lambda: mr.BinningMemoryResource(upstream, 10, 64),
        lambda: mr.LimitingResourceAdaptor(upstream, float("nan")),
    ):
        with pytest.raises(ValueError):
            build()
    with pytest.raises(OverflowError):
        mr.LimitingResourceAdaptor(upstream, float("inf"))
    assert mr.FixedSizeMemoryResource(upstream, "64KiB", 2).text.endswith("block_size=64KiB,preallocate=2")


@pytest.mark.parametrize("index", [1 << 70, -(1 << 70), 3, -4])
def test_an_index_outside_is_an_index_error(index):
    with pytest.raises(IndexError):
        to_device(b"abc")[index]


def test_memory_is_moved_to_its_own_device_or_to_the_host():
    buffer = to_device(b"abc", mr=mr.ManagedMemoryResource())
    for device in (None, -1, buffer.mr.device.ordinal):
        buffer.prefetch(device)
    with pytest.raises(ValueError, match="cannot move to device 77"):
        buffer.prefetch(77)
    assert buffer.tobytes() == b"abc"


# --- Copies that overlap ---


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 40))
def test_a_copy_within_a_buffer_is_that_of_bytes(source, target, size):
    data = bytearray(range(100))
    buffer = to_device(data)
    buffer[target : target + size].copy_from_device(buffer[source : source + size])
    data[target : target + size] = bytes(data[source : source + size])
    assert buffer.tobytes() == data


# --- Objects of other libraries ---


class Raising:
    """Raises for one attribute, and has no other attributes."""

    def __init__(self, name, kind):
        self._name, self._kind = name, kind

    def __getattr__(self, name):
        raise self._kind if name == self._name else AttributeError(name)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError, ValueError, TypeError])
@pytest.mark.parametrize("name", ["__cuda_stream__", "ptr", "cuda_stream", "handle"])
def test_what_a_stream_of_another_library_raises_is_raised(name, kind):
    for call in (
        millpond.Stream,
        lambda stream: DeviceBuffer(size=1, stream=stream),
        lambda stream: to_device(b"a").fill(1, stream),
        lambda stream: mr.CudaMemoryResource().allocate(1, stream),
    ):
        with pytest.raises(kind):
            call(Raising(name, kind))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_what_an_array_of_another_library_raises_is_raised(kind):
    for call in (to_device(b"a").copy_from_device, millpond.from_dlpack):
        for name in ("__cuda_array_interface__", "__dlpack_device__"):
            with pytest.raises((kind, ValueError, TypeError)) as caught:
                call(Raising(name, kind))
            is_asked = (name == "__dlpack_device__") == (call is millpond.from_dlpack)
            assert (caught.type is kind) == is_asked


def test_a_stream_of_another_device_is_refused():
    other, here = millpond.Device("sim:1GiB"), to_device(b"abc")
    # The handle of the other device's last stream is unused on this device.
    streams, resource = [millpond.Stream(device=other) for _ in range(50)], millpond.stack("cuda+pool", other)
    stream = streams[-1]
    mine = millpond.Stream()
    ptr = resource.allocate(100, stream)
    for call in (
        lambda: DeviceBuffer(size=1, stream=stream),
        lambda: DeviceBuffer(size=1, stream=mine, mr=resource),
        lambda: to_device(b"a", stream),
        lambda: here.fill(1, stream),
        lambda: here.tobytes(stream),
        lambda: here.copy_to_host(stream=stream),
        lambda: here.copy_from_host(b"a", stream),
        lambda: here.copy_from_device(to_device(b"a"), stream),
        lambda: here.resize(1000, stream),
        lambda: here.reserve(1000, stream),
        lambda: millpond.from_dlpack(here, stream),
        lambda: resource.allocate(1, mine),
        lambda: resource.deallocate(ptr, 100, mine),
    ):
        with pytest.raises(ValueError, match="the stream belongs to .*, but the memory belongs to .*: use a"):
            call()
    assert here.tobytes() == b"abc"
    resource.deallocate(ptr, 100, stream)


def test_a_handle_of_no_stream_says_what_to_do():
    for call in (
        lambda: DeviceBuffer(size=1, stream=0x7654321),
        lambda: to_device(b"abc").fill(1, 0x7654321),
        lambda: to_device(b"abc").__dlpack__(stream=0x7654321),
    ):
        with pytest.raises(millpond.InvalidArgumentError, match="keep a stream until its last use"):
            call()


@pytest.mark.parametrize("handle", [-1, 1 << 64, 1 << 100])
def test_a_number_that_is_no_handle_is_refused(handle):
    with pytest.raises(OverflowError, match="must be a stream of millpond or another library, or a handle"):
        millpond.Stream(handle)


@pytest.mark.parametrize("make", [millpond.Stream, millpond.Device, mr.CudaMemoryResource])
def test_what_stands_for_the_process_is_not_pickled(make):
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot pickle"):
            duplicate(make())


# --- Functions of the program ---


@pytest.mark.parametrize("where", ["allocate", "failure", "both"])
def test_a_function_that_asks_its_own_resource_ends_in_an_error(where):
    text = (
        "import millpond, threading\n"
        "from millpond import mr\n"
        "base, errors = mr.CudaMemoryResource(), []\n"
        f"if {where!r} == 'allocate':\n"
        "    resource = mr.CallbackMemoryResource(lambda n, s: resource.allocate(n, s), base.deallocate)\n"
        f"elif {where!r} == 'failure':\n"
        "    limited = mr.LimitingResourceAdaptor(base, 10)\n"
        "    resource = mr.FailureCallbackResourceAdaptor(limited, lambda n: resource.allocate(n))\n"
        "else:\n"
        "    own = mr.CallbackMemoryResource(lambda n, s: 0, base.deallocate)\n"
        "    resource = mr.FailureCallbackResourceAdaptor(own, lambda n: resource.allocate(n))\n"
        "def call():\n"
        "    try: millpond.DeviceBuffer(size=100, mr=resource)\n"
        "    except (RecursionError, RuntimeError, MemoryError) as error: errors.append(error)\n"
        "call()\n"
        "thread = threading.Thread(target=call)\n"
        "thread.start(), thread.join()\n"
        "print(len(errors))\n"
    )
    assert program(text) == "2"


SETTING = """
import threading
import millpond
from millpond import mr
base, seen = mr.CudaMemoryResource(), []
def deallocate(ptr, nbytes, stream):
    # Another thread asks for the default meanwhile.
    thread = threading.Thread(target=lambda: seen.append(mr.get_current_device_resource().text))
    thread.start(), thread.join()
    base.deallocate(ptr, nbytes, stream)
def allocate(nbytes, stream):
    thread = threading.Thread(target=lambda: seen.append(mr.get_current_device_resource().text))
    thread.start(), thread.join()
    return base.allocate(nbytes, stream)
def make(): return mr.PoolMemoryResource(mr.CallbackMemoryResource(allocate, deallocate), 1 << 20)
mr.set_current_device_resource(make())
{change}
assert len(seen) == 2, seen
print("end")
"""


@pytest.mark.parametrize(
    "change",
    [
        "mr.set_current_device_resource(mr.StatisticsResourceAdaptor(base))",
        "mr.reset_per_device_resource(0)",
        "millpond.reinitialize()",
        "millpond.reinitialize(pool_allocator=True, initial_pool_size=1 << 20)",
        "millpond.DeviceBuffer(size=5); millpond.reinitialize()",
    ],
)
def test_a_default_that_ends_runs_functions_under_no_lock(change):
    assert program(SETTING.format(change=change)) == "end"


# --- Forked children ---

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")

FORK = """
import gc, os, signal, threading, warnings
warnings.filterwarnings('ignore', '.*multi-threaded', DeprecationWarning)
import millpond
from millpond import mr, statistics
base, calls = mr.CudaMemoryResource(), []
def deallocate(ptr, nbytes, stream):
    calls.append(nbytes)
    base.deallocate(ptr, nbytes, stream)
own = mr.CallbackMemoryResource(base.allocate, deallocate)
pool = mr.PoolMemoryResource(own, 1 << 20)
buffer = millpond.DeviceBuffer(size=1000, mr=pool)
kept = [buffer, buffer[10:20], buffer.__dlpack__(), millpond.from_dlpack(buffer), millpond.Stream()]
{before}
pid = os.fork()
if pid == 0:
    signal.alarm(50)
    try:
        {child}
    except BaseException as error:
        os.write(1, repr(error).encode())
        os._exit(3)
    os._exit(0)
status = os.waitpid(pid, 0)[1]
{after}
assert calls == [], calls
print("end", status)
"""


@needs_fork
def test_a_forked_child_runs_no_function_for_its_parents_memory():
    child = "del kept, buffer, pool, own; gc.collect(); assert calls == []"
    assert program(FORK.format(before="", child=child, after="")) == "end 0"


@needs_fork
@pytest.mark.parametrize(
    "child",
    [
        "mr.get_current_device_resource()",
        "millpond.reinitialize()",
        "millpond.enable_logging('nowhere.csv')",
        "mr.set_current_device_resource(pool)",
    ],
)
def test_a_fork_beside_a_thread_that_holds_a_lock_hangs_no_child(child):
    """When the process forks, another thread holds each of the package's locks."""
    before = (
        "held, go = threading.Barrier(2), threading.Event()\n"
        "def hold():\n"
        "    from millpond import _locks\n"
        "    locks = list(_locks._made)\n"
        "    for lock in locks: lock.acquire()\n"
        "    held.wait(), go.wait()\n"
        "    for lock in locks: lock.release()\n"
        "thread = threading.Thread(target=hold)\n"
        "thread.start(), held.wait()"
    )
    refused = (
        f"try: {child}\n"
        "        except millpond.MillpondError as error: assert 'forked' in str(error), error\n"
        "        else: raise AssertionError('it was served')\n"
        "        records = statistics.default_profiler_records\n"
        "        records.add('name', statistics.Statistics(1, 2, 3, 4, 5, 6)), records.report()"
    )
    after = "go.set(), thread.join(), millpond.StreamPool(2).get_stream()"
    assert program(FORK.format(before=before, child=refused, after=after)) == "end 0"
