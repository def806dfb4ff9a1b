"""Numba, CuPy and PyTorch over one stack in one process, with their real libraries on a GPU."""

import gc

import harness

if __name__ != "__main__":
    harness.needs("numba", "cupy", "torch")

SIZE = 64 << 20


def one_stack():
    """One library reuses the memory that another freed on the same stream, so the pool does not grow."""
    import torch

    import millpond
    import millpond.cupy
    import millpond.numba
    import millpond.torch

    stack = millpond.stack("cuda+pool:pages=off+statistics")
    millpond.torch.use(stack)
    millpond.numba.use(stack)
    millpond.cupy.use(stack)
    import cupy as cp
    import numpy as np
    from numba import cuda

    def reserved():
        return millpond.mr.get_current_device_resource().counts()["bytes_reserved"]

    assert millpond.mr.get_current_device_resource().text == stack.text
    tensor = torch.full((SIZE,), 1, dtype=torch.uint8, device="cuda")
    assert harness.in_use() >= SIZE
    first, at_first = tensor.data_ptr(), reserved()
    del tensor
    array = cp.full(SIZE, 2, cp.uint8)
    second = array.data.ptr
    assert int(array[-1]) == 2
    del array
    gc.collect()
    numbas = cuda.device_array(SIZE, np.uint8)
    third = numbas.device_ctypes_pointer.value
    print(f"addresses {first:#x} {second:#x} {third:#x}; reserved {at_first} then {reserved()} bytes")
    assert reserved() < at_first + SIZE
    calls = millpond.numba.memalloc_calls()
    assert calls > 0
    del numbas
    gc.collect()


def test_one_stack():
    harness.run(__file__, "one_stack")


if __name__ == "__main__":
    harness.main(globals())
