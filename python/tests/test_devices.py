"""The choice of the device. A program touches only devices that it named, and the environment sets the
default.

A stand-in for libcuda has four devices and counts how often each one's context is retained.
"""

import os
import subprocess
import sys

import pytest

import millpond

_FAKE = os.environ.get("MILLPOND_FAKE_CUDA")
needs_fake = pytest.mark.skipif(not _FAKE, reason="SKIPPED: `cargo test` compiles the stand-in for libcuda")

#: The first lines of each program below. `retains()` is the number of retains of each device.
_HEAD = """
import ctypes, os, sys, tempfile, types
import millpond, millpond as m
from millpond import _library
_fake = ctypes.CDLL("libcuda.so.1")
_fake.fake_retains.restype = ctypes.c_uint64
def retains(): return [_fake.fake_retains(device) for device in range(4)]
"""


def script(text, head="import millpond, millpond as m\n", **environment):
    """Run a program in a separate process, and return its output."""
    names = ("MILLPOND_DEVICE", "LOCAL_RANK", "MILLPOND_STACK", "FAKE_CUDA_DEVICES")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    answer = subprocess.run(
        [sys.executable, "-c", head + text],
        capture_output=True,
        text=True,
        timeout=120,
        env=kept | environment,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout.strip()


def with_fake(text, **environment):
    """Run a program with the stand-in's four devices."""
    path = os.pathsep.join(filter(None, [_FAKE, os.environ.get("LD_LIBRARY_PATH")]))
    return script(text, _HEAD, LD_LIBRARY_PATH=path, **environment)


# --- Naming a device does not touch it ---


@needs_fake
def test_naming_devices_touches_none():
    assert (
        with_fake(
            "import millpond.statistics, millpond.report\n"
            "devices = [m.Device.find(i) for i in range(4)] + [m.Device(f'cuda:{i}') for i in range(4)]\n"
            "assert [d.ordinal for d in devices] == [0, 1, 2, 3] * 2\n"
            "assert not any(d.is_simulated for d in devices) and devices[1].name == 'Fake 1'\n"
            "assert m.Device() == m.Device.find(0) and len({*devices, m.Device()}) == 4\n"
            "repr(devices[2]), hash(devices[2])\n"
            "assert [m.mr.get_per_device_resource(i).text for i in range(4)] == ['cuda'] * 4\n"
            "assert m.mr.get_current_device_resource().device == m.Device()\n"
            "assert m.mr.get_per_device_resource_type(3) is m.mr.CudaMemoryResource and m.is_initialized()\n"
            "m.mr.reset_per_device_resource(2), m.get_log_filenames()\n"
            "m.Stream(7), m.Stream(7) == m.Stream(8), m.DEFAULT_STREAM, m.StreamPool\n"
            "assert [_library.device_of(i).ordinal for i in range(4)] == [0, 1, 2, 3]\n"
            "_library.device_free(_library.find_device(3))\n"
            "for wrong in (lambda: m.Device.find(4), lambda: m.Device('cuda:9'), lambda: m.Device('gpu')):\n"
            "    try: wrong()\n"
            "    except m.MillpondError: pass\n"
            "    else: raise AssertionError('it was found')\n"
            "print(retains())\n"
        )
        == "[0, 0, 0, 0]"
    )


@needs_fake
@pytest.mark.parametrize("stack", ["cuda", "cuda+pool", "cuda+pool+statistics+tracking"])
def test_work_on_one_device_touches_that_one(stack):
    program = (
        "d = m.Device.find(2)\n"
        f"r = m.stack({stack!r}, d)\n"
        "m.mr.set_per_device_resource(2, r)\n"
        "s = m.Stream(device=d)\n"
        "b = m.DeviceBuffer(size=1000, stream=s, mr=r)\n"
        "b.fill(7, s); c = b.copy(); b.copy_from_device(c, s)\n"
        "assert c.tobytes(s) == bytes([7]) * 1000, c.tobytes(s)\n"
        "f = m.from_dlpack(b, s); assert f.copy().tobytes(s) == bytes([7]) * 1000\n"
        "theirs = m.Stream(s.ptr); theirs.synchronize(), theirs.query(), theirs.wait(s), s.wait(theirs)\n"
        "d.memory_info(), d.synchronize(), r.memory_info()\n"
        "m.memory_report(r).text, m.memory_report(m.mr.get_per_device_resource(2)).data\n"
        "m.enable_logging(tempfile.mkdtemp() + '/log.csv')\n"
        "b.resize(5000, s); m.get_log_filenames(); m.disable_logging()\n"
        "m.reinitialize(pool_allocator=True, initial_pool_size=1 << 20, devices=2)\n"
        "ptr = _library.malloc(100, 2, s.ptr); _library.record_stream(ptr, s.ptr)\n"
        "_library.free(ptr, 0, 0, None); _library.empty_cache()\n"
        "del b, c, f\n"
        "print(retains())\n"
    )
    assert with_fake(program) == "[0, 0, 1, 0]"


@needs_fake
def test_a_stack_of_the_environment_is_built_where_memory_is_asked_for():
    program = (
        "m.Device.find(1), m.Device(), m.get_log_filenames()\n"
        "before = retains()\n"
        "s = m.Stream(device=m.Device.find(3))\n"
        "b = m.DeviceBuffer(size=1000, mr=m.mr.get_per_device_resource(3), stream=s)\n"
        "print(before, retains(), b.mr.text)\n"
    )
    expected = "[0, 0, 0, 0] [0, 0, 0, 1] cuda+pool:initial=1MiB"
    assert with_fake(program, MILLPOND_STACK="cuda+pool:initial=1MiB") == expected


@needs_fake
def test_a_fork_and_an_end_touch_no_other_device():
    program = (
        "s = m.Stream(device=m.Device.find(1))\n"
        "b = m.DeviceBuffer(size=1000, mr=m.mr.get_per_device_resource(1), stream=s)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    del b\n"
        "    try: m.Device.find(0)\n"
        "    except m.MillpondError: pass  # CUDA cannot be used in a child\n"
        "    os._exit(retains() != [0, 1, 0, 0])\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "import atexit; atexit.register(lambda: print(retains()))\n"
    )
    assert with_fake(program) == "[0, 1, 0, 0]"


# --- Frameworks ---

_TORCH = """
torch = types.ModuleType("torch")
class Hooks:
    def __getattr__(self, name): return lambda address: None
class Allocator:
    def __init__(self, *given): self.given = given
    def allocator(self): return Hooks()
torch.current, torch.is_up = 0, False
torch.cuda = types.SimpleNamespace(
    is_initialized=lambda: torch.is_up, current_device=lambda: torch.current,
    memory=types.SimpleNamespace(
        CUDAPluggableAllocator=Allocator, change_current_allocator=lambda made: None
    ),
)
torch.device = lambda text: types.SimpleNamespace(index=int(text[5:]) if ":" in text else None)
sys.modules["torch"] = torch
"""


@needs_fake
@pytest.mark.parametrize(
    ("call", "rank", "expected"),
    [
        ("use('cuda+pool', 1)", "", 1),
        ("use('cuda+pool', 'cuda:3')", "", 3),
        ("use('cuda+pool', m.Device.find(2))", "", 2),
        ("use(m.stack('cuda+pool', m.Device.find(3)))", "1", 3),
        ("use('cuda+pool')", "2", 2),
        ("use('cuda+pool', 'cuda')", "2", 2),
        ("use()", "1", 1),
        ("use()", "", 0),
    ],
)
def test_pytorch_is_served_on_its_device_alone(call, rank, expected):
    program = _TORCH + (
        f"m.torch.{call}\n"
        "before = retains()\n"
        f"ptr = _library.malloc(1000, {expected}, None)\n"
        f"m.torch.memory_stats({expected}), m.torch.mem_get_info({expected}), m.torch.empty_cache()\n"
        "_library.free(ptr, 0, 0, None)\n"
        f"assert m.mr.get_per_device_resource({expected}).text == 'cuda+pool'\n"
        "print(before[:expected] == [0] * expected, retains())\n".replace("expected", str(expected))
    )
    retained = [int(device == expected) for device in range(4)]
    assert with_fake(program, LOCAL_RANK=rank) == f"True {retained}"


@needs_fake
def test_pytorch_that_is_set_up_names_the_line_to_move():
    program = _TORCH + (
        "torch.is_up, torch.current = True, 1\n"
        "try: m.torch.use('cuda+pool')\n"
        "except RuntimeError as error: print(error)\n"
        "assert retains() == [0] * 4\n"
    )
    said = with_fake(program).splitlines()
    assert "also in torch.cuda.set_device(). Move millpond.torch.use() above that call:" in said[0]
    assert said[1:3] == ['    millpond.torch.use("cuda+pool", 1)', "    torch.cuda.set_device(1)"]


@needs_fake
@pytest.mark.parametrize("given", ["None", "1", "m.Device.find(1)", "types.SimpleNamespace(device_id=1)"])
def test_all_frameworks_find_a_device_by_one_rule(given):
    program = (
        f"ordinal = _library.ordinal_of({given})\n"
        "assert ordinal == 1, ordinal\n"
        "on_three = m.stack('cuda+pool', m.Device.find(3))\n"
        "assert _library.ordinal_of(None, on_three) == 3\n"
        "assert _library.prepare('cuda+pool', ordinal).device.ordinal == 1\n"
        "assert _library.prepare(on_three, 3) is on_three\n"
        "print(retains())\n"
    )
    assert with_fake(program, LOCAL_RANK="1") == "[0, 1, 0, 1]"


# --- The default device ---


@needs_fake
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "cuda:0"),
        ({"LOCAL_RANK": "2"}, "cuda:2"),
        ({"LOCAL_RANK": "2", "FAKE_CUDA_DEVICES": "1"}, "cuda:0"),
        ({"LOCAL_RANK": "2", "MILLPOND_DEVICE": "cuda:1"}, "cuda:1"),
        ({"LOCAL_RANK": "", "MILLPOND_DEVICE": ""}, "cuda:0"),
        ({"LOCAL_RANK": "1", "MILLPOND_DEVICE": "sim:8GiB"}, "sim:0"),
    ],
)
def test_the_default_device_of_a_process(environment, expected):
    program = (
        "named = m.Device('sim:1GiB')\n"
        "assert m.mr.get_current_device_resource().device == m.Device() and retains() == [0] * 4\n"
        "assert m.Device.find(0).is_simulated == m.Device().is_simulated\n"
        "print(repr(m.Device()))\n"
    )
    assert with_fake(program, **environment) == f"<Device {expected}>"


