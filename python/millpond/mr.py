"""Memory resources and adaptors under RMM's names, and the default resource of each device.

A class here is a layer of a stack. `millpond.stack(text)` builds any stack, also what has no class.
"""

import functools
import os
import re

from . import _locks
from ._errors import InvalidArgumentError, UnsupportedError
from ._native import (
    Device,
    Resource,
    build_layer_file,
    default_resource,
    layer_below,
    layer_bins,
    layer_name,
    log_file,
    parse_size,
    reset_default_resource,
)


def parse_bytes(size):
    """Return a size in bytes: an int, or a text as "4GiB" or "1.5 MB"."""
    if not isinstance(size, str):
        size_bytes = int(size)
        if 0 < size < 1:
            raise ValueError(f'{size!r} is less than a byte; did you mean "{100 * size:g}%"?')
        if size_bytes < 0:
            raise ValueError(f"a size cannot be negative: {size!r}")
        return size_bytes
    size_bytes, percent = parse_size(size)
    if percent:
        raise ValueError(f"{size!r} is a share, and bytes are needed; write for example 4GiB")
    return size_bytes


def _size(size):
    """Return a size as text of a stack: an int is in bytes, a text is as "4GiB" or "50%"; None stays."""
    if size is None:
        return None
    if not isinstance(size, str):
        return f"{parse_bytes(size)}B"
    size_bytes, percent = parse_size(size)
    return f"{percent:.17g}%" if percent else f"{size_bytes}B"


def _options(**options):
    """Return the options of a layer as text; those that are None are left out."""
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    return ":" + ",".join(given) if given else ""


class DeviceMemoryResource(Resource):
    """The base class of all resources: allocate and deallocate, in stream order."""

    # In a cycle that is collected, functions of the program are still whole now, and not later. No step of
    # Python's: Ctrl-C that comes in a finaliser is lost.
    __del__ = Resource._finalise

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__del__")
        if own is not None:

            @functools.wraps(own)
            def finalise(self):
                try:
                    own(self)
                finally:
                    self._finalise()

            cls.__del__ = finalise

    def pool_size(self):
        """Return the bytes that are held from below."""
        return self.counts()["bytes_reserved"]


class UpstreamResourceAdaptor(DeviceMemoryResource):
    """The base class of the resources over another one."""

    _upstream = None

    def _on(self, upstream_mr, text, **file):
        """Build this layer from text; a file by its option's name is never a part of the text."""
        if upstream_mr is None:
            raise TypeError("Argument `upstream_mr` must not be None")
        self._upstream = upstream_mr
        for key, path in file.items():
            build_layer_file(self, upstream_mr, text, key, os.fsencode(path))
        if not file:
            self._layer(upstream_mr, text)

    @property
    def upstream_mr(self):
        """The resource below; None below a base."""
        if self._upstream is None:
            below = layer_below(self)
            self._upstream = None if below is None else _as_class(below)
        return self._upstream

    def get_upstream(self):
        """Return the resource below."""
        return self.upstream_mr


class _Stack(UpstreamResourceAdaptor):
    """A stack from text whose outermost layer has no class of its own."""

    def __init__(self, text, device=None):
        self._build(text, device)


def stack(text, device=None):
    """Build a stack from text, base first, as "cuda+pool:initial=1GiB+statistics".

    The object is of its outermost layer's class, as `PoolMemoryResource`.
    """
    return _as_class(_Stack(text, device))


def _as_class(resource):
    """Return a resource as an object of its outermost layer's class."""
    kind = _BY_LAYER.get(layer_name(resource), _Stack)
    wrapped = kind.__new__(kind)
    wrapped._share(resource)
    return wrapped


# --- Bases ---


class _Base(DeviceMemoryResource):
    _layer_name = ""

    def __init__(self, *, device=None):
        self._build(self._layer_name, device)


class CudaMemoryResource(_Base):
    """Plain device memory (cudaMalloc, cudaFree)."""

    _layer_name = "cuda"


class ManagedMemoryResource(_Base):
    """Memory that host and device share (cudaMallocManaged)."""

    _layer_name = "managed"


class PinnedHostMemoryResource(_Base):
    """Pinned memory of the host, which the device reaches, too."""

    _layer_name = "pinned_host"


class SystemMemoryResource(_Base):
    """Memory of the system's allocator, where the device reaches it."""

    _layer_name = "system"


