"""RMM's allocators for CuPy, Numba and PyTorch. The tests use real classes if these need no GPU, and
stand-ins otherwise.

`gpu/rmm_suite.sh` runs RMM's own tests with the real classes on a GPU.
"""

import os
import subprocess
import sys
import types

import pytest

import millpond
from millpond.compat import rmm


@pytest.fixture
def driver():
    return pytest.importorskip("numba.cuda.cudadrv.driver", reason="SKIPPED: numba-cuda is not installed")


@pytest.fixture
def manager(driver):
    context = types.SimpleNamespace(device=types.SimpleNamespace(id=0))
    made = rmm.allocators.numba.manager_class(driver)(context=types.SimpleNamespace(**vars(context)))
    made.kept = made.context = type("Context", (), vars(context))()  # a class that allows weak references
    made.initialize()
    return made


def counted():
    resource = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaMemoryResource())
    rmm.mr.set_current_device_resource(resource)
    return resource


def test_numbas_arrays_follow_the_current_resource(manager, driver):
    first = counted()
    one = manager.memalloc(100)
    second = counted()
    two = manager.memalloc(300)
    assert isinstance(one, driver.MemoryPointer) and int(one.device_pointer) and two.size == 300
    assert first.allocation_counts.current_bytes == 100 and second.allocation_counts.current_bytes == 300
    del one, two
    assert first.allocation_counts.current_bytes == second.allocation_counts.current_bytes == 0
    assert manager.interface_version == 1 and manager.get_memory_info() == second.memory_info()


def test_what_the_driver_refuses_is_numbas_memory_error(manager, monkeypatch):
    def refused(size):
        raise millpond.DriverError("there is no such pool")

    monkeypatch.setattr(rmm.allocators.numba, "DeviceBuffer", refused)
    with pytest.raises(MemoryError, match="there is no such pool"):
        manager.memalloc(100)


def test_a_pointer_of_before_a_reset_frees_nothing_of_after(manager):
    resource = counted()
    old = manager.memalloc(100)
    manager.reset()
    assert resource.allocation_counts.current_bytes == 0
    fresh = manager.memalloc(100)
    del old
    assert resource.allocation_counts.current_bytes == 100 and fresh.size == 100


@pytest.mark.parametrize("name", ["rmm.allocators.numba", "millpond.compat.rmm.allocators.numba"])
def test_numba_finds_rmms_manager_by_the_environment_variable(driver, name):
    program = (
        "import millpond.compat.rmm; millpond.compat.rmm.install()\n"
        "from numba.cuda.cudadrv import driver\n"
        "driver._ensure_memory_manager()\n"
        "from rmm.allocators.numba import RMMNumbaManager\n"
        "assert driver._memory_manager is RMMNumbaManager, driver._memory_manager\n"
    )
    environment = os.environ | {"NUMBA_CUDA_MEMORY_MANAGER": name}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_cupys_memory_has_a_buffer_as_its_owner(monkeypatch):
    stream = millpond.Stream()
    cuda = types.SimpleNamespace(
        get_current_stream=lambda: types.SimpleNamespace(ptr=stream.ptr),
        UnownedMemory=lambda *given: types.SimpleNamespace(
            zip=dict(zip(("ptr", "size", "owner", "device"), given, strict=True))
        ),
        MemoryPointer=lambda memory, offset: (memory.zip, offset),
        runtime=types.SimpleNamespace(getDevice=lambda: 0),
    )
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    resource = counted()
    memory, offset = rmm.rmm_cupy_allocator(42)
    owner = memory["owner"]
    assert (memory["size"], memory["device"], offset) == (42, 0, 0) and memory["ptr"] == owner.ptr != 0
    assert isinstance(owner, rmm.DeviceBuffer) and owner.stream == stream
    assert resource.allocation_counts.current_bytes == 42
    empty, _ = rmm.allocators.cupy.rmm_cupy_allocator(0)
    assert (empty["ptr"], empty["size"]) == (0, 0) and isinstance(empty["owner"], rmm.DeviceBuffer)


def test_cupy_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match="cupy cannot be imported .*pip install"):
        rmm.rmm_cupy_allocator(1)


@pytest.fixture
def torch_allocator():
    """Read the allocator again before and after a test."""
    rmm.allocators.torch._allocator.cache_clear()
    yield lambda: rmm.allocators.torch.rmm_torch_allocator
    rmm.allocators.torch._allocator.cache_clear()


def test_without_pytorch_or_a_gpu_its_allocator_is_none(monkeypatch, torch_allocator):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert torch_allocator() is None
    rmm.allocators.torch._allocator.cache_clear()
    cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert torch_allocator() is None
    with pytest.raises(AttributeError):
        _ = rmm.allocators.torch.nothing


def test_pytorchs_allocator_is_made_once_over_the_functions_that_throw(monkeypatch, torch_allocator):
    made = []

    class Allocator:
        def __init__(self, path, allocate, free):
            made.append((path, allocate, free))

        def allocator(self):
            # A different method sets each hook.
            return types.SimpleNamespace(**dict.fromkeys(HOOKS, made.append))

    memory = types.SimpleNamespace(CUDAPluggableAllocator=Allocator)
    cuda = types.SimpleNamespace(is_available=lambda: True, memory=memory)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    allocator = torch_allocator()
    assert isinstance(allocator, Allocator) and torch_allocator() is allocator
    assert made[0] == (millpond.library_path(), "millpond_malloc_or_throw", "millpond_free")
    assert len(made) == 1 + len(HOOKS) and all(made[1:])


HOOKS = (
    "set_record_stream_fn",
    "set_reset_fn",
    "set_base_alloc_fn",
    "set_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn",
    "set_release_pool",
)
