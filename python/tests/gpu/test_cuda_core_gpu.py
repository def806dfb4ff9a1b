"""millpond.cuda_core and millpond.rmm with the real libraries on a GPU."""

import importlib.util

import harness
import pytest

if __name__ != "__main__":
    harness.needs()


def cuda_core():
    from cuda.core import Device

    import millpond.cuda_core

    device = Device()
    device.set_current()
    millpond.cuda_core.use("cuda+pool")
    stream = device.create_stream()
    buffer = device.allocate(1000, stream=stream)
    assert harness.in_use() >= 1000 and buffer.size == 1000
    buffer.close(stream)
    other = device.memory_resource.allocate(1000, stream=stream)
    del other
    stream.sync()
    assert harness.in_use() == 0


def rmm():
    import rmm as theirs

    import millpond
    import millpond.rmm

    millpond.rmm.use("cuda+pool")
    buffer = theirs.DeviceBuffer(size=1000)
    assert harness.in_use() >= 1000
    del buffer
    assert harness.in_use() == 0
    with pytest.raises(MemoryError):
        theirs.DeviceBuffer(size=1 << 47)
    millpond.rmm.disable()
    theirs.DeviceBuffer(size=1000)
    assert millpond.mr.get_current_device_resource().counts()["allocations"] == 1


@pytest.mark.parametrize(("name", "module"), [("cuda_core", "cuda.core"), ("rmm", "rmm")])
def test_program(name, module):
    try:
        is_installed = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        pytest.skip(f"SKIPPED: {module} is not installed")
    harness.run(__file__, name)


if __name__ == "__main__":
    harness.main(globals())
