"""Mistakes that a type checker must find. mypy refuses this file if one of them passes."""

import millpond
from millpond import mr

if not millpond.is_initialized():  # never run
    millpond.DeviceBuffer(sizee=3)  # type: ignore[call-arg]
    millpond.DeviceBuffer(size="3")  # type: ignore[arg-type]
    millpond.DeviceBuffer(size=3, stream=None)  # type: ignore[arg-type]
    millpond.reinitialize(pool_alocator=True)  # type: ignore[call-arg]
    mr.PoolMemoryResource(mr.CudaMemoryResource(), initial=3)  # type: ignore[call-arg]
    mr.set_current_device_resource("cuda+pool")  # type: ignore[arg-type]
    mr.FailureCallbackResourceAdaptor(mr.CudaMemoryResource(), lambda: True)  # type: ignore[misc, arg-type]
    peak = millpond.statistics.get_statistics().peak_bytes  # type: ignore[union-attr]
    millpond.to_device("text")  # type: ignore[arg-type]
    millpond.cuppy.use()  # type: ignore[attr-defined]