class SamHeadroomMemoryResource(DeviceMemoryResource):
    """Memory of the system's allocator that leaves `headroom` bytes of the device free."""

    def __init__(self, headroom, *, device=None):
        self._build("sam_headroom" + _options(headroom=_size(headroom)), device)


class CudaAsyncMemoryResource(DeviceMemoryResource):
    """A pool of CUDA's stream-ordered allocator."""

    def __init__(
        self,
        initial_pool_size=None,
        release_threshold=None,
        enable_ipc=False,
        enable_fabric=False,
        *,
        device=None,
    ):
        handles = [name for name, wanted in (("fd", enable_ipc), ("fabric", enable_fabric)) if wanted]
        options = _options(
            initial=_size(initial_pool_size),
            release_threshold=_size(release_threshold),
            handles="/".join(handles) or None,
        )
        self._build("cuda_async" + options, device)

    def pool_handle(self):
        """Return the driver's pool (`cudaMemPool_t`) as a number."""
        return self._async_pool()


class CudaAsyncManagedMemoryResource(_Base):
    """The driver's default pool of memory that host and device share (CUDA 13.0)."""

    _layer_name = "cuda_async_managed"
    pool_handle = CudaAsyncMemoryResource.pool_handle


class CudaAsyncViewMemoryResource(DeviceMemoryResource):
    """A pool of the driver's (`cudaMemPool_t`) that stays the caller's; else the device's default pool."""

    def __init__(self, pool_handle=None, *, device=None):
        if pool_handle is None:
            self._build("cuda_async_view", device)
        else:
            self._view(int(pool_handle), device)

    pool_handle = CudaAsyncMemoryResource.pool_handle


class CallbackMemoryResource(DeviceMemoryResource):
    """Two functions: `allocate(size, stream)` returns an address, `deallocate(ptr, size, stream)` ends it.

    A function may submit work that uses the block, such as a fill, to that stream alone.
    """

    def __init__(self, allocate_func, deallocate_func, *, device=None):
        self._callback(allocate_func, deallocate_func, device)


# --- Layers ---


class _Adaptor(UpstreamResourceAdaptor):
    _layer_name = ""

    def __init__(self, upstream_mr):
        self._on(upstream_mr, self._layer_name)


class PoolMemoryResource(UpstreamResourceAdaptor):
    """A growing best-fit pool. It takes half of the free memory at once, as RMM's, unless told otherwise."""

    def __init__(self, upstream_mr, initial_pool_size=None, maximum_pool_size=None):
        initial = "50%" if initial_pool_size is None else _size(initial_pool_size)
        self._on(upstream_mr, "pool" + _options(initial=initial, max=_size(maximum_pool_size)))


class ArenaMemoryResource(UpstreamResourceAdaptor):
    """A pool that takes half of the free memory at once, and grows beyond it."""

    def __init__(self, upstream_mr, arena_size=None, dump_log_on_failure=False):
        name = "millpond_arena.log" if dump_log_on_failure is True else dump_log_on_failure
        file = {"dump_log_on_failure": name} if name else {}
        self._on(upstream_mr, "arena" + _options(size=_size(arena_size)), **file)


class FixedSizeMemoryResource(UpstreamResourceAdaptor):
    """Blocks of one size. Larger requests fail."""

    def __init__(self, upstream_mr, block_size=1 << 20, blocks_to_preallocate=128):
        self._on(
            upstream_mr,
            "fixed_size" + _options(block_size=_size(block_size), preallocate=int(blocks_to_preallocate)),
        )


