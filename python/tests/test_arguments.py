"""Wrong arguments are refused with an error that names the argument, its value, and the allowed values.

One test calls each public function with wrong values for each of its parameters. So it also finds a new
function whose error does not name the argument.
"""

import contextlib
import inspect
import math
import os
import re
import subprocess
import sys
import types

import documented
import numpy as np
import pytest

import millpond
from millpond import DeviceBuffer, Stream, _arguments, _library, mr, statistics, to_device


def base():
    return mr.CudaMemoryResource()


RESOURCE = r"`\w+` must be a millpond resource, such as millpond.stack\(.*\), not "
STREAM = "must be a stream of millpond or another library, or a handle from 0"
SIZE = "must be a size: a whole number of bytes from 0"


DEVICE = "must be a device or its number"
Named = types.SimpleNamespace


def copy_from(interface):
    to_device(b"a").copy_from_device(Named(__cuda_array_interface__=interface))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: millpond.reinitialize("cuda+pool"), TypeError, r"stack='cuda\+pool'"),
        (lambda: millpond.reinitialize(stack="cuda", initial_pool_size="1GiB"), ValueError, "`stack` stands"),
        (lambda: millpond.reinitialize(stack="cuda", pool_allocator=True), ValueError, "`stack` stands"),
        (lambda: millpond.reinitialize(devices="0"), TypeError, f"`devices` {DEVICE}.*, not '0'"),
        (lambda: mr.LimitingResourceAdaptor(base(), 1.5), ValueError, "a whole number of bytes"),
        (lambda: mr.BinningMemoryResource(base(), 20, 10), ValueError, "20 > 10"),
        (lambda: mr.FailureCallbackResourceAdaptor(base(), 5), TypeError, "`callback` must be a function"),
        (lambda: mr.CallbackMemoryResource(5, print), TypeError, "`allocate_func` must be a function"),
        (lambda: mr.CallbackMemoryResource(print, 6), TypeError, "`deallocate_func` must be a function"),
        (lambda: millpond.memory_report(0), TypeError, RESOURCE),
        (lambda: millpond.memory_report("cuda"), TypeError, RESOURCE),
        (lambda: mr.PoolMemoryResource("cuda"), TypeError, RESOURCE),
        (lambda: mr.BinningMemoryResource("cuda"), TypeError, RESOURCE),
        (lambda: mr.FailureCallbackResourceAdaptor("cuda", print), TypeError, RESOURCE),
        (lambda: millpond.stack("cuda", "sim:1"), TypeError, r"millpond.Device\('sim:1'\)"),
        (lambda: millpond.stack(5), TypeError, r"`text` must be a stack as text, .*, not 5"),
        (lambda: millpond.stack("cuda\0"), ValueError, "`text` must be a text of Unicode characters"),
        (lambda: millpond.Device.find(-1), OverflowError, "`ordinal` must be .* is 0, not -1"),
        (lambda: millpond.Device.find("0"), TypeError, "`ordinal` must be the number of a device"),
        (lambda: millpond.Device(0), TypeError, '`name` must be a text such as "cuda:1"'),
        (lambda: mr.get_per_device_resource(1.5), TypeError, f"`device` {DEVICE}, not 1.5"),
        (lambda: mr.get_per_device_resource(-1), ValueError, f"`device` {DEVICE}, not -1"),
        (lambda: to_device(b"a").fill(256), OverflowError, "`value` must be .*, from 0 to 255, not 256"),
        (lambda: to_device(b"a").fill(-1), OverflowError, "`value` must be .*, from 0 to 255, not -1"),
        (lambda: to_device(b"a").fill("x"), TypeError, "`value` must be .*, from 0 to 255, not 'x'"),
        (lambda: to_device(b"a")["x"], TypeError, "`index` must be a whole number or a slice, not 'x'"),
        (lambda: to_device(b"abc")[::2], ValueError, r"`index` must be .* step 1, not slice"),
        (lambda: to_device(b"a").copy_from_host(b"ab"), ValueError, "`ary` must have at most .* 1 bytes"),
        (lambda: to_device(b"ab").copy_to_host(bytearray(1)), ValueError, "`ary` must have at least"),
        (lambda: to_device(np.zeros(4)[::2]), ValueError, "`b` must be contiguous"),
        (lambda: to_device("text"), TypeError, "`b` must be an object with .*, not 'text'"),
        (lambda: DeviceBuffer(size="3"), TypeError, "`size` must be a whole number.*, not '3'"),
        (lambda: DeviceBuffer(size=-1), OverflowError, "`size` must be .*, 0 or more, not -1"),
        (lambda: DeviceBuffer(ptr=-1, size=1), OverflowError, "`ptr` must be an address as a number"),
        (lambda: DeviceBuffer(size=1, mr="cuda"), TypeError, RESOURCE),
        (lambda: base().is_equal("cuda"), TypeError, RESOURCE),
        (lambda: base().allocate(8, alignment=-1), OverflowError, "`alignment` must be an alignment"),
        (lambda: Stream("s"), TypeError, f"`obj` {STREAM}"),
        (lambda: Stream(-1), OverflowError, f"`obj` {STREAM}"),
        (lambda: Stream().wait("s"), TypeError, f"`other` {STREAM}"),
        (lambda: DeviceBuffer(size=1, stream="s"), TypeError, f"`stream` {STREAM}"),
        (lambda: Stream(Named(ptr=-1)), OverflowError, f"`obj.ptr` {STREAM}"),
        (lambda: Stream(Named(__cuda_stream__="s")), TypeError, "`obj.__cuda_stream__` must be a pair"),
        (lambda: Stream(flags=17), ValueError, r"`flags` must be 0 \(SYNC_DEFAULT\) or 1 .*, not 17"),
        (lambda: Stream(device=0), TypeError, "`device` must be a millpond.Device, or None, not 0"),
        (lambda: millpond.StreamPool(1 << 70), ValueError, "`pool_size` must be a number of streams from 1"),
        (lambda: mr.RetryResourceAdaptor(base(), math.nan), ValueError, "`timeout` must be a number"),
        (lambda: mr.LimitingResourceAdaptor(base(), []), TypeError, rf"_limit` {SIZE}.*, not \[\]"),
        (lambda: mr.LimitingResourceAdaptor(base(), math.nan), ValueError, f"_limit` {SIZE}.*, not nan"),
        (lambda: mr.LimitingResourceAdaptor(base(), math.inf), OverflowError, f"{SIZE}.*, not inf"),
        (lambda: mr.LimitingResourceAdaptor(base(), "1 apple"), ValueError, "_limit` must be a size: .*1 a"),
        (lambda: mr.PoolMemoryResource(base(), -5), ValueError, f"`initial_pool_size` {SIZE}.*, not -5"),
        (lambda: mr.BinningMemoryResource(base(), 10, 64), ValueError, "`max_size_exponent` must be"),
        (lambda: mr.LoggingResourceAdaptor(base(), 5), TypeError, "_name` must be the path of a file, not 5"),
        (lambda: millpond.set_logging_level("info"), TypeError, "`level` must be a level_enum"),
        (lambda: millpond.memory_snapshot(5), TypeError, "`path` must be the path of a file, not 5"),
        (lambda: millpond.memory_snapshot(resource="cuda"), TypeError, RESOURCE),
        (lambda: millpond.record_memory_history("9"), TypeError, "`max_entries` must be a number of events"),
        (lambda: _library.ordinal_of("0"), TypeError, f"`device` {DEVICE}.*, not '0'"),
        (lambda: _library.prepare(5, 0), TypeError, "`stack` must be a stack as text, .*, not 5"),
        (lambda: statistics.ProfilerRecords.MemoryRecord().add("1", 2), TypeError, "`memory_total` must be"),
        (lambda: statistics.profiler(name="a")(5), TypeError, "`func` must be a function, not 5"),
        (lambda: copy_from(interface=[]), TypeError, r"_array_interface__` must be a dict, not \[\]"),
        (lambda: copy_from(interface={}), TypeError, r'__\["shape"\]` must be a tuple of .*, not None'),
        (lambda: millpond.from_dlpack(5), TypeError, "`obj` must be a tensor with `__dlpack__`.*, not 5"),
    ],
)
def test_a_wrong_argument_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert mr.get_current_device_resource().text == "cuda"


