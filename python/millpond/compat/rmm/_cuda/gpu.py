"""RMM's module `rmm._cuda.gpu`: CUDA's devices and versions, through `cuda.bindings`.

All functions except `getDevice` need the package `cuda-bindings` and a CUDA driver. If CUDA returns an error,
they raise `CUDARuntimeError` or `CUDADriverError`.
"""

from typing import Any

from .... import Device, _library


def _binding(name: str) -> Any:
    return _library.framework(f"cuda.bindings.{name}", "cuda-bindings")


class CUDARuntimeError(RuntimeError):
    """CUDA's runtime returned an error; `status` is its `cudaError_t`."""

    def __init__(self, status: Any) -> None:
        runtime = _binding("runtime")
        self.status = status
        texts = runtime.cudaGetErrorName(status)[1], runtime.cudaGetErrorString(status)[1]
        super().__init__(": ".join(text.decode() for text in texts))

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return type(self), (self.status,)


class CUDADriverError(RuntimeError):
    """CUDA's driver returned an error; `status` is its `CUresult`."""

    def __init__(self, status: Any) -> None:
        driver = _binding("driver")
        self.status = status
        texts = driver.cuGetErrorName(status)[1], driver.cuGetErrorString(status)[1]
        super().__init__(": ".join(text.decode() for text in texts))

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return type(self), (self.status,)


def _ask(name: str, *arguments: Any) -> Any:
    """Call a function of CUDA's runtime, and return its results without the status."""
    status, *answer = getattr(_binding("runtime"), name)(*arguments)
    if status:
        raise CUDARuntimeError(status)
    return answer[0] if answer else None


def driverGetVersion() -> int:
    """Return the latest CUDA version that the driver supports, such as 13000 for 13.0; 0 without a driver."""
    return int(_ask("cudaDriverGetVersion"))


def runtimeGetVersion() -> int:
    """Return the version of CUDA's runtime, such as 13000 for 13.0."""
    return int(_ask("getLocalRuntimeVersion"))


def getDevice() -> int:
    """Return the number of the current device: a CUDA device or, without CUDA, the simulated one.

    >>> getDevice()
    0
    """
    return Device().ordinal


def setDevice(device: int) -> None:
    """Make the device with this number CUDA's current device."""
    _ask("cudaSetDevice", device)


def getDeviceCount() -> int:
    """Return how many CUDA devices there are."""
    return int(_ask("cudaGetDeviceCount"))


def getDeviceAttribute(attr: Any, device: int) -> int:
    """Return an attribute (`cudaDeviceAttr`) of the device with this number."""
    return int(_ask("cudaDeviceGetAttribute", attr, device))


def getDeviceProperties(device: int) -> Any:
    """Return the `cudaDeviceProp` of the device with this number."""
    return _ask("cudaGetDeviceProperties", device)


def deviceGetName(device: int) -> str:
    """Return the name of the device with this number."""
    driver = _binding("driver")
    status, name = driver.cuDeviceGetName(256, driver.CUdevice(device))
    if status:
        raise CUDADriverError(status)
    return str(name.split(b"\0")[0].decode())