class BinningMemoryResource(UpstreamResourceAdaptor):
    """Fixed-size blocks for some sizes, and the upstream resource for the rest.

    Blocks of before an `add_bin` go back to the bins that they came from, through a `DeviceBuffer`.
    """

    _automatic = _explicit = None

    def __init__(self, upstream_mr, min_size_exponent=-1, max_size_exponent=-1):
        if upstream_mr is None:
            raise TypeError("Argument `upstream_mr` must not be None")
        self._upstream = upstream_mr
        exponents = min_size_exponent, max_size_exponent
        if (exponents[0] < 0) != (exponents[1] < 0):
            raise ValueError("both exponents have to be given, or none")
        if max(exponents) > 63:
            raise ValueError(f"a bin of 2**{max(exponents)} bytes is larger than any memory")
        self._automatic = (
            [] if exponents[0] < 0 else [1 << at for at in range(exponents[0], exponents[1] + 1)]
        )
        self._explicit = []
        self._rebuild()

    def _ask(self):
        """Take over the bins of a stack that was built from text."""
        if self._explicit is None:
            bins = layer_bins(self)
            self._automatic = [size for size, resource in bins if resource is None]
            given = [(size, resource) for size, resource in bins if resource is not None]
            self._explicit = [(size, _as_class(resource)) for size, resource in given]

    def _rebuild(self):
        explicit = {size for size, _ in self._explicit}
        bins = [(size, None) for size in self._automatic if size not in explicit]
        self._binning(self.upstream_mr, bins + self._explicit)

    def add_bin(self, allocation_size, bin_resource=None):
        """Serve requests up to `allocation_size` bytes, beyond the next smaller bin, from a resource."""
        self._ask()
        self._explicit.append((int(allocation_size), bin_resource))
        self._rebuild()

    @property
    def bin_mrs(self):
        """The resources that were added."""
        self._ask()
        return [resource for _, resource in self._explicit if resource is not None]


class LimitingResourceAdaptor(UpstreamResourceAdaptor):
    """Limits the bytes that are handed out."""

    def __init__(self, upstream_mr, allocation_limit):
        self._on(upstream_mr, "limiting" + _options(limit=_size(allocation_limit)))

    def get_allocated_bytes(self):
        """Return the bytes that are handed out."""
        return self._limits()[0]

    def get_allocation_limit(self):
        """Return the limit in bytes."""
        return self._limits()[1]


def _device_file(name, device):
    """Return the absolute path of a device's log, in which names in braces are not replaced."""
    name = os.fsdecode(name)
    if not os.path.isabs(name):
        # The folder of the process is none of the program's names.
        folder = re.sub(r"\{(?=(?:pid|rank|device|x[0-9A-Fa-f]{2})\})", "{x7b}", os.getcwd())
        name = os.path.join(folder, name)
    if "{device}" in name:
        return os.path.normpath(name)
    base, extension = os.path.splitext(os.path.normpath(name))
    return f"{base}.dev{device.ordinal}{extension}"


class LoggingResourceAdaptor(UpstreamResourceAdaptor):
    """Writes a row for every call to a file, whose name gets the device's number, as `log.dev0.csv`.

    In the name, `{pid}` stands for the number of the process, `{rank}` for its number in a job (the variables
    of torchrun, MPI and Slurm), and `{device}` for the device's number, which is then not added again. Jobs
    of several processes need one of the first two. Folders that are missing are made.
    """

    def __init__(self, upstream_mr, log_file_name=None):
        if upstream_mr is None:
            raise TypeError("Argument `upstream_mr` must not be None")
        name = log_file_name or os.environ.get("MILLPOND_LOG_FILE") or os.environ.get("RMM_LOG_FILE")
        if not name:
            raise ValueError("a log needs `log_file_name`, or RMM_LOG_FILE in the environment")
        self._on(upstream_mr, "logging", file=_device_file(name, upstream_mr.device))

    def flush(self):
        """Write the rows that are held."""
        self._flush()

    def get_file_name(self):
        """Return the path of the file; None if the log has none."""
        file = log_file(self)
        return None if file is None else os.fsdecode(file)


class StatisticsResourceAdaptor(_Adaptor):
    """Counts bytes and allocations, by level."""

    _layer_name = "statistics"

    def _level(self, step):
        from .statistics import Statistics

        return Statistics(*self._counters(step))

    @property
    def allocation_counts(self):
        """The counters of the present level."""
        return self._level(0)

    def push_counters(self):
        """Start a level, and return the counters of the one below."""
        return self._level(1)

    def pop_counters(self):
        """End a level, and return its counters."""
        try:
            return self._level(-1)
        except InvalidArgumentError as error:
            raise IndexError(str(error)) from None


class TrackingResourceAdaptor(UpstreamResourceAdaptor):
    """Records every allocation that was not given back."""

    def __init__(self, upstream_mr, capture_stacks=False):
        self._on(upstream_mr, "tracking" + _options(stacks="on" if capture_stacks else "off"))

    def get_allocated_bytes(self):
        """Return the bytes that were not given back."""
        return self._outstanding()[0]

    def get_outstanding_allocations_str(self):
        """Return the allocations that were not given back; an empty text if there are none."""
        count, text = self._outstanding()
        return text if count else ""

    def log_outstanding_allocations(self):
        """Log them with Python's logger `millpond`."""
        import logging

        logging.getLogger("millpond").warning(self._outstanding()[1])


