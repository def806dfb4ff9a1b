"""RMM's Python interface, implemented by millpond. Programs written for RMM run on millpond's resources.

>>> import millpond.compat.rmm as rmm
>>> rmm.reinitialize(pool_allocator=True, initial_pool_size="1GiB")
>>> buffer = rmm.DeviceBuffer.to_device(b"abc")
>>> bytes(buffer)
b'abc'

If a program says `import rmm`, call `install()` first. The classes of `mr` are the classes of `millpond.mr`.
`rmm.mr.set_current_device_resource` sets millpond's default resource. Extensions that were compiled against
RMM, such as cuDF and cuML, need RMM itself. For them, call `millpond.rmm.use()`.
"""

import importlib
import pkgutil
import sys

from ...logger import (
    flush_logger,
    get_flush_level,
    get_logging_level,
    level_enum,
    set_flush_level,
    set_logging_level,
    should_log,
)
from . import _cuda, allocators, librmm, mr, pylibrmm, statistics
from ._version import __git_commit__, __version__
from .allocators.cupy import rmm_cupy_allocator
from .mr import disable_logging, enable_logging, get_log_filenames
from .pylibrmm.device_buffer import DeviceBuffer, to_device
from .rmm import (
    RMMError,
    is_initialized,
    register_reinitialize_hook,
    reinitialize,
    unregister_reinitialize_hook,
)


def install() -> None:
    """Register this package and all its modules as `rmm` for every later `import rmm`.

    A second call changes nothing. RMM itself may be installed, but must not be imported.

    Raises:
        ImportError: RMM itself is already imported, so the program would use both.

    Example:
        >>> import millpond.compat.rmm
        >>> millpond.compat.rmm.install()  # doctest: +SKIP
        >>> import rmm.mr  # doctest: +SKIP
        >>> rmm.mr is millpond.compat.rmm.mr  # doctest: +SKIP
        True
    """
    this = sys.modules[__name__]
    known = sys.modules.get("rmm", this)
    if known is not this:
        raise ImportError(
            f"rmm is imported already, from {getattr(known, '__file__', None)}: "
            "call millpond.compat.rmm.install() above the first `import rmm`"
        )
    names = [module.name for module in pkgutil.walk_packages(__path__, f"{__name__}.")]
    modules = {name: importlib.import_module(name) for name in names}
    sys.modules["rmm"] = this
    for name, module in modules.items():
        sys.modules["rmm" + name.removeprefix(__name__)] = module


__all__ = [
    "DeviceBuffer",
    "RMMError",
    "__git_commit__",
    "__version__",
    "_cuda",
    "allocators",
    "disable_logging",
    "enable_logging",
    "flush_logger",
    "get_flush_level",
    "get_log_filenames",
    "get_logging_level",
    "install",
    "is_initialized",
    "level_enum",
    "librmm",
    "mr",
    "pylibrmm",
    "register_reinitialize_hook",
    "reinitialize",
    "rmm_cupy_allocator",
    "set_flush_level",
    "set_logging_level",
    "should_log",
    "statistics",
    "to_device",
    "unregister_reinitialize_hook",
]
