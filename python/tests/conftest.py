"""Set-up for all tests: each begins and ends with the initial default resource. A stand-in for PyTorch."""

import contextlib
import ctypes
import gc
import sys
import types

import pytest

import millpond


@pytest.fixture(autouse=True)
def _initial_default():
    millpond.mr.reset_per_device_resource(None)
    gc.freeze()  # so that the collection below sees only the objects of the test
    yield
    millpond.disable_logging()
    millpond.mr.reset_per_device_resource(None)
    gc.collect()


def needs(text):
    """Build a stack, or skip the test if the device does not support it."""
    try:
        return millpond.stack(text)
    except millpond.UnsupportedError as error:
        pytest.skip(f"{text}: {error}")


@pytest.fixture
def torch(monkeypatch):
    """A stand-in for PyTorch that records its arguments."""
    torch = types.ModuleType("torch")
    hooks, given = {}, {}

    class Hooks:
        def __getattr__(self, name):
            if not name.startswith("set_"):
                raise AttributeError(name)
            return lambda address: hooks.__setitem__(name, address)

    class Allocator:
        def __init__(self, path, allocate, free):
            library = ctypes.CDLL(path)
            given.update(allocate=allocate, free=free)
            assert getattr(library, allocate) and getattr(library, free)

        def allocator(self):
            return Hooks()

    memory = types.SimpleNamespace(
        CUDAPluggableAllocator=Allocator,
        change_current_allocator=lambda allocator: given.update(current=allocator),
        memory_stats=None, mem_get_info=None, memory_snapshot=None, set_per_process_memory_fraction=None,
        _snapshot=None, _dump_snapshot=None, _record_memory_history=None,
    )
    torch.cuda = types.SimpleNamespace(
        init=lambda: None, device=lambda ordinal: contextlib.nullcontext(),
        memory=memory, is_initialized=lambda: False, MemPool=lambda allocator: ("pool", allocator),
        use_mem_pool=lambda pool, device=None: contextlib.nullcontext(given.update(pool=pool)),
        memory_stats=None, mem_get_info=None,
    )
    torch.device = lambda text: types.SimpleNamespace(index=int(text.split(":")[1]) if ":" in text else None)
    torch.autograd = types.SimpleNamespace(
        set_multithreading_enabled=lambda on: contextlib.nullcontext(given.update(threads=on))
    )
    torch.hooks, torch.given = hooks, given
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "millpond.torch", raising=False)
    yield torch
    sys.modules.pop("millpond.torch", None)