class FailureCallbackResourceAdaptor(UpstreamResourceAdaptor):
    """Asks `callback(nbytes)` to free memory when it is out; True tries again."""

    def __init__(self, upstream_mr, callback):
        if upstream_mr is None:
            raise TypeError("Argument `upstream_mr` must not be None")
        self._upstream = upstream_mr
        self._failure_callback(upstream_mr, callback)


class PrefetchResourceAdaptor(_Adaptor):
    """Moves managed memory to the device when it is allocated."""

    _layer_name = "prefetch"


class ThreadSafeResourceAdaptor(_Adaptor):
    """Lets one thread at a time use the resource below."""

    _layer_name = "thread_safe"


class AlignedResourceAdaptor(UpstreamResourceAdaptor):
    """Aligns blocks of at least `alignment_threshold` bytes to `alignment`."""

    def __init__(self, upstream_mr, alignment=256, alignment_threshold=0):
        self._on(
            upstream_mr,
            "aligned"
            + _options(alignment=_size(alignment), threshold=_size(alignment_threshold)),
        )


class RetryResourceAdaptor(UpstreamResourceAdaptor):
    """Waits for other threads' frees, `timeout` seconds at most, before memory is out."""

    def __init__(self, upstream_mr, timeout=0.1):
        self._on(upstream_mr, f"retry:timeout={round(timeout * 1e6)}us")


class FallbackResourceAdaptor(UpstreamResourceAdaptor):
    """Takes memory from the stack of the text `to` where the resource below is out of memory."""

    def __init__(self, upstream_mr, to="managed"):
        self._on(upstream_mr, f"fallback:to=({to})")


_BY_LAYER = {
    "cuda": CudaMemoryResource,
    "managed": ManagedMemoryResource,
    "pinned_host": PinnedHostMemoryResource,
    "system": SystemMemoryResource,
    "sam_headroom": SamHeadroomMemoryResource,
    "cuda_async": CudaAsyncMemoryResource,
    "cuda_async_managed": CudaAsyncManagedMemoryResource,
    "cuda_async_view": CudaAsyncViewMemoryResource,
    "pool": PoolMemoryResource,
    "arena": ArenaMemoryResource,
    "fixed_size": FixedSizeMemoryResource,
    "binning": BinningMemoryResource,
    "logging": LoggingResourceAdaptor,
    "failure_callback": FailureCallbackResourceAdaptor,
    "callback": CallbackMemoryResource,
    "limiting": LimitingResourceAdaptor,
    "statistics": StatisticsResourceAdaptor,
    "tracking": TrackingResourceAdaptor,
    "prefetch": PrefetchResourceAdaptor,
    "thread_safe": ThreadSafeResourceAdaptor,
    "aligned": AlignedResourceAdaptor,
    "retry": RetryResourceAdaptor,
    "fallback": FallbackResourceAdaptor,
}

# --- The default resource of each device ---

#: Guards `_objects`, and the order in which defaults are set. What a default ends may run functions of the
#: program: it ends after the lock.
_lock = _locks.lock()
#: Guards the logs of the devices.
_logs = _locks.lock()
_objects = {}
_hooks = []


def _device(device):
    if device is None:
        return Device()
    return device if isinstance(device, Device) else Device.find(device)


def _known(resource):
    """Return the Python object of a resource: the one that was made the default, else a new one."""
    known = _objects.get(resource.device)
    if known is not None and known.is_equal(resource) and known.text == resource.text:
        return known
    return _as_class(resource)


def get_per_device_resource(device):
    """Return the default resource of a device: a number, or a Device."""
    device = _device(device)
    while True:
        before, found = _objects.get(device), _known(default_resource(device))
        with _lock:
            # Else another thread has set one meanwhile.
            if _objects.get(device) is before:
                _objects[device] = found
                return found


def set_per_device_resource(device, mr):
    """Make a resource of a device its default, for all that use libmillpond in this process."""
    if not isinstance(mr, Resource):
        raise TypeError(f"{mr!r} is no resource of millpond's; millpond.stack(text) makes one")
    device = _device(device)
    if mr.device != device:
        raise InvalidArgumentError(f"{mr!r} is of {mr.device}, and cannot be the default of {device}")
    with _lock:
        # They end with this function, and not under the lock.
        before = mr._make_default(), _objects.get(device)
        _objects[device] = mr
    del before