def test_a_bin_that_is_refused_is_not_kept():
    bins = mr.BinningMemoryResource(base(), 12, 14)
    for wrong in (0, 1 << 63):
        with pytest.raises(ValueError):
            bins.add_bin(wrong)
    bins.add_bin(1 << 20)
    assert bins.text == "cuda+binning:bins=4KiB/8KiB/16KiB/1MiB"


def test_an_answer_of_a_callback_that_is_no_address_is_refused():
    resource = mr.CallbackMemoryResource(lambda size, stream: "memory", lambda *block: None)
    text = r"`allocate_func\(size, stream\)` must be the address of the memory as a number, not 'memory'"
    with pytest.raises(RuntimeError, match=text):
        DeviceBuffer(size=1, mr=resource)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("given", "shown"),
    [(Unprintable(), "an object of type Unprintable"), (10**9999, "int"), ("x" * 999, r"x\.\.\.")],
    ids=["unprintable", "huge", "long"],
)
def test_an_argument_that_is_long_or_has_no_text_is_shown_in_short(given, shown):
    with pytest.raises((TypeError, OverflowError), match=f"(?m)`value` must be .*{shown}$") as raised:
        to_device(b"a").fill(given)
    assert len(str(raised.value)) < 200


# --- All functions ---

WRONG = [
    object(), "no such thing", "\0", "\udc80", b"bytes", -1, 1 << 70, -(1 << 70), 1.5, math.nan, math.inf,
    None, [], {}, (1, 2), {"a": 1}, print, type, np.zeros(3), np.int64(-1), Named(ptr="no number"),
]

