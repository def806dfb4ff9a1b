"""Out of memory is a `MemoryError` with a report, for each size and on each stack."""

import ctypes
import functools
import importlib
import importlib.util
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from conftest import needs

import millpond
from millpond import mr

MIB = 1 << 20
STACKS = [
    "cuda",
    "managed",
    "pinned_host",
    "host",
    "system",
    "cuda_async",
    "cuda_async:max=1GiB",
    "cuda+pool",
    "cuda+pool:max=1GiB",
    "cuda+pool:pages=off",
    "cuda+arena",
    "cuda+fixed_size",
    "cuda+binning",
    "cuda+limiting:limit=1GiB",
    "cuda+pool+limiting:limit=1GiB",
    "cuda+pool+budget:name=large,limit=1GiB",
    "cuda+pool+statistics",
    "cuda+pool+tracking",
    "cuda+pool+thread_safe",
    "cuda+pool+aligned:alignment=4KiB",
    "cuda+pool+capture_scopes",
    f"cuda+pool+plan:file={Path(__file__).parent / 'one_block.plan'}",
    "cuda+pool+prefetch",
    "cuda+pool+retry:timeout=1ms",
    "cuda+pool+fallback:to=(managed)",
    "cuda+limiting:limit=1GiB+pool",
]
SIZES = [*(1 << power for power in range(50, 66)), *((1 << 64) - less for less in (1, 2, 256, 257)), 1 << 70]


@pytest.mark.parametrize("text", STACKS)
def test_a_request_that_is_too_large_is_a_memory_error_with_a_report(text):
    resource = needs(text)
    for size in SIZES:
        for ask in (
            functools.partial(millpond.DeviceBuffer, size=size, mr=resource),
            functools.partial(resource.allocate, size),
        ):
            with pytest.raises(millpond.OutOfMemoryError) as caught:
                ask()
            assert isinstance(caught.value, MemoryError)
            assert caught.value.data["requested_bytes"] >= min(size, (1 << 64) - 1), (size, caught.value)
            assert caught.value.report in str(caught.value)


@pytest.mark.parametrize("size", [1 << 50, 1 << 60, (1 << 64) - 1, 1 << 64])
def test_a_buffer_that_cannot_grow_stays_as_it_is(size):
    buffer = millpond.to_device(b"kept")
    for grow in (buffer.resize, buffer.reserve):
        with pytest.raises(MemoryError):
            grow(size)
        assert (buffer.size, buffer.tobytes()) == (4, b"kept")


def test_a_size_is_no_negative_number_and_no_text():
    resource = millpond.stack("cuda")
    for ask in (lambda it: millpond.DeviceBuffer(size=it), resource.allocate):
        wrongs = [(-1, OverflowError), (-(1 << 70), OverflowError), ("1", TypeError), (1.5, TypeError)]
        for wrong, error in wrongs:
            with pytest.raises(error):
                ask(wrong)


def test_a_failure_callback_is_called_for_each_size():
    for text in ("cuda", "cuda+pool", "cuda+fixed_size", "cuda+limiting:limit=1GiB", "cuda_async"):
        asked = []
        resource = mr.FailureCallbackResourceAdaptor(millpond.stack(text), asked.append)
        for size in (1 << 50, 1 << 60, (1 << 64) - 1):
            with pytest.raises(MemoryError):
                resource.allocate(size)
        assert asked == [1 << 50, 1 << 60, (1 << 64) - 1], text


def _limited(handle):
    return mr.FailureCallbackResourceAdaptor(mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), MIB), handle)


def test_what_a_failure_callback_raises_is_the_cause():
    def handle(nbytes):
        return 1 / 0

    with pytest.raises(millpond.OutOfMemoryError) as caught:
        millpond.DeviceBuffer(size=2 * MIB, mr=_limited(handle))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.data["maximum_bytes"] == MIB


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes_a_failure_callback(signal):
    def handle(nbytes):
        raise signal

    with pytest.raises(signal):
        millpond.DeviceBuffer(size=2 * MIB, mr=_limited(handle))


def test_what_a_callback_raised_is_no_cause_of_a_later_error():
    def handle(nbytes):
        raise KeyError("of an earlier call")

    served = mr.FallbackResourceAdaptor(_limited(handle))
    buffer = millpond.DeviceBuffer(size=2 * MIB, mr=served)
    with pytest.raises(millpond.OutOfMemoryError) as caught:
        millpond.DeviceBuffer(size=1 << 50, mr=mr.CudaMemoryResource())
    assert caught.value.__cause__ is None and buffer.size == 2 * MIB


# --- PyTorch's process-wide mode ---

_SHIM = """
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
// As PyTorch does: an exception of an allocator becomes a `RuntimeError` with its text.
extern "C" void *allocate(void *(*from)(size_t, int32_t, void *), size_t bytes, char *text, size_t room) {
    try {
        return from(bytes, 0, nullptr);
    } catch (const std::exception &error) {
        std::strncpy(text, error.what(), room - 1);
        return nullptr;
    }
}
"""


@pytest.fixture(scope="module")
def torchs_allocator(tmp_path_factory):
    compiler = shutil.which("c++") or pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.cpp").write_text(_SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.cpp"], check=True)
    shim = ctypes.CDLL(str(folder / "shim.so"))
    shim.allocate.restype = ctypes.c_void_p
    shim.allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    library = importlib.import_module("millpond._library")
    from_ = library.address_of("malloc_or_throw")

    def allocate(size):
        text = ctypes.create_string_buffer(1 << 16)
        ptr = shim.allocate(from_, size, text, len(text))
        if not ptr:
            raise RuntimeError(text.value.decode())
        return ptr

    return allocate


def test_pytorchs_mode_says_that_memory_is_out_as_pytorch_does(torchs_allocator):
    for size in (1 << 50, 1 << 60, (1 << 64) - 1):
        with pytest.raises(RuntimeError, match=r"^CUDA out of memory\. ") as caught:
            torchs_allocator(size)
        # Lightning looks for these words.
        assert "CUDA" in caught.value.args[0] and "out of memory" in caught.value.args[0]


@pytest.fixture
def accelerate(monkeypatch):
    """The file of accelerate that searches for a batch size. The rest of accelerate needs PyTorch."""
    installed = importlib.util.find_spec("accelerate")
    if installed is None:
        pytest.skip("SKIPPED: accelerate is not installed")
    emptied = []
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(empty_cache=lambda: emptied.append(True))
    package, utils = types.ModuleType("accelerate"), types.ModuleType("accelerate.utils")
    utils.__path__ = [str(Path(installed.origin).parent / "utils")]
    imports = types.ModuleType("accelerate.utils.imports")
    imports.__getattr__ = lambda name: lambda *_, **__: name == "is_cuda_available"
    for module in (torch, package, utils, imports):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "accelerate.utils.memory", raising=False)
    yield importlib.import_module("accelerate.utils.memory")
    sys.modules.pop("accelerate.utils.memory", None)


def test_accelerate_finds_a_batch_size(accelerate, torchs_allocator):
    tried = []

    @accelerate.find_executable_batch_size(starting_batch_size=128)
    def train(batch_size):
        tried.append(batch_size)
        return batch_size, torchs_allocator(batch_size << 32)

    size, ptr = train()
    importlib.import_module("millpond._library").library.millpond_free(
        ctypes.c_void_p(ptr), ctypes.c_size_t(0), ctypes.c_int32(0), None
    )
    free, _ = mr.get_current_device_resource().memory_info()
    assert tried[0] == 128 and len(tried) > 1 and size << 32 <= free