def get_current_device_resource():
    """Return the default resource of the thread's current device."""
    return get_per_device_resource(None)


def set_current_device_resource(mr):
    """Make a resource the default of the thread's current device."""
    set_per_device_resource(None, mr)


def get_per_device_resource_type(device):
    """Return the class of the default resource of a device."""
    return type(get_per_device_resource(device))


def get_current_device_resource_type():
    """Return the class of the default resource of the thread's current device."""
    return type(get_current_device_resource())


def reset_per_device_resource(device):
    """Restore the initial default of a device: what MILLPOND_STACK names, else plain CUDA."""
    device = _device(device)
    before = _objects.pop(device, None)
    reset_default_resource(device)
    del before


def is_initialized():
    """Return whether the current device has a default resource; it always has, once there is a device."""
    return Device() is not None


def available_device_memory():
    """Return the free and total bytes of the current device."""
    return Device().memory_info()


def register_reinitialize_hook(func, *args, **kwargs):
    """Call a function before each `reinitialize`; the last one registered is called first.

    It returns the function, so that it can stand above one as a decorator.
    """
    _hooks.append((func, args, kwargs))
    return func


def unregister_reinitialize_hook(func):
    """Remove all registrations of a function."""
    _hooks[:] = [hook for hook in _hooks if hook[0] is not func]


def reinitialize(
    pool_allocator=False,
    managed_memory=False,
    initial_pool_size=None,
    maximum_pool_size=None,
    devices=0,
    logging=False,
    log_file_name=None,
    *,
    stack=None,
):
    """Set a new default resource for each of `devices`; `stack` is any other stack, as text.

    Buffers of before keep their resources.
    """
    for func, args, kwargs in reversed(_hooks):
        func(*args, **kwargs)
    numbers = [devices] if isinstance(devices, (int, Device)) else list(devices)
    for device in map(_device, numbers):
        if stack is not None:
            resource = globals()["stack"](stack, device)
        else:
            base = ManagedMemoryResource if managed_memory else CudaMemoryResource
            resource = base(device=device)
            if pool_allocator:
                resource = PoolMemoryResource(resource, initial_pool_size, maximum_pool_size)
        set_per_device_resource(device, resource)
        if logging:
            _log(device, log_file_name)


# --- Logging ---


def _log(device, log_file_name):
    before = get_per_device_resource(device)
    set_per_device_resource(device, LoggingResourceAdaptor(before, log_file_name))


def enable_logging(log_file_name=None):
    """Log the calls of every device with a default resource, in a file of its own (`log.dev0.csv`).

    In the name, `{pid}` and `{rank}` serve jobs of several processes, as `LoggingResourceAdaptor` says. A
    device whose default resource is a log keeps it.
    """
    with _logs:
        get_current_device_resource()
        for device in list(_objects):
            if not isinstance(get_per_device_resource(device), LoggingResourceAdaptor):
                _log(device, log_file_name)


def disable_logging():
    """End the logs that are default resources, and put the resources below back as defaults.

    A log below another layer only writes its rows, and goes on.
    """
    with _logs:
        _flush_logs()
        for device in list(_objects):
            resource = get_per_device_resource(device)
            if isinstance(resource, LoggingResourceAdaptor):
                set_per_device_resource(device, resource.upstream_mr)


def _default_logs():
    """Return each device with its default resource, and the path of its log as bytes or None."""
    with _logs:
        found = []
        for device in list(_objects):
            resource = get_per_device_resource(device)
            try:
                found.append((device, resource, log_file(resource)))
            except UnsupportedError:
                found.append((device, resource, None))
        return found


def get_log_filenames():
    """Return the file of each device's log by the device's number, or None if nothing is logged."""
    with _logs:
        names = {device.ordinal: None for device in (Device(), *_objects)}
        for device, _, file in _default_logs():
            # A simulated device may have the number of a real one.
            if file is not None:
                names[device.ordinal] = os.fsdecode(file)
        return names


def _flush_logs():
    """Write the rows that the logs hold."""
    for _, resource, file in _default_logs():
        if file is not None:
            resource._flush()