DRIVER = types.ModuleType("driver")
DRIVER.CudaAPIError = type("CudaAPIError", (Exception,), {})
DRIVER.GetIpcHandleMixin = type("GetIpcHandleMixin", (), {})
DRIVER.HostOnlyCUDAMemoryManager = type("HostOnlyCUDAMemoryManager", (), {})
DRIVER.set_memory_manager = lambda manager: None

#: An argument that is right, by the name of a required parameter. An entry with the name of the function is
#: also passed if the parameter is optional.
RIGHT = {
    "alignment": lambda: 256,
    "allocate_func": lambda: print,
    "millpond.mr.BudgetResourceAdaptor.limit": lambda: 1 << 20,
    "allocation_limit": lambda: 1 << 20,
    "allocation_size": lambda: 1 << 20,
    "array": lambda: Named(gpu_data=None),
    "ary": lambda: bytearray(3),
    "b": lambda: b"abc",
    "callback": lambda: print,
    "client": lambda: Named(register_plugin=lambda plugin: None),
    "count": lambda: 3,
    "cuda_ary": lambda: to_device(b"abc"),
    "access": lambda: "read_write",
    "d_dst": lambda: KEPT[0].ptr,
    "d_src": lambda: KEPT[0].ptr,
    "data": lambda: statistics.Statistics(0, 0, 0, 0, 0, 0),
    "db": lambda: KEPT[0].ptr,
    "deallocate_func": lambda: print,
    "device": lambda: 0,
    "devices": lambda: 0,
    "driver": lambda: DRIVER,
    "fd": lambda: 0,
    "func": lambda: print,
    "handle": lambda: exported(),
    "hb": lambda: bytearray(3),
    "headroom": lambda: 1 << 20,
    "level": lambda: millpond.level_enum.warn,
    "mr": base,
    "name": lambda: "name",
    "nbytes": lambda: 256,
    "new_capacity": lambda: 256,
    "new_size": lambda: 256,
    "obj": lambda: to_device(b"abc"),
    "ordinal": lambda: 0,
    "other": base,
    "pool_handle": lambda: mr.MemoryPool.default().pool_handle,
    "ptr": lambda: 0,
    "resource": base,
    "s": lambda: 256,
    "size": lambda: 256,
    "stream": lambda: 0,
    "text": lambda: "cuda",
    "upstream_mr": base,
    "value": lambda: 0,
    "worker": lambda: Named(metrics={}),
    "millpond.Stream.wait.other": lambda: Stream(),
    "millpond.mr.PlanMemoryResource.file": lambda: "missing.plan",
    "millpond.memory_pool.MemoryPool.import_pointer.data": lambda: bytes(64),
    "millpond.numba.use.driver": lambda: DRIVER,
    "millpond.MemoryReport.data": lambda: {},
} | dict.fromkeys(inspect.signature(statistics.Statistics).parameters, lambda: 0)

