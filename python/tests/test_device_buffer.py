"""`DeviceBuffer`: making, copying, slicing, pickling, the host's view, and exchange through DLPack."""

import copy
import gc
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_processes import script

import millpond
from millpond import DeviceBuffer, mr, to_device

# The first call on a device may be slow, and no test may fail because of time.
untimed = settings(deadline=None)


@pytest.mark.parametrize("size", [0, 1, 8])
@pytest.mark.parametrize("has_ptr", [False, True])
@pytest.mark.parametrize("stream", ["default", "new"])
def test_making(size, has_ptr, stream):
    stream = millpond.DEFAULT_STREAM if stream == "default" else millpond.Stream()
    source = to_device(bytes(range(8)))
    buffer = DeviceBuffer(ptr=source.ptr if has_ptr else 0, size=size, stream=stream)
    stream.synchronize()
    assert len(buffer) == buffer.size == buffer.nbytes == size and buffer.capacity() >= size
    assert buffer.__sizeof__() >= size
    assert (buffer.ptr == 0) == (size == 0)
    interface = buffer.__cuda_array_interface__
    assert interface["data"] == (buffer.ptr, False) and interface["shape"] == (size,)
    assert interface["strides"] is None and interface["typestr"] == "|u1" and interface["version"] == 3
    assert interface["stream"] == max(stream.ptr, 1)
    if has_ptr:
        assert buffer.tobytes() == bytes(range(size))


def test_arguments_are_checked():
    with pytest.raises(OverflowError):
        DeviceBuffer(size=-1)
    with pytest.raises(TypeError):
        DeviceBuffer(8)
    with pytest.raises(TypeError):
        DeviceBuffer(size=8, mr="cuda")
    with pytest.raises(TypeError):
        to_device(None)


@untimed
@given(st.binary(max_size=5000))
def test_bytes_go_there_and_back(data):
    buffer = to_device(data)
    assert bytes(buffer) == buffer.tobytes() == data and buffer.tobytes().hex() == data.hex()
    assert bytes(memoryview(buffer)) == data
    np.testing.assert_array_equal(buffer.copy_to_host(), np.frombuffer(data, "u1"))
    assert buffer.copy().tobytes() == data


@untimed
@given(st.binary(max_size=100), st.slices(100))
def test_slices_are_those_of_bytes(data, part):
    buffer = to_device(data)
    if part.step not in (None, 1):
        with pytest.raises(ValueError):
            buffer[part.start : part.stop : part.step or 2]
        return
    assert buffer[part].tobytes() == data[part]


def test_items_and_slices_share_the_memory():
    counted = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    buffer = to_device(b"abcdef", mr=counted)
    assert buffer[0] == ord("a") and buffer[-1] == ord("f")
    for index in (6, -7):
        with pytest.raises(IndexError):
            buffer[index]
    part = buffer[2:4]
    part.copy_from_host(b"XY")
    assert buffer.tobytes() == b"abXYef" and part.ptr == buffer.ptr + 2
    del buffer
    assert part.tobytes() == b"XY" and counted.allocation_counts.current_bytes == 6
    del part
    assert counted.allocation_counts.current_bytes == 0


@pytest.mark.parametrize("array", [b"abc", bytearray(b"abc"), memoryview(b"abc"), np.array([1, 2], "i4")])
def test_copies_from_the_host(array):
    buffer = DeviceBuffer(size=memoryview(array).nbytes)
    buffer.copy_from_host(array)
    assert buffer.tobytes() == bytes(memoryview(array).cast("B"))
    with pytest.raises(ValueError):
        DeviceBuffer(size=1).copy_from_host(array)
    with pytest.raises(TypeError, match="`ary` must be an object with the buffer protocol"):
        buffer.copy_from_host(None)
    with pytest.raises(ValueError, match="`ary` must be contiguous"):
        buffer.copy_from_host(np.zeros(8, "u1")[::2])


def test_copies_to_the_host():
    buffer = to_device(b"abc")
    target = bytearray(5)
    assert buffer.copy_to_host(target) is target and target == b"abc\0\0"
    with pytest.raises(ValueError):
        buffer.copy_to_host(bytearray(2))
    with pytest.raises(ValueError, match="`ary` must be contiguous and writable"):
        buffer.copy_to_host(b"abc")


class Interface:
    def __init__(self, owner, **changes):
        self.owner = owner
        self.__cuda_array_interface__ = {**owner.__cuda_array_interface__, **changes}