@needs_fake
def test_a_rank_without_a_device_is_an_error_that_says_what_to_set():
    program = "try: m.Device()\nexcept m.NoDeviceError as error: print(error)\n"
    said = with_fake(program, LOCAL_RANK="7")
    assert "LOCAL_RANK" in said and "MILLPOND_DEVICE" in said and "cuda:0 to cuda:3" in said


needs_no_gpu = pytest.mark.skipif(not millpond.Device().is_simulated, reason="CUDA can be used here")


@needs_no_gpu
def test_a_device_that_is_named_first_is_not_the_default():
    program = (
        "named = m.Device('sim:1GiB')\n"
        "assert m.Device().memory_info()[1] == 8 << 30 and m.Device() != named\n"
        "assert m.mr.get_current_device_resource().device == m.Device() == m.Device.find(0)\n"
        "assert m.Device.find(1) == named\n"
        "m.reinitialize(pool_allocator=True, initial_pool_size=1 << 20)\n"
        "assert m.mr.get_per_device_resource(0) is m.mr.get_current_device_resource()\n"
        "print('end')\n"
    )
    assert script(program, MILLPOND_DEVICE="sim:8GiB") == "end"
    assert script(program.replace("== 8 << 30", "> 100 << 30")) == "end"


@needs_no_gpu
def test_a_default_that_cannot_be_made_leaves_named_devices_alone():
    program = (
        "named = m.Device('sim:1GiB')\n"
        "b = m.DeviceBuffer(size=100, mr=m.stack('cuda+pool', named))\n"
        "try: m.Device()\n"
        "except m.InvalidArgumentError as error: print(error)\n"
    )
    assert "MILLPOND_DEVICE: `gpu` is not a device" in script(program, MILLPOND_DEVICE="gpu")