#: Functions that the test does not call, with the reason.
LEFT_OUT = {
    "millpond.rmm_bridge.main": "it ends the process with its usage",
}

#: An object for the methods of a class.
OBJECTS = {
    "millpond.DeviceBuffer": lambda: to_device(b"abc"),
    "millpond.compat.rmm.DeviceBuffer": lambda: millpond.compat.rmm.to_device(b"abc"),
    "millpond.Device": lambda: millpond.Device(),
    "millpond.Stream": lambda: Stream(),
    "millpond.StreamPool": lambda: millpond.StreamPool(2),
    "millpond._native.Resource": base,
    "millpond.mr.BudgetResourceAdaptor": lambda: mr.BudgetResourceAdaptor(base(), "callbacks", "1MiB"),
    "millpond.mr.BinningMemoryResource": lambda: mr.BinningMemoryResource(base(), 10, 12),
    "millpond.statistics.ProfilerRecords": lambda: statistics.ProfilerRecords(),
    "millpond.dask.MillpondPlugin": lambda: millpond.dask.MillpondPlugin(),
    "millpond.memory_pool.GraphMemory": lambda: mr.GraphMemory(),
    "millpond.memory_pool.MemoryPool": lambda: mr.MemoryPool(handles="fd/fabric"),
    "millpond.memory_pool.ImportedAllocation": lambda: imported(),
}


def exported():
    """Return the fabric handle of a pool that lives."""
    KEPT.append(mr.MemoryPool(handles="fabric"))
    return KEPT[-1].export_fabric()


def imported():
    """Return a block of another process, which this process stands for."""
    pool = mr.MemoryPool(handles="fd")
    fd = pool.export_fd()
    KEPT.append(DeviceBuffer(size=3, mr=pool.resource()))
    try:
        return mr.MemoryPool.import_fd(fd).import_pointer(pool.export_pointer(KEPT[-1].ptr), 3)
    finally:
        os.close(fd)


#: Memory at an address.
KEPT = []


def functions():
    """Return all public functions, and the protocol methods with arguments, by name."""
    found = documented.public() | {"millpond.DeviceBuffer.__dlpack__": DeviceBuffer.__dlpack__}
    return {
        name: function
        for name, function in found.items()
        if name not in LEFT_OUT and documented.parameters(function)
    }


def bound(name, function):
    """Return a function that is called without `self`."""
    owner, _, method = name.rpartition(".")
    if "self" not in inspect.signature(function).parameters:
        return function
    assert owner in OBJECTS, f"add an object of {owner} to OBJECTS"
    return getattr(OBJECTS[owner](), method)


