"""PyTorch, CuPy, Numba, RMM and cuda.core, each if it is installed and a GPU is available."""

import importlib.util

import millpond


def torch_program() -> None:
    """Train with a pool, or with all memory of the process from millpond."""
    import torch

    import millpond.torch

    millpond.torch.use("cuda+pool", torch.device("cuda", 0))
    free, total = millpond.torch.mem_get_info("cuda:0")
    assert 0 <= free <= total
    stream = torch.cuda.Stream()
    buffer = millpond.DeviceBuffer(size=1000, stream=stream)
    tensor = torch.from_dlpack(buffer)
    print(tensor.sum(), millpond.torch.memory_stats()["num_ooms"], millpond.torch.memory_report())


def torch_pool() -> None:
    """Allocate inside a PyTorch pool."""
    import torch

    with millpond.torch.use_mem_pool(millpond.torch.mem_pool(millpond.stack("cuda+pool"))) as pool:
        print(torch.zeros(1000, device="cuda"), pool)


def cupy_program() -> None:
    """Allocate arrays, and use one on another stream."""
    import cupy

    millpond.cupy.use("cuda+pool")
    array, stream = cupy.zeros(1000), cupy.cuda.Stream()
    millpond.cupy.record_stream(array, stream)
    millpond.cupy.disable()


def numba_program() -> None:
    """Allocate for a stream."""
    from numba import cuda

    millpond.numba.use()
    with millpond.numba.stream(cuda.stream()):
        print(cuda.device_array(1000), millpond.numba.memalloc_calls())


def others() -> None:
    """Make resources of cuda.core and RMM."""
    made = millpond.cuda_core.use("cuda+pool", device=0)
    print(made.allocate(1000), millpond.rmm.use(device=millpond.Device()))


PROGRAMS = {"torch": torch_program, "cupy": cupy_program, "numba": numba_program, "rmm": others}

if __name__ == "__main__" and not millpond.Device().is_simulated:
    for name, program in PROGRAMS.items():
        if importlib.util.find_spec(name) is not None:
            program()