def test_copies_from_the_device():
    source, target = to_device(b"abcdefgh", millpond.Stream()), DeviceBuffer(size=8)
    target.copy_from_device(source)
    assert target.tobytes() == b"abcdefgh"
    target.copy_from_device(Interface(source, shape=(2,), typestr="<i4"))
    for changes in ({"shape": (2, 4)}, {"strides": (2,)}, {"shape": (9,)}, {"shape": ()}):
        with pytest.raises(ValueError):
            target.copy_from_device(Interface(source, **changes))
    with pytest.raises(ValueError):
        target.copy_from_device(b"abc")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("data", [b"", b"abc", bytes(1000)])
def test_pickle(data, protocol):
    assert pickle.loads(pickle.dumps(to_device(data), protocol)).tobytes() == data


def test_pickle_out_of_band():
    buffers = []
    packed = pickle.dumps(to_device(b"a" * 10_000), 5, buffer_callback=buffers.append)
    assert len(packed) < 1000 and len(buffers) == 1
    assert pickle.loads(packed, buffers=buffers).tobytes() == b"a" * 10_000


@pytest.mark.parametrize("duplicate", [DeviceBuffer.copy, copy.copy, copy.deepcopy])
def test_copy_is_of_the_same_resource(duplicate):
    resource = mr.PoolMemoryResource(mr.CudaMemoryResource(), 1 << 20)
    buffer = to_device(b"abc", millpond.Stream(), mr=resource)
    twin = duplicate(buffer)
    assert twin.tobytes() == b"abc" and twin.ptr != buffer.ptr and twin.mr is resource
    twin.fill(0)
    assert buffer.tobytes() == b"abc" and twin.tobytes() == b"\0\0\0"


def test_resize_and_reserve():
    counted = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    buffer = to_device(b"abcd", mr=counted)
    part = buffer[1:3]
    buffer.reserve(1000)
    assert buffer.capacity() == 1000 and buffer.size == 4 and buffer.tobytes() == b"abcd"
    before = buffer.ptr
    buffer.resize(900)
    assert buffer.ptr == before and buffer.size == 900
    buffer.resize(2, millpond.Stream())
    buffer.shrink_to_fit()
    assert (buffer.capacity(), buffer.tobytes()) == (2, b"ab")
    buffer.resize(2000, millpond.Stream())
    assert buffer.tobytes()[:2] == b"ab" and part.tobytes() == b"bc"
    del part
    assert counted.allocation_counts.current_bytes == 2000
    buffer.resize(0)
    assert buffer.tobytes() == b""


@pytest.mark.parametrize(
    "call",
    [
        lambda b: DeviceBuffer(size=1, stream=None),
        lambda b: to_device(b"a", None),
        lambda b: b.copy_to_host(None, None),
        lambda b: b.copy_from_host(b"a", None),
        lambda b: b.copy_from_device(b, None),
        lambda b: b.tobytes(None),
        lambda b: b.resize(1, None),
        lambda b: b.resize(100, None),
        lambda b: b.shrink_to_fit(None),
        lambda b: b.reserve(100, None),
        lambda b: b.fill(0, None),
        lambda b: b.mr.allocate(10, None),
        lambda b: b.mr.deallocate(0, 10, None),
        lambda b: millpond.from_dlpack(b, None),
    ],
)
def test_none_is_no_stream(call):
    with pytest.raises(TypeError):
        call(to_device(b"a"))


