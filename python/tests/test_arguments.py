"""Wrong arguments are refused with an error that says what to pass."""

import subprocess
import sys

import pytest

import millpond
from millpond import mr


def base():
    return mr.CudaMemoryResource()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: millpond.reinitialize("cuda+pool"), TypeError, r"stack='cuda\+pool'"),
        (lambda: millpond.reinitialize(stack="cuda", initial_pool_size="1GiB"), ValueError, "`stack` stands"),
        (lambda: millpond.reinitialize(stack="cuda", pool_allocator=True), ValueError, "`stack` stands"),
        (lambda: millpond.reinitialize(devices="0"), TypeError, "the device's number"),
        (lambda: mr.LimitingResourceAdaptor(base(), 1.5), ValueError, "a whole number of bytes"),
        (lambda: mr.BinningMemoryResource(base(), 20, 10), ValueError, "20 > 10"),
        (lambda: mr.FailureCallbackResourceAdaptor(base(), 5), TypeError, "`callback` must be a function"),
        (lambda: mr.CallbackMemoryResource(5, print), TypeError, "`allocate_func` must be a function"),
        (lambda: mr.CallbackMemoryResource(print, 6), TypeError, "`deallocate_func` must be a function"),
        (lambda: millpond.memory_report(0), TypeError, r"millpond.stack\(text\) makes one"),
        (lambda: millpond.memory_report("cuda"), TypeError, r"millpond.stack\(text\) makes one"),
        (lambda: mr.PoolMemoryResource("cuda"), TypeError, r"millpond.stack\(text\) makes one"),
        (lambda: mr.BinningMemoryResource("cuda"), TypeError, r"millpond.stack\(text\) makes one"),
        (lambda: mr.FailureCallbackResourceAdaptor("cuda", print), TypeError, "not a millpond resource"),
        (lambda: millpond.stack("cuda", "sim:1"), TypeError, r"millpond.Device\('sim:1'\)"),
    ],
)
def test_a_wrong_argument_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert mr.get_current_device_resource().text == "cuda"


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