def call(name, function, parameter, value):
    """Call a function with a value for one parameter, and with right arguments for the required ones."""
    arguments = {}
    for each in inspect.signature(function).parameters.values():
        if each.name == "self" or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        if each.name == parameter:
            arguments[each.name] = value
        elif f"{name}.{each.name}" in RIGHT:
            arguments[each.name] = RIGHT[f"{name}.{each.name}"]()
        elif each.default is each.empty:
            assert each.name in RIGHT, f"add a right argument for {name}.{each.name} to RIGHT"
            arguments[each.name] = RIGHT[each.name]()
    answer = bound(name, function)(**arguments)
    if isinstance(answer, contextlib._GeneratorContextManager):
        with answer:
            pass


def complaint(name, function, parameter, value):
    """Return a description of the wrong error of a call, or None."""
    try:
        call(name, function, parameter, value)
    except (millpond.MillpondError, MemoryError):
        return None
    except ImportError as error:
        return None if "pip install" in str(error) else repr(error)
    except (BufferError, OverflowError, TypeError, ValueError) as error:
        names = "|".join(documented.parameters(function))
        is_named = re.search(rf"`({names})\b", str(error))
        return None if is_named else f"the error names no argument: {error!r}"
    except AssertionError:
        raise
    except Exception as error:
        return f"another kind of error: {error!r}"
    return None


@pytest.fixture
def harmless(monkeypatch, tmp_path):
    """The calls change neither the frameworks nor the files of other tests."""

    def framework(name, install):
        raise ImportError(f"{name} is not for this test: pip install {install}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_library, "framework", framework)
    monkeypatch.setattr(mr, "_hooks", [])
    for module in ("numba", "cupy"):
        state = getattr(millpond, module)._state
        monkeypatch.setattr(getattr(millpond, module), "_state", dict(state))
    if "millpond.dask" in sys.modules:
        monkeypatch.setattr(millpond.dask, "_prepared", {})
    level = millpond.get_logging_level(), millpond.get_flush_level()
    KEPT.append(DeviceBuffer(size=4096))
    yield
    KEPT.clear()
    millpond.set_logging_level(level[0])
    millpond.set_flush_level(level[1])
    millpond.stop_memory_history()


@pytest.mark.parametrize("name", functions())
def test_each_error_names_the_wrong_argument(name, harmless):
    function = functions()[name]
    found = []
    for parameter in documented.parameters(function):
        for value in WRONG:
            wrong = complaint(name, function, parameter, value)
            if wrong is not None:
                found.append(f"{name}({parameter}={_arguments._shown(value)}): {wrong}")
            mr._hooks.clear()
            mr.reset_per_device_resource(None)
    assert found == [], "\n".join(found)


def test_an_error_without_a_name_is_found():
    """The canary of the test above."""

    def raw(size):
        int(size)

    def named(size):
        _arguments.whole(size, "size", "a number")

    assert "names no argument" in complaint("raw", raw, "size", "many")
    assert complaint("named", named, "size", "many") is None
    assert "another kind" in complaint("missing", lambda size: size.missing, "size", 5)
    assert len(functions()) > 60


def test_resources_accept_a_devices_number():
    assert millpond.stack("cuda", 0).device.ordinal == 0
    assert mr.CudaMemoryResource(device=0).device.ordinal == 0
    with pytest.raises(millpond.NoDeviceError):
        mr.CudaMemoryResource(device=1000)


def test_reinitialize_changes_no_default_if_a_device_is_missing():
    with pytest.raises(millpond.NoDeviceError):
        millpond.reinitialize(devices=[0, 1000], pool_allocator=True, initial_pool_size="1MiB")
    assert mr.get_per_device_resource(0).text == "cuda"


def test_after_install_use_sets_millponds_default_directly():
    program = """
import millpond, millpond.compat.rmm
millpond.compat.rmm.install()
import millpond.rmm
assert millpond.rmm.use("cuda+pool:initial=1MiB") is millpond.mr.get_current_device_resource()
assert millpond.mr.get_current_device_resource().text == "cuda+pool:initial=1MiB"
assert millpond.rmm.bridge() == "none: `rmm` is millpond.compat.rmm"
millpond.rmm.disable()
assert millpond.mr.get_current_device_resource().text == "cuda"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