def test_the_host_sees_a_copy_of_what_it_does_not_reach():
    buffer = to_device(b"abc")
    view = memoryview(buffer)
    assert view.readonly == (not buffer.mr.is_host_accessible or millpond.Device().is_simulated)
    buffer.copy_from_host(b"xyz")
    assert bytes(view) == b"abc"
    with pytest.raises((BufferError, TypeError)):
        b"".join([]) or memoryview(buffer).cast("B").__setitem__(0, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize(
    "see", ["memoryview", "bytes", "m.DeviceBuffer.tobytes", "m.DeviceBuffer.copy_to_host"]
)
def test_bytes_that_the_host_has_no_room_for_are_a_memory_error(see):
    """The process continues."""
    program = (
        "import millpond as m, resource\n"
        "buffer = m.DeviceBuffer(size=64 << 30, mr=m.stack('cuda', m.Device('sim:80GiB')))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (32 << 30, 32 << 30))\n"
        f"try: {see}(buffer)\n"
        "except MemoryError: print('none')\n"
    )
    assert script(program) == "none"


# --- Several devices ---


def test_copies_between_devices():
    """Each simulated device has separate addresses, which mean nothing on another device."""
    data = np.random.default_rng(1).integers(0, 256, 3_000_000, "u1")
    other = millpond.Device("sim:1GiB")
    of_other, here = millpond.stack("cuda+pool", other), millpond.stack("cuda+pool")
    on_other = millpond.Stream(device=other)
    for from_ in (here, of_other):
        to = of_other if from_ is here else here
        stream = on_other if from_ is of_other else millpond.DEFAULT_STREAM
        kept = [DeviceBuffer(size=len(data), mr=it) for it in (here, of_other)]
        [buffer.fill(99) for buffer in kept]
        source = DeviceBuffer(size=len(data), stream=stream, mr=from_)
        source.copy_from_host(data)
        target = DeviceBuffer(size=len(data) + 100, mr=to)
        target.fill(7)
        target.copy_from_device(source)
        del source
        assert target[: len(data)].tobytes() == data.tobytes() and set(target[len(data) :].tobytes()) == {7}
        target[10:20].copy_from_device(DeviceBuffer(size=0, mr=from_))
        target[10:20].copy_from_device(millpond.to_device(b"0123456789", mr=from_)[2:7])
        assert target[8:20].tobytes() == data[8:10].tobytes() + b"23456" + data[15:20].tobytes()
        imported = millpond.from_dlpack(target, on_other if to is of_other else millpond.DEFAULT_STREAM)
        back = DeviceBuffer(size=len(target), mr=from_)
        back.copy_from_device(imported)
        assert back.tobytes() == target.tobytes()
        assert all(set(buffer.tobytes()) == {99} for buffer in kept)


# --- DLPack ---


class Producer:
    """Passes a buffer's capsules on, and records the arguments."""

    def __init__(self, buffer, **forced):
        self.buffer, self.forced, self.asked = buffer, forced, []

    def __dlpack_device__(self):
        return self.buffer.__dlpack_device__()

    def __dlpack__(self, **asked):
        self.asked.append(asked)
        return self.buffer.__dlpack__(**{**asked, **self.forced})


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_dlpack_there_and_back(version):
    counted = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    buffer = to_device(b"abcdef", mr=counted)
    producer = Producer(buffer, max_version=version)
    got = millpond.from_dlpack(producer)
    assert got.ptr == buffer.ptr and got.tobytes() == b"abcdef" and got.mr is None
    assert producer.asked[0]["stream"] == 1
    with pytest.raises(BufferError):
        got.resize(100)
    twin = got.copy()
    del buffer, producer
    gc.collect()
    assert counted.allocation_counts.current_count == 1 and got.tobytes() == b"abcdef"
    del got
    gc.collect()
    assert counted.allocation_counts.current_count == 0 and twin.tobytes() == b"abcdef"


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_that_nobody_takes_keeps_nothing(version):
    counted = mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    buffer = to_device(b"abc", mr=counted)
    capsule = buffer.__dlpack__(max_version=version)
    assert ('"dltensor_versioned"' if version else '"dltensor"') in repr(capsule)
    del buffer
    assert counted.allocation_counts.current_count == 1
    del capsule
    assert counted.allocation_counts.current_count == 0


def test_a_capsule_is_taken_once():
    capsule = to_device(b"abc").__dlpack__()

    class Once:
        def __dlpack_device__(self):
            return to_device(b"").__dlpack_device__()

        def __dlpack__(self, stream=None):
            return capsule

    millpond.from_dlpack(Once())
    with pytest.raises(BufferError):
        millpond.from_dlpack(Once())


def test_dlpack_arguments():
    buffer = to_device(b"abc", millpond.Stream())
    for stream in (0, -2):
        with pytest.raises(ValueError):
            buffer.__dlpack__(stream=stream)
    other = millpond.Stream()
    for stream in (None, -1, 1, 2, other.ptr):
        buffer.__dlpack__(stream=stream)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(1, 0))
    buffer.__dlpack__(dl_device=buffer.__dlpack_device__())
    copied = millpond.from_dlpack(Producer(buffer, copy=True))
    assert copied.ptr != buffer.ptr and copied.tobytes() == b"abc"
    with pytest.raises(BufferError):
        millpond.from_dlpack(np.zeros(3))
    with pytest.raises(TypeError, match="`obj` must be a tensor"):
        millpond.from_dlpack(b"abc")


def test_a_buffer_without_bytes_takes_nothing():
    resource = millpond.stack("cuda+pool+statistics")
    for _ in range(3):
        buffer = millpond.DeviceBuffer(size=0, mr=resource)
        assert (buffer.size, buffer.ptr, buffer.tobytes()) == (0, 0, b"")
    assert (resource.allocation_counts.current_count, resource.allocation_counts.total_count) == (0, 0)
    grown = millpond.DeviceBuffer(size=0, mr=resource)
    grown.resize(10)
    del grown, buffer
    assert (resource.allocation_counts.current_count, resource.allocation_counts.total_count) == (0, 1)
