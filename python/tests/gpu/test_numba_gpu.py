"""millpond.numba with the real Numba on a GPU."""

import gc

import harness
import pytest

if __name__ != "__main__":
    harness.needs("numba")


def arrays():
    import numpy as np
    from numba import cuda

    import millpond.numba

    millpond.numba.use()

    @cuda.jit
    def double(array):
        i = cuda.grid(1)
        if i < array.size:
            array[i] *= 2

    array = cuda.to_device(np.arange(10_000, dtype=np.float32))
    assert harness.in_use() >= 40_000 and millpond.numba.memalloc_calls() > 0
    double[(10_000 + 255) // 256, 256](array)
    np.testing.assert_array_equal(array.copy_to_host(), 2 * np.arange(10_000, dtype=np.float32))
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free <= total
    with cuda.defer_cleanup():
        del array
        gc.collect()
        assert harness.in_use() > 0
    gc.collect()
    assert harness.in_use() == 0
    stream = cuda.stream()
    with millpond.numba.stream(stream):
        array = cuda.device_array(1000, np.float32, stream=stream)
    millpond.numba.record_stream(array, cuda.stream())
    with pytest.raises(millpond.OutOfMemoryError) as caught:
        cuda.device_array(1 << 47, np.uint8)
    assert isinstance(caught.value, cuda.cudadrv.driver.CudaAPIError)


def by_environment():
    import numpy as np
    from numba import cuda

    array = cuda.to_device(np.ones(100))
    import millpond.numba

    assert millpond.numba.memalloc_calls() > 0 and harness.in_use() > 0
    assert array.copy_to_host().sum() == 100


def reset():
    import numpy as np
    from numba import cuda

    import millpond
    import millpond.numba

    millpond.numba.use()
    old = cuda.to_device(np.ones(1 << 20, np.uint8))
    address = old.device_ctypes_pointer.value
    cuda.close()
    fresh = [cuda.to_device(np.full(1 << 20, i, np.uint8)) for i in range(4)]
    assert millpond.mr.get_current_device_resource().text == millpond.numba.DEFAULT_STACK
    held = harness.in_use()
    del old
    gc.collect()
    assert harness.in_use() == held
    for i, array in enumerate(fresh):
        assert (array.copy_to_host() == i).all()
    print("same address again:", address in [array.device_ctypes_pointer.value for array in fresh])


def reset_of_a_resource():
    import numpy as np
    from numba import cuda

    import millpond
    import millpond.numba

    millpond.numba.use(millpond.stack("cuda+pool:pages=off+statistics"))
    cuda.to_device(np.ones(10))
    cuda.close()
    assert cuda.to_device(np.ones(10)).copy_to_host().sum() == 10
    assert millpond.mr.get_current_device_resource().text == "cuda+pool:pages=off+statistics"


def ipc():
    import ctypes
    import multiprocessing

    import numpy as np
    from numba import cuda

    import millpond.numba

    millpond.numba.use()
    first = cuda.to_device(np.zeros(1000, np.float32))  # the next array then has an offset
    array = cuda.to_device(np.arange(1000, dtype=np.float32))
    handle = cuda.current_context().get_ipc_handle(array.gpu_data)
    data = ctypes.string_at(handle.handle.getPtr(), 64)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_open, args=(data, handle.offset, queue))
    child.start()
    total = queue.get(timeout=60)
    child.join()
    assert total == np.arange(1000).sum(), total
    del first


def _open(data, offset, queue):
    import ctypes

    import numpy as np
    from numba import cuda
    from numba.cuda.cudadrv import driver

    handle = driver.binding.CUipcMemHandle()
    ctypes.memmove(handle.getPtr(), data, 64)
    made = driver.IpcHandle(None, handle, 4000, None, offset=offset)
    array = made.open_array(cuda.current_context(), shape=(1000,), dtype=np.dtype(np.float32))
    queue.put(float(array.copy_to_host().sum()))
    made.close()


@pytest.mark.parametrize("name", ["arrays", "reset", "reset_of_a_resource", "ipc"])
def test_program(name):
    quiet = {"NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"}
    done = harness.run(__file__, name, environment=quiet)
    assert done.stderr == ""


def test_by_environment():
    harness.run(__file__, "by_environment", environment={"NUMBA_CUDA_MEMORY_MANAGER": "millpond.numba"})


if __name__ == "__main__":
    harness.main(globals())
