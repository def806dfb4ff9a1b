"""millpond: composable, stream-ordered memory resources for GPUs.

>>> import millpond
>>> millpond.mr.set_current_device_resource(millpond.stack("cuda+pool:initial=64MiB+statistics"))
>>> buffer = millpond.DeviceBuffer(size=1000)
>>> millpond.mr.get_current_device_resource().allocation_counts.current_bytes
1000

`millpond.mr` has the resources under RMM's names. `millpond.statistics` has counters and a profiler.
`millpond.metrics` has metrics for Prometheus and OpenTelemetry.
`millpond.typing` has types for annotations. `millpond.torch`, `millpond.cupy`, `millpond.numba`,
`millpond.rmm`, `millpond.cuda_core` and `millpond.dask` let other libraries use millpond's memory. Each of
these six modules is imported when the program first uses it. On a machine without a GPU, millpond uses a
simulated device.
"""

import importlib as _importlib
import os as _os
import sys as _sys
import typing as _typing
from pathlib import Path as _Path

from . import _native


def _load() -> _Path:
    named = _os.environ.get("MILLPOND_LIBRARY")
    path = _Path(named) if named else _Path(__file__).with_name("libmillpond.so")
    _native.load(path)
    return path


_LIBRARY = _load()
__version__ = _native.version()

from ._errors import (  # noqa: E402
    BusyError,
    DriverError,
    InvalidArgumentError,
    LogFileError,
    MillpondError,
    NoDeviceError,
    OutOfMemoryError,
    PoisonedError,
    StackError,
    UnsupportedError,
)
from ._native import Device, DeviceBuffer, Stream, from_dlpack, to_device  # noqa: E402
from . import mr, statistics  # noqa: E402
from .mr import (  # noqa: E402
    disable_logging,
    enable_logging,
    get_log_filenames,
    is_initialized,
    register_reinitialize_hook,
    reinitialize,
    stack,
    unregister_reinitialize_hook,
)
from .logger import (  # noqa: E402
    flush_logger,
    get_flush_level,
    get_logging_level,
    level_enum,
    set_flush_level,
    set_logging_level,
    should_log,
)
from .report import MemoryReport, memory_report  # noqa: E402
from .snapshot import memory_snapshot, record_memory_history, stop_memory_history  # noqa: E402
from .stream import (  # noqa: E402
    DEFAULT_STREAM,
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    CudaStreamFlags,
    StreamPool,
)


#: Modules that are imported when a program first uses their names, for example in `millpond.cupy.use()`.
_ON_DEMAND = frozenset(
    {"compat", "cuda_core", "cupy", "dask", "metrics", "numba", "replay", "rmm", "rmm_bridge", "torch"}
)


if _typing.TYPE_CHECKING:
    from . import (  # noqa: F401
        compat,
        cuda_core,
        cupy,
        dask,
        metrics,
        numba,
        replay,
        rmm,
        rmm_bridge,
        torch,
        typing,
    )
else:

    def __getattr__(name):
        if name in _ON_DEMAND:
            return _importlib.import_module(f"{__name__}.{name}")
        if name == "_numba_memory_manager":  # Numba reads this name for NUMBA_CUDA_MEMORY_MANAGER=millpond
            from . import numba

            return numba.manager_class(numba._driver_asking(_sys._getframe(1)))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(globals().keys() | _ON_DEMAND)


def library_path() -> str:
    """Return the path of the libmillpond that this process uses, for code that loads the library itself.

    Example:
        >>> import ctypes
        >>> import millpond
        >>> library = ctypes.CDLL(millpond.library_path())
    """
    return str(_LIBRARY)


def get_include() -> str:
    """Return the folder of the headers for C and C++. It contains `millpond.h` and `millpond/millpond.hpp`.

    If you compile a library with these headers and link it to `library_path()`, the library shares this
    process's resources.

    Example:
        >>> import pathlib
        >>> import millpond
        >>> (pathlib.Path(millpond.get_include()) / "millpond.h").exists()
        True
    """
    return str(_Path(__file__).with_name("include"))


__all__ = [
    "DEFAULT_STREAM",
    "LEGACY_DEFAULT_STREAM",
    "PER_THREAD_DEFAULT_STREAM",
    "BusyError",
    "CudaStreamFlags",
    "Device",
    "DeviceBuffer",
    "DriverError",
    "InvalidArgumentError",
    "LogFileError",
    "MemoryReport",
    "MillpondError",
    "NoDeviceError",
    "OutOfMemoryError",
    "PoisonedError",
    "StackError",
    "Stream",
    "StreamPool",
    "UnsupportedError",
    "disable_logging",
    "enable_logging",
    "flush_logger",
    "from_dlpack",
    "get_flush_level",
    "get_include",
    "get_log_filenames",
    "get_logging_level",
    "is_initialized",
    "level_enum",
    "library_path",
    "memory_report",
    "memory_snapshot",
    "mr",
    "record_memory_history",
    "register_reinitialize_hook",
    "reinitialize",
    "set_flush_level",
    "set_logging_level",
    "should_log",
    "stack",
    "statistics",
    "stop_memory_history",
    "to_device",
    "unregister_reinitialize_hook",
]
