"""Memory resources and adaptors under RMM's names, and the default resource of each device.

A stack consists of layers: a base, such as CUDA memory, and resources on top of it. Each class is one layer.
`millpond.stack(text)` builds a whole stack from text, also with layers that have no class here.

>>> from millpond import mr
>>> pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), initial_pool_size="64MiB")
>>> mr.set_current_device_resource(mr.StatisticsResourceAdaptor(pool))
"""

import functools
import json
import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from . import _arguments, _locks
from ._errors import InvalidArgumentError, UnsupportedError
from ._native import (
    Device,
    Resource,
    Stream,
    budget_on_call_back,
    build_layer_file,
    default_resource,
    layer_below,
    layer_bins,
    layer_name,
    layer_table,
    log_file,
    parse_size,
    reset_default_resource,
)
from .memory_pool import GraphMemory as GraphMemory
from .memory_pool import MemoryPool as MemoryPool
from .typing import DeviceLike, FilePath, Size

if TYPE_CHECKING:
    from .statistics import Statistics

_P = ParamSpec("_P")
_R = TypeVar("_R")


def parse_bytes(size: Size) -> int:
    """Return a size in bytes.

    Args:
        size: A number of bytes, or a text with a unit, such as "4GiB" or "1.5 MB".

    Returns:
        The number of bytes.

    Raises:
        ValueError: The size is negative, too large, a fraction, a share such as "50%", or malformed.
        TypeError: `size` is neither a number nor a text.

    Example:
        >>> import millpond
        >>> millpond.mr.parse_bytes("1.5 MB")
        1500000
    """
    return _bytes(size, "size")


def _bytes(size: Size, name: str) -> int:
    """Return a size in bytes. A share of the memory is refused."""
    size_bytes, percent = _parsed(size, name)
    if percent:
        raise _arguments.wrong(ValueError, name, f"{_arguments.SIZE}; a share of the memory is none", size)
    return size_bytes


def _parsed(size: Size, name: str) -> tuple[int, float]:
    """Return a number of bytes, and a percentage of the free memory; one of them is 0."""
    if not isinstance(size, str):
        if isinstance(size, float) and 0 < size < 1:
            hint = f'{_arguments.SIZE} (did you mean "{100 * size:g}%"?)'
            raise _arguments.wrong(ValueError, name, hint, size)
        return _arguments.whole_bytes(size, name), 0.0
    try:
        return parse_size(_arguments.text(size, name, _arguments.SIZE))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"`{name}` must be a size: {error}") from None


def _given_size(size: Size, name: str) -> str:
    """Return a size in the form that a stack's text needs, such as "4096B" or "50%"."""
    size_bytes, percent = _parsed(size, name)
    return f"{percent:.17g}%" if percent else f"{size_bytes}B"


def _size(size: Size | None, name: str) -> str | None:
    """Return a size as `_given_size` does. None stays None."""
    return None if size is None else _given_size(size, name)


def _options(**options: object) -> str:
    """Return a layer's options as text. Options that are None are left out."""
    given = [f"{name}={value}" for name, value in options.items() if value is not None]
    return ":" + ",".join(given) if given else ""


def _quoted(value: object, name: str, allowed: str = "a text, as in a stack") -> str:
    """Return a text in the form that a stack's text needs, whatever characters it has."""
    text = _arguments.text(value, name, allowed)
    return '"' + text.replace('"', '""') + '"'


def _word(value: str | None, name: str) -> str | None:
    """Return a text as `_quoted` does. None stays None."""
    return None if value is None else _quoted(value, name)


def _time(value: float | str | None, name: str) -> str | None:
    """Return a time in seconds, or its text, in the form that a stack's text needs. None stays None."""
    if value is None or isinstance(value, str):
        return _word(value, name)
    allowed = 'a number of seconds from 0 to 1e9, or a text such as "500ms"'
    microseconds = round(_arguments.real(value, name, allowed, 1e9) * 1e6)
    return f"{microseconds}us" if microseconds % 1000 else f"{microseconds // 1000}ms"


def _checked(resource: object, name: str) -> None:
    """Refuse an argument that is not a resource."""
    _arguments.instance(resource, name, Resource, _arguments.RESOURCE)


class DeviceMemoryResource(Resource):
    """The base class of all resources. `allocate` and `deallocate` work in stream order.

    `isinstance(x, DeviceMemoryResource)` is true for every resource. To write your own class, derive it from
    one of the classes here and call its `__init__`.

    Example:
        >>> import millpond
        >>> resource = millpond.stack("cuda+pool:initial=1MiB")
        >>> isinstance(resource, millpond.mr.DeviceMemoryResource)
        True
        >>> ptr = resource.allocate(1000)
        >>> resource.deallocate(ptr, 1000)
    """

    # When a callback resource ends, it calls the program's functions. If the garbage collector ends a cycle
    # of objects, these functions still work in this finaliser, but not later. The finaliser must not run
    # Python code, because a Ctrl-C inside it would be lost.
    __del__ = Resource._finalise

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__del__")
        if own is not None:

            @functools.wraps(own)
            def finalise(self: DeviceMemoryResource) -> None:
                try:
                    own(self)
                finally:
                    self._finalise()

            cls.__del__ = finalise  # type: ignore[assignment]

    def pool_size(self) -> int:
        """Return how many bytes the resource has reserved from the layer below. Some of them may be free.

        Raises:
            UnsupportedError: No layer of the stack has counters.

        Example:
            >>> import millpond
            >>> millpond.stack("cuda+pool:initial=64MiB").pool_size()
            67108864
        """
        return self.counts()["bytes_reserved"]


class UpstreamResourceAdaptor(DeviceMemoryResource):
    """The base class of resources that are built on another resource.

    Example:
        >>> import millpond
        >>> isinstance(millpond.stack("cuda+statistics"), millpond.mr.UpstreamResourceAdaptor)
        True
    """

    _upstream: DeviceMemoryResource | None = None

    def _on(self, upstream_mr: DeviceMemoryResource, text: str, **file: FilePath) -> None:
        """Build this layer from text. `file` maps an option to a path. The text does not contain the path."""
        _checked(upstream_mr, "upstream_mr")
        self._upstream = upstream_mr
        for key, path in file.items():
            build_layer_file(self, upstream_mr, text, key, os.fsencode(path))
        if not file:
            self._layer(upstream_mr, text)

    @property
    def upstream_mr(self) -> DeviceMemoryResource:
        """The resource below. It is None only for the base of a stack, if that base has no class here.

        Example:
            >>> import millpond
            >>> millpond.mr.StatisticsResourceAdaptor(millpond.mr.CudaMemoryResource()).upstream_mr
            <CudaMemoryResource `cuda`>
        """
        if self._upstream is None:
            below = layer_below(self)
            self._upstream = None if below is None else _as_class(below)
        return self._upstream  # type: ignore[return-value]

    def get_upstream(self) -> DeviceMemoryResource:
        """Return the resource below, like the property `upstream_mr`.

        Example:
            >>> import millpond
            >>> millpond.mr.StatisticsResourceAdaptor(millpond.mr.CudaMemoryResource()).get_upstream()
            <CudaMemoryResource `cuda`>
        """
        return self.upstream_mr


class _Stack(UpstreamResourceAdaptor):
    """A stack whose outermost layer has no class in this module."""

    def __init__(self, text: str, device: DeviceLike | None = None) -> None:
        self._build(_arguments.text(text, "text", _arguments.STACK), _device(device))


def stack(text: str, device: DeviceLike | None = None) -> DeviceMemoryResource:
    """Build a stack of layers from text.

    Args:
        text: The layers, base first, joined by `+`, each with its options. For example,
            "cuda+pool:initial=1GiB+statistics".
        device: The device or its number; None means the current device.

    Returns:
        The stack, as an object of its outermost layer's class, for example `PoolMemoryResource`.

    Raises:
        StackError: The text is malformed, or names a layer or an option that does not exist.
        TypeError: `text` is not a text, or `device` is neither a device nor its number.
        UnsupportedError: The device does not support this stack.
        OutOfMemoryError: The device has too little memory for a layer's initial size.

    Example:
        >>> import millpond
        >>> millpond.stack("cuda+limiting:limit=1GiB")
        <LimitingResourceAdaptor `cuda+limiting:limit=1GiB`>
    """
    return _as_class(_Stack(text, device))


def layers() -> dict[str, dict[str, str]]:
    """Return the layers that the text of a stack can name.

    Returns:
        A dict that maps each layer's name to its options. The options map their name to a line of help.

    Example:
        >>> import millpond
        >>> millpond.mr.layers()["limiting"]
        {'limit': "the most live bytes: a size, or a percentage of the device's free memory; required"}
    """
    table: dict[str, dict[str, str]] = json.loads(layer_table())
    return table


def _as_class(resource: Resource) -> DeviceMemoryResource:
    """Return a resource as an object of its outermost layer's class."""
    kind = _BY_LAYER.get(layer_name(resource), _Stack)
    wrapped: DeviceMemoryResource = kind.__new__(kind)
    wrapped._share(resource)
    return wrapped


def _pool_name(pool: object) -> str | None:
    return None if pool is None else _quoted(pool, "pool", "a MemoryPool, or the text default or current")


# --- Bases ---


class _Base(DeviceMemoryResource):
    _layer_name = ""

    def __init__(self, *, device: DeviceLike | None = None) -> None:
        self._build(self._layer_name, _device(device))


class CudaMemoryResource(_Base):
    """Plain device memory (`cudaMalloc`, `cudaFree`): each allocation calls the driver.

    Args:
        device: The device or its number; None means the current device.

    Raises:
        NoDeviceError: No device is available.

    Example:
        >>> import millpond
        >>> millpond.mr.CudaMemoryResource()
        <CudaMemoryResource `cuda`>
    """

    _layer_name = "cuda"


class ManagedMemoryResource(_Base):
    """Memory that the host and the device share (`cudaMallocManaged`).

    Args:
        device: The device or its number; None means the current device.

    Raises:
        NoDeviceError: No device is available.
        UnsupportedError: The device has no managed memory.

    Example:
        >>> import millpond
        >>> resource = millpond.mr.ManagedMemoryResource()
        >>> resource.is_host_accessible and resource.is_device_accessible
        True
    """

    _layer_name = "managed"


class PinnedHostMemoryResource(_Base):
    """Pinned host memory, which the device can access as well.

    Args:
        device: The device or its number; None means the current device.

    Raises:
        NoDeviceError: No device is available.

    Example:
        >>> import millpond
        >>> millpond.mr.PinnedHostMemoryResource().is_host_accessible
        True
    """

    _layer_name = "pinned_host"


class PageableHostMemoryResource(_Base):
    """Memory from the operating system's allocator, for the host only.

    Args:
        device: The device whose streams order the requests, or its number; None means the current device.

    Raises:
        NoDeviceError: No device is available.

    Example:
        >>> import millpond
        >>> millpond.mr.PageableHostMemoryResource().is_device_accessible
        False
    """

    _layer_name = "host"


class SystemMemoryResource(_Base):
    """Memory from the operating system's allocator, for devices that can access such memory.

    Args:
        device: The device or its number; None means the current device.

    Raises:
        NoDeviceError: No device is available.
        UnsupportedError: The device cannot access this memory.

    Example:
        >>> import millpond
        >>> millpond.mr.SystemMemoryResource()  # doctest: +SKIP
    """

    _layer_name = "system"


class SamHeadroomMemoryResource(DeviceMemoryResource):
    """Memory from the operating system's allocator. The resource keeps a part of the device's memory free.

    Args:
        headroom: The bytes of device memory to keep free, as an int or as text ("1GiB").
        device: The device or its number; None means the current device.

    Raises:
        NoDeviceError: No device is available.
        UnsupportedError: The device cannot access this memory.
        ValueError: `headroom` is not a size.

    Example:
        >>> import millpond
        >>> millpond.mr.SamHeadroomMemoryResource("1GiB")  # doctest: +SKIP
    """

    def __init__(self, headroom: Size, *, device: DeviceLike | None = None) -> None:
        options = _options(headroom=_given_size(headroom, "headroom"))
        self._build("sam_headroom" + options, _device(device))


class CudaAsyncMemoryResource(DeviceMemoryResource):
    """A new pool of CUDA's stream-ordered allocator (`cudaMallocAsync`).

    Args:
        initial_pool_size: The size that the pool allocates at creation, in bytes or as text. With None, it
            allocates nothing.
        release_threshold: When the program synchronizes, the pool returns free memory beyond this size to the
            device. It is a number of bytes or a text. With None, the pool keeps all free memory.
        enable_ipc: Whether other processes can open the memory through a file descriptor.
        enable_fabric: Whether other machines can open the memory through a fabric handle, which
            `MemoryPool.of(resource).export_fabric()` returns.
        max: The largest size of the pool: bytes, a text, or a share such as "50%". None sets no limit.
        reuse: How the driver reuses memory that other streams have freed: "follow/opportunistic/internal",
            some of these words, or "own". None means all three.
        hw_decompress: Whether the device's decompression engine can use the memory: "auto", "on" or "off".
            None means "auto": on if the driver supports it.
        device: The device or its number; None means the current device.

    Raises:
        UnsupportedError: The device has no stream-ordered pools, or does not support `enable_ipc`,
            `enable_fabric` or `hw_decompress`.
        ValueError: A size is malformed.
        OutOfMemoryError: The device has too little memory for `initial_pool_size`.

    Example:
        >>> import millpond
        >>> resource = millpond.mr.CudaAsyncMemoryResource(release_threshold="1GiB")
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=resource)
    """

    def __init__(
        self,
        initial_pool_size: Size | None = None,
        release_threshold: Size | None = None,
        enable_ipc: bool = False,
        enable_fabric: bool = False,
        *,
        max: Size | None = None,
        reuse: str | None = None,
        hw_decompress: str | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        handles = ["fd"] if _arguments.flag(enable_ipc, "enable_ipc") else []
        handles += ["fabric"] if _arguments.flag(enable_fabric, "enable_fabric") else []
        options = _options(
            initial=_size(initial_pool_size, "initial_pool_size"),
            release_threshold=_size(release_threshold, "release_threshold"),
            max=_size(max, "max"),
            reuse=_word(reuse, "reuse"),
            handles="/".join(handles) or None,
            hw_decompress=_word(hw_decompress, "hw_decompress"),
        )
        self._build("cuda_async" + options, _device(device))

    def pool_handle(self: Resource) -> int:
        """Return the handle of the driver's pool (`cudaMemPool_t`) as a number.

        Raises:
            UnsupportedError: The resource has no driver pool.

        Example:
            >>> import millpond
            >>> millpond.mr.CudaAsyncMemoryResource().pool_handle() != 0
            True
        """
        return self._async_pool()


class CudaAsyncManagedMemoryResource(_Base):
    """The driver's default pool of managed memory, which needs CUDA 13.0.

    The host and the device can both access managed memory.

    Args:
        device: The device or its number; None means the current device.

    Raises:
        UnsupportedError: The driver or the device does not support pools of managed memory.

    Example:
        >>> import millpond
        >>> millpond.mr.CudaAsyncManagedMemoryResource().is_host_accessible
        True
    """

    _layer_name = "cuda_async_managed"
    pool_handle = CudaAsyncMemoryResource.pool_handle


class CudaAsyncPinnedMemoryResource(DeviceMemoryResource):
    """A new pool of pinned host memory in stream order, which the device can access.

    RMM and CCCL call such a pool `pinned_memory_pool`. Host code may use a block after the program has
    synchronized the stream of the allocation.

    Args:
        numa: The NUMA node of the host, which needs CUDA 12.6. None means any node, which needs CUDA 13.0.
        initial: The bytes that the pool allocates at creation, as a number or a text. None means 0.
        release_threshold: The bytes that the pool keeps when the program synchronizes, as a number or a
            text. None means all.
        max: The most bytes that the pool may hold, as a number or a text. None sets no limit.
        reuse: How the driver reuses memory that other streams have freed: "follow/opportunistic/internal",
            some of these words, or "own". None means all three.
        handles: The handles with which other processes can import the pool: "none", "fd", "fabric" or
            "fd/fabric". None means "none".
        device: The device or its number; None means the current device.

    Raises:
        UnsupportedError: The driver has no pools of pinned host memory, or none without a NUMA node.
        ValueError: An option is malformed.

    Example:
        >>> import millpond
        >>> resource = millpond.mr.CudaAsyncPinnedMemoryResource(max="64MiB")
        >>> resource.is_host_accessible and resource.is_device_accessible
        True
    """

    def __init__(
        self,
        *,
        numa: int | None = None,
        initial: Size | None = None,
        release_threshold: Size | None = None,
        max: Size | None = None,
        reuse: str | None = None,
        handles: str | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        node = "the number of a NUMA node, or None"
        options = _options(
            numa=None if numa is None else _arguments.whole(numa, "numa", node, most=(1 << 31) - 1),
            initial=_size(initial, "initial"),
            release_threshold=_size(release_threshold, "release_threshold"),
            max=_size(max, "max"),
            reuse=_word(reuse, "reuse"),
            handles=_word(handles, "handles"),
        )
        self._build("cuda_async_pinned" + options, _device(device))

    pool_handle = CudaAsyncMemoryResource.pool_handle


class CudaAsyncViewMemoryResource(DeviceMemoryResource):
    """A driver pool (`cudaMemPool_t`) that another library owns, or the device's default pool.

    Args:
        pool_handle: The handle of the pool as a number. The pool must outlive this resource. None means the
            pool that `pool` names.
        pool: A `MemoryPool`; or "default" or "current", for this pool of the device. None means "default".
        device: The device or its number; None means the current device.

    Raises:
        UnsupportedError: The device has no stream-ordered pools.
        ValueError: `pool` is malformed, or is given together with `pool_handle`.

    Example:
        >>> import millpond
        >>> own = millpond.mr.CudaAsyncMemoryResource()
        >>> view = millpond.mr.CudaAsyncViewMemoryResource(own.pool_handle())
        >>> view.pool_handle() == own.pool_handle()
        True
    """

    def __init__(
        self,
        pool_handle: int | None = None,
        *,
        pool: MemoryPool | str | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        if isinstance(pool, MemoryPool) and pool_handle is None:
            pool._pool.build(self)
        elif pool_handle is None:
            self._build("cuda_async_view" + _options(pool=_pool_name(pool)), _device(device))
        elif pool is not None:
            raise ValueError("give `pool_handle` or `pool`, not both")
        else:
            allowed = "the handle of a pool as a number, or None"
            self._view(_arguments.whole(pool_handle, "pool_handle", allowed), _device(device))

    pool_handle = CudaAsyncMemoryResource.pool_handle


class CallbackMemoryResource(DeviceMemoryResource):
    """A resource built from two functions of the program.

    Both functions get a stream. If a function submits work that uses the block, such as a fill, it must
    submit the work to this stream.

    Args:
        allocate_func: `allocate_func(size, stream)` returns the address of `size` bytes.
        deallocate_func: `deallocate_func(ptr, size, stream)` frees that memory.
        device: The device of the memory, or its number; None means the current device.

    Raises:
        NoDeviceError: No device is available.
        TypeError: An argument is not a function.

    Example:
        >>> import millpond
        >>> base = millpond.mr.CudaMemoryResource()
        >>> resource = millpond.mr.CallbackMemoryResource(base.allocate, base.deallocate)
        >>> millpond.DeviceBuffer(size=1000, mr=resource).size
        1000
    """

    def __init__(
        self,
        allocate_func: Callable[[int, Stream], int],
        deallocate_func: Callable[[int, int, Stream], object],
        *,
        device: DeviceLike | None = None,
    ) -> None:
        _arguments.function(allocate_func, "allocate_func")
        _arguments.function(deallocate_func, "deallocate_func")
        self._callback(allocate_func, deallocate_func, _device(device))


# --- Layers ---


class _Adaptor(UpstreamResourceAdaptor):
    _layer_name = ""

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None:
        self._on(upstream_mr, self._layer_name)


class PoolMemoryResource(UpstreamResourceAdaptor):
    """A pool that grows. It serves a request from the free block that fits best.

    Args:
        upstream_mr: The resource that the pool takes its memory from.
        initial_pool_size: The size that the pool allocates at creation: bytes, a text such as "1GiB", or a
            share of the free memory such as "50%". None means half of the free memory, as in RMM.
        maximum_pool_size: The largest size of the pool: bytes, a text, or a share. None sets no limit.
        pages: Whether the pool maps physical pages: "auto", "on" or "off". None means "auto": on if
            `upstream_mr` is CUDA memory.
        decay: The time over which unneeded memory returns to the driver: seconds, a text such as "500ms", or
            "off". None means 10 seconds.
        peers: The other devices that may access the pool's mapped memory: devices or their numbers, "none",
            or "auto". None means "auto": the devices with an active context.
        share: Whether blocks can be exported to other processes: "none" or "fd". None means "none".
        reuse: How the pool reuses blocks of other streams: "ordered/completed/waited", some of these words,
            or "own". None means all three.

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: An option or a size is malformed, `initial_pool_size` exceeds `maximum_pool_size`, or
            `maximum_pool_size` exceeds the device's memory.
        OutOfMemoryError: `upstream_mr` has too little memory for `initial_pool_size`.

    Example:
        >>> import millpond
        >>> pool = millpond.mr.PoolMemoryResource(millpond.mr.CudaMemoryResource(), "64MiB", "1GiB")
        >>> pool.pool_size()
        67108864
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        initial_pool_size: Size | None = None,
        maximum_pool_size: Size | None = None,
        *,
        pages: str | None = None,
        decay: float | str | None = None,
        peers: str | DeviceLike | Iterable[DeviceLike] | None = None,
        share: str | None = None,
        reuse: str | None = None,
    ) -> None:
        if peers is not None and not isinstance(peers, str):
            peers = "/".join(str(peer.ordinal) for peer in _devices(peers, "peers")) or "none"
        options = _options(
            initial=_size("50%" if initial_pool_size is None else initial_pool_size, "initial_pool_size"),
            max=_size(maximum_pool_size, "maximum_pool_size"),
            pages=_word(pages, "pages"),
            decay=_time(decay, "decay"),
            peers=_word(peers, "peers"),
            share=_word(share, "share"),
            reuse=_word(reuse, "reuse"),
        )
        self._on(upstream_mr, "pool" + options)


class ArenaMemoryResource(UpstreamResourceAdaptor):
    """A pool for programs with many threads.

    Each thread takes small blocks from its own part of the pool, its arena. All threads share the memory for
    large blocks.

    Args:
        upstream_mr: The resource that the pool takes its memory from.
        arena_size: The size that the pool allocates at creation: bytes, a text, or a share of the free memory
            such as "50%". None means half of the free memory. The pool can grow beyond this size.
        dump_log_on_failure: A path, or True for `millpond_arena.log`. If memory runs out, the pool writes its
            state to this file.
        max: The largest size of the pool: bytes, a text, or a share. None sets no limit.

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: `arena_size` is malformed.
        OutOfMemoryError: `upstream_mr` has too little memory for `arena_size`.

    Example:
        >>> import millpond
        >>> arena = millpond.mr.ArenaMemoryResource(millpond.mr.CudaMemoryResource(), "64MiB")
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=arena)
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        arena_size: Size | None = None,
        dump_log_on_failure: bool | FilePath = False,
        *,
        max: Size | None = None,
    ) -> None:
        name = "dump_log_on_failure"
        file: dict[str, FilePath] = {}
        if isinstance(dump_log_on_failure, (str, bytes, os.PathLike)):
            file[name] = _arguments.path(dump_log_on_failure, name)
        elif _arguments.flag(dump_log_on_failure, name, "True, False or the path of a file"):
            file[name] = b"millpond_arena.log"
        options = _options(size=_size(arena_size, "arena_size"), max=_size(max, "max"))
        self._on(upstream_mr, "arena" + options, **file)


class FixedSizeMemoryResource(UpstreamResourceAdaptor):
    """Serves every request with a block of one fixed size. A larger request fails.

    Args:
        upstream_mr: The resource that provides the memory for the blocks.
        block_size: The size of a block, in bytes or as text.
        blocks_to_preallocate: How many blocks are taken from `upstream_mr` at creation.
        blocks: The most blocks that are taken from `upstream_mr` at a time. None means 128.

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: `block_size` is malformed.
        OutOfMemoryError: `upstream_mr` has too little memory for the first blocks.

    Example:
        >>> import millpond
        >>> base = millpond.mr.CudaMemoryResource()
        >>> blocks = millpond.mr.FixedSizeMemoryResource(base, "1MiB", blocks_to_preallocate=4)
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=blocks)
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        block_size: Size = 1 << 20,
        blocks_to_preallocate: int = 128,
        *,
        blocks: int | None = None,
    ) -> None:
        allowed = "a number of blocks"
        options = _options(
            block_size=_size(block_size, "block_size"),
            blocks=None if blocks is None else _arguments.whole(blocks, "blocks", allowed),
            preallocate=_arguments.whole(blocks_to_preallocate, "blocks_to_preallocate", allowed),
        )
        self._on(upstream_mr, "fixed_size" + options)


class BinningMemoryResource(UpstreamResourceAdaptor):
    """Serves requests from bins. The upstream resource serves requests that are larger than every bin.

    A bin serves requests up to its size. A request goes to the smallest bin that is large enough. If a
    `DeviceBuffer` owns a block, the block returns to the bin that it came from, even after an `add_bin`.

    Args:
        upstream_mr: The resource for requests that are larger than every bin.
        min_size_exponent: The smallest bin has blocks of `2**min_size_exponent` bytes; -1 makes no bins.
        max_size_exponent: The largest bin has blocks of `2**max_size_exponent` bytes.

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: Only one exponent is given, an exponent is larger than 63, or the smallest bin is larger
            than the largest.

    Example:
        >>> import millpond
        >>> base = millpond.mr.CudaMemoryResource()
        >>> bins = millpond.mr.BinningMemoryResource(base, 18, 20)  # 256 KiB to 1 MiB
        >>> buffer = millpond.DeviceBuffer(size=300_000, mr=bins)
    """

    # None if the stack was built from text, until the first `_ask`.
    _automatic: Any = None
    _explicit: Any = None

    def __init__(
        self, upstream_mr: DeviceMemoryResource, min_size_exponent: int = -1, max_size_exponent: int = -1
    ) -> None:
        _checked(upstream_mr, "upstream_mr")
        self._upstream = upstream_mr
        allowed = "the exponent of a size, from 0 to 63; or -1 for no bins"
        exponents = (
            _arguments.whole(min_size_exponent, "min_size_exponent", allowed, -1, 63),
            _arguments.whole(max_size_exponent, "max_size_exponent", allowed, -1, 63),
        )
        if (exponents[0] < 0) != (exponents[1] < 0):
            raise ValueError("give both `min_size_exponent` and `max_size_exponent`, or neither")
        if exponents[0] > exponents[1] >= 0:
            raise ValueError("`min_size_exponent` exceeds `max_size_exponent`: {} > {}".format(*exponents))
        self._automatic = (
            [] if exponents[0] < 0 else [1 << at for at in range(exponents[0], exponents[1] + 1)]
        )
        self._rebuild([])

    def _ask(self) -> None:
        """Read the bins of a stack that was built from text."""
        if self._explicit is None:
            bins = layer_bins(self)
            self._automatic = [size for size, resource in bins if resource is None]
            given = [(size, resource) for size, resource in bins if resource is not None]
            self._explicit = [(size, _as_class(resource)) for size, resource in given]

    def _rebuild(self, explicit: list[Any]) -> None:
        sizes = {size for size, _ in explicit}
        bins: list[Any] = [(size, None) for size in self._automatic if size not in sizes]
        self._binning(self.upstream_mr, bins + explicit)
        self._explicit = explicit

    def add_bin(self, allocation_size: int, bin_resource: DeviceMemoryResource | None = None) -> None:
        """Add a bin. It serves requests up to its size, unless a smaller bin is large enough.

        Args:
            allocation_size: The largest request that the bin serves, in bytes.
            bin_resource: The resource that serves the bin. With None, the bin makes blocks of
                `allocation_size` bytes from the upstream resource.

        Raises:
            ValueError: `allocation_size` is 0, too large, or the size of a bin that was added before.
            TypeError: `allocation_size` is not a number, or `bin_resource` is not a resource.

        Example:
            >>> import millpond
            >>> base = millpond.mr.CudaMemoryResource()
            >>> bins = millpond.mr.BinningMemoryResource(base)
            >>> bins.add_bin(1 << 20)
            >>> bins.add_bin(64 << 20, millpond.mr.PoolMemoryResource(base, "64MiB"))
        """
        size = _arguments.whole_bytes(allocation_size, "allocation_size", "a number of bytes")
        if bin_resource is not None:
            _checked(bin_resource, "bin_resource")
        self._ask()
        self._rebuild([*self._explicit, (size, bin_resource)])

    @property
    def bin_mrs(self) -> list[DeviceMemoryResource]:
        """The resources that were passed to `add_bin`, in that order.

        Example:
            >>> import millpond
            >>> bins = millpond.mr.BinningMemoryResource(millpond.mr.CudaMemoryResource(), 18, 20)
            >>> bins.bin_mrs
            []
        """
        self._ask()
        return [resource for _, resource in self._explicit if resource is not None]


class LimitingResourceAdaptor(UpstreamResourceAdaptor):
    """Limits the bytes in use at one time. A request that would exceed the limit fails.

    Args:
        upstream_mr: The resource below.
        allocation_limit: The limit: bytes, a text such as "1GiB", or a share of the free memory such as
            "50%".

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: `allocation_limit` is malformed.

    Example:
        >>> import millpond
        >>> limit = millpond.mr.LimitingResourceAdaptor(millpond.mr.CudaMemoryResource(), "1MiB")
        >>> try:
        ...     millpond.DeviceBuffer(size=2 << 20, mr=limit)
        ... except MemoryError:
        ...     print("beyond the limit")
        beyond the limit
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, allocation_limit: Size) -> None:
        limit = _given_size(allocation_limit, "allocation_limit")
        self._on(upstream_mr, "limiting" + _options(limit=limit))

    def get_allocated_bytes(self) -> int:
        """Return the bytes in use.

        Example:
            >>> import millpond
            >>> limit = millpond.mr.LimitingResourceAdaptor(millpond.mr.CudaMemoryResource(), "1MiB")
            >>> buffer = millpond.DeviceBuffer(size=1024, mr=limit)
            >>> limit.get_allocated_bytes()
            1024
        """
        return self._limits()[0]

    def get_allocation_limit(self) -> int:
        """Return the limit in bytes.

        Example:
            >>> import millpond
            >>> limit = millpond.mr.LimitingResourceAdaptor(millpond.mr.CudaMemoryResource(), "1MiB")
            >>> limit.get_allocation_limit()
            1048576
        """
        return self._limits()[1]


class BudgetResourceAdaptor(LimitingResourceAdaptor):
    """Limits the bytes in use by a budget. Budgets form a tree, and lend each other unused bytes.

    A request counts in its own budget and in all budgets above, and fails if one of them has no room for it.
    A budget may borrow the guaranteed bytes that its siblings do not use. When a sibling needs them, it calls
    them back: it trims the stacks of the borrowers that `millpond.stack` built, and waits for frees.

    Args:
        upstream_mr: The resource below.
        name: The name of the budget. Resources of one device with the same name share the budget. If there is
            no such budget, it is made with these arguments; otherwise they must be the same.
        limit: The limit: bytes, a text such as "1GiB", or a share of the free memory such as "50%".
        parent: The name of the budget above, which must exist.
        guaranteed: The bytes that this budget can call back, in the same forms as `limit`.
        priority: Borrowed bytes are called back from the budget with the lowest priority first.
        wait: The longest wait for borrowed bytes: seconds, or a text such as "100ms".
        zero: Whether this budget, and the budgets below, fill each new block with zeros on its stream.

    Raises:
        TypeError: `upstream_mr` is not a resource, or another argument has a wrong type.
        ValueError: An argument is malformed, the budget exists with other arguments, there is no such parent,
            or the parent has less to guarantee.

    Example:
        >>> import millpond
        >>> pool = millpond.mr.PoolMemoryResource(millpond.mr.CudaMemoryResource())
        >>> job = millpond.mr.BudgetResourceAdaptor(pool, "job", "8MiB")
        >>> etl = millpond.mr.BudgetResourceAdaptor(pool, "etl", "8MiB", parent="job", guaranteed="2MiB")
        >>> buffer = millpond.DeviceBuffer(size=1024, mr=etl)
        >>> job.get_allocated_bytes()
        1024
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        name: str,
        limit: Size,
        *,
        parent: str | None = None,
        guaranteed: Size | None = None,
        priority: int = 0,
        wait: float | str = 0.1,
        zero: bool = False,
    ) -> None:
        largest = (1 << 32) - 1
        options = _options(
            name=_quoted(name, "name", "the name of a budget"),
            limit=_given_size(limit, "limit"),
            parent=_word(parent, "parent"),
            guaranteed=_size(guaranteed, "guaranteed"),
            priority=_arguments.whole(priority, "priority", "a number from 0 to 2**32 - 1", most=largest),
            wait=_time(wait, "wait"),
            zero="handover" if _arguments.flag(zero, "zero") else "off",
        )
        self._on(upstream_mr, "budget" + options)

    def on_call_back(self, callback: Callable[[int], object] | None) -> None:
        """Set a function that frees memory of this budget when another budget calls back its guarantee.

        The function runs on the thread of the other budget's request, and the request waits for it. A
        request calls it once at most. The function may use this resource, and its requests do not wait. An
        exception goes to `sys.unraisablehook`.

        The budget keeps the function and everything that it holds. If this includes this resource or its
        buffers, the resource lives until you remove the function. Budgets of the same tree return only the
        idle memory of pools that are part of their own stack: for another pool above this budget, let the
        function call the pool's `trim()`.

        Args:
            callback: `callback(nbytes)` gets the size of the other budget's request in bytes. It replaces an
                earlier function of the same budget; None removes that function.

        Raises:
            TypeError: `callback` is neither a function nor None.

        Example:
            >>> import millpond
            >>> cuda = millpond.mr.CudaMemoryResource()
            >>> job = millpond.mr.BudgetResourceAdaptor(cuda, "job", 4096)
            >>> etl = millpond.mr.BudgetResourceAdaptor(cuda, "etl", 4096, parent="job")
            >>> train = millpond.mr.BudgetResourceAdaptor(cuda, "train", 4096, parent="job", guaranteed=4096)
            >>> cache = [millpond.DeviceBuffer(size=4096, mr=etl)]
            >>> etl.on_call_back(lambda nbytes: cache.clear())
            >>> millpond.DeviceBuffer(size=4096, mr=train).size
            4096
            >>> etl.on_call_back(None)
        """
        if callback is not None:
            _arguments.function(callback, "callback")
        budget_on_call_back(self, callback)


def _device_file(name: FilePath, device: Device) -> str:
    """Return the absolute path of a device's log. Placeholders such as `{pid}` stay in the path."""
    name = os.fsdecode(name)
    if not os.path.isabs(name):
        # In the path of the working directory, braces are no placeholders, so they are escaped.
        folder = re.sub(r"\{(?=(?:pid|rank|device|x[0-9A-Fa-f]{2})\})", "{x7b}", os.getcwd())
        name = os.path.join(folder, name)
    if "{device}" in name:
        return os.path.normpath(name)
    base, extension = os.path.splitext(os.path.normpath(name))
    return f"{base}.dev{device.ordinal}{extension}"


class LoggingResourceAdaptor(UpstreamResourceAdaptor):
    """Writes a row for every call to a file, in the format of RMM's logs.

    The path may contain placeholders. `{pid}` becomes the process's number. `{rank}` becomes the process's
    rank in a job, which torchrun, MPI and Slurm set in the environment. `{device}` becomes the device's
    number. If the path has no `{device}`, the number is added: `log.csv` becomes `log.dev0.csv`. If a job has
    several processes, its path needs `{pid}` or `{rank}`. Missing folders are created.

    Args:
        upstream_mr: The resource below.
        log_file_name: The path; None means the path in MILLPOND_LOG_FILE, or else in RMM_LOG_FILE.
        columns: "rmm" or "extended", which adds the device, the alignment, a sequence number, a clock and the
            duration. None means "rmm".
        flush: "row" writes each row at once. "async" lets threads of the log write the rows. "buffered"
            writes the rows in blocks. None means "row".

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: Neither `log_file_name` nor the environment names a file, or an option is malformed.
        LogFileError: The file cannot be opened.

    Example:
        >>> import os, tempfile
        >>> import millpond
        >>> name = os.path.join(tempfile.mkdtemp(), "log.csv")
        >>> log = millpond.mr.LoggingResourceAdaptor(millpond.mr.CudaMemoryResource(), name)
        >>> os.path.basename(log.get_file_name())
        'log.dev0.csv'
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        log_file_name: FilePath | None = None,
        *,
        columns: str | None = None,
        flush: str | None = None,
    ) -> None:
        _checked(upstream_mr, "upstream_mr")
        path = b"" if log_file_name is None else _arguments.path(log_file_name, "log_file_name")
        name = path or os.environ.get("MILLPOND_LOG_FILE") or os.environ.get("RMM_LOG_FILE")
        if not name:
            raise ValueError("no file is named for the log; pass `log_file_name`, or set RMM_LOG_FILE")
        options = _options(columns=_word(columns, "columns"), flush=_word(flush, "flush"))
        self._on(upstream_mr, "logging" + options, file=_device_file(name, upstream_mr.device))

    def flush(self) -> None:
        """Write the buffered rows to the file.

        Raises:
            LogFileError: The file cannot be written.

        Example:
            >>> import os, tempfile
            >>> import millpond
            >>> name = os.path.join(tempfile.mkdtemp(), "log.csv")
            >>> log = millpond.mr.LoggingResourceAdaptor(millpond.mr.CudaMemoryResource(), name)
            >>> buffer = millpond.DeviceBuffer(size=1000, mr=log)
            >>> log.flush()
            >>> len(open(log.get_file_name()).readlines())
            2
        """
        self._flush()

    def get_file_name(self) -> str | None:
        """Return the path of the file; None if the log has no file.

        Example:
            >>> import os, tempfile
            >>> import millpond
            >>> name = os.path.join(tempfile.mkdtemp(), "log{device}.csv")
            >>> log = millpond.mr.LoggingResourceAdaptor(millpond.mr.CudaMemoryResource(), name)
            >>> os.path.basename(log.get_file_name())
            'log0.csv'
        """
        file = log_file(self)
        return None if file is None else os.fsdecode(file)


class StatisticsResourceAdaptor(_Adaptor):
    """Counts bytes and allocations.

    The counters form levels. `push_counters` starts a new level on top, with all counters at 0. Only the top
    level counts allocations. `pop_counters` ends the top level and adds its counts to the level below. That
    level then has the counts that it would have without the top level.

    Args:
        upstream_mr: The resource below.

    Raises:
        TypeError: `upstream_mr` is not a resource.

    Example:
        >>> import millpond
        >>> counting = millpond.mr.StatisticsResourceAdaptor(millpond.mr.CudaMemoryResource())
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=counting)
        >>> counting.allocation_counts.peak_bytes
        1000
    """

    _layer_name = "statistics"

    def _level(self, step: int) -> "Statistics":
        from .statistics import Statistics

        current, peak, total, current_count, peak_count, total_count = self._counters(step)
        return Statistics(current, current_count, peak, peak_count, total, total_count)

    @property
    def allocation_counts(self) -> "Statistics":
        """The counters of the top level, with sizes in bytes.

        Example:
            >>> import millpond
            >>> counting = millpond.mr.StatisticsResourceAdaptor(millpond.mr.CudaMemoryResource())
            >>> counting.allocation_counts.current_bytes
            0
        """
        return self._level(0)

    def push_counters(self) -> "Statistics":
        """Start a new top level with all counters at 0.

        Returns:
            The counters of the level that was on top until this call, with sizes in bytes.

        Example:
            >>> import millpond
            >>> counting = millpond.mr.StatisticsResourceAdaptor(millpond.mr.CudaMemoryResource())
            >>> counting.push_counters().total_bytes
            0
        """
        return self._level(1)

    def pop_counters(self) -> "Statistics":
        """End the top level, and add its counts to the level below.

        Returns:
            The counters of the level that ended, with sizes in bytes.

        Raises:
            IndexError: There is no level that `push_counters` started.

        Example:
            >>> import millpond
            >>> counting = millpond.mr.StatisticsResourceAdaptor(millpond.mr.CudaMemoryResource())
            >>> below = counting.push_counters()
            >>> buffer = millpond.DeviceBuffer(size=1000, mr=counting)
            >>> counting.pop_counters().peak_bytes
            1000
        """
        try:
            return self._level(-1)
        except InvalidArgumentError as error:
            raise IndexError("cannot pop the last counter pair: push one before each pop") from error


class TrackingResourceAdaptor(UpstreamResourceAdaptor):
    """Records the live allocations, to find leaks.

    Args:
        upstream_mr: The resource below.
        capture_stacks: Whether to record the call stack of each allocation. The stack has native functions
            only, and no Python lines. Recording takes time.

    Raises:
        TypeError: `upstream_mr` is not a resource.

    Example:
        >>> import millpond
        >>> tracked = millpond.mr.TrackingResourceAdaptor(millpond.mr.CudaMemoryResource())
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=tracked)
        >>> tracked.get_allocated_bytes()
        1000
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, capture_stacks: bool = False) -> None:
        stacks = "on" if _arguments.flag(capture_stacks, "capture_stacks") else "off"
        self._on(upstream_mr, "tracking" + _options(stacks=stacks))

    def get_allocated_bytes(self) -> int:
        """Return the bytes of the live allocations.

        Example:
            >>> import millpond
            >>> tracked = millpond.mr.TrackingResourceAdaptor(millpond.mr.CudaMemoryResource())
            >>> tracked.get_allocated_bytes()
            0
        """
        return self._outstanding()[0]

    def get_outstanding_allocations_str(self) -> str:
        """Return the live allocations as text; the text is empty if there are none.

        Example:
            >>> import millpond
            >>> tracked = millpond.mr.TrackingResourceAdaptor(millpond.mr.CudaMemoryResource())
            >>> tracked.get_outstanding_allocations_str()
            ''
        """
        count, text = self._outstanding()
        return text if count else ""

    def log_outstanding_allocations(self) -> None:
        """Write the live allocations to Python's logger `millpond`, as a warning.

        Example:
            >>> import logging
            >>> import millpond
            >>> logging.getLogger("millpond").addHandler(logging.NullHandler())
            >>> tracked = millpond.mr.TrackingResourceAdaptor(millpond.mr.CudaMemoryResource())
            >>> tracked.log_outstanding_allocations()
        """
        import logging

        logging.getLogger("millpond").warning(self._outstanding()[1])


class FailureCallbackResourceAdaptor(UpstreamResourceAdaptor):
    """Calls a function when memory runs out, so that the program can free some memory.

    Args:
        upstream_mr: The resource below.
        callback: `callback(nbytes)` gets the size of the request in bytes. If the callback returns True, the
            request is tried again. If it returns False or raises an exception, the request fails. The
            exception becomes the cause (`__cause__`) of the `OutOfMemoryError`.

    Raises:
        TypeError: `upstream_mr` is not a resource, or `callback` is not a function.

    Example:
        >>> import millpond
        >>> limited = millpond.stack("cuda+limiting:limit=1MiB")
        >>> cache = [millpond.DeviceBuffer(size=1 << 20, mr=limited)]
        >>> def free(nbytes):
        ...     is_freed = bool(cache)
        ...     cache.clear()
        ...     return is_freed
        >>> resource = millpond.mr.FailureCallbackResourceAdaptor(limited, free)
        >>> millpond.DeviceBuffer(size=1 << 20, mr=resource).size
        1048576
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, callback: Callable[[int], bool]) -> None:
        _checked(upstream_mr, "upstream_mr")
        self._upstream = upstream_mr
        _arguments.function(callback, "callback")
        self._failure_callback(upstream_mr, callback)


class PrefetchResourceAdaptor(_Adaptor):
    """Moves each block of managed memory to the device when the block is allocated.

    Args:
        upstream_mr: The resource below, of managed memory.

    Raises:
        TypeError: `upstream_mr` is not a resource.

    Example:
        >>> import millpond
        >>> resource = millpond.mr.PrefetchResourceAdaptor(millpond.mr.ManagedMemoryResource())
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=resource)
    """

    _layer_name = "prefetch"


class ThreadSafeResourceAdaptor(UpstreamResourceAdaptor):
    """Lets one thread at a time use the resource below.

    Args:
        upstream_mr: The resource below.
        patience: The longest wait for another thread's call: seconds, or a text such as "500ms". None means
            60 seconds.

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: `patience` is malformed.

    Example:
        >>> import millpond
        >>> millpond.mr.ThreadSafeResourceAdaptor(millpond.mr.CudaMemoryResource())
        <ThreadSafeResourceAdaptor `cuda+thread_safe`>
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, patience: float | str | None = None) -> None:
        self._on(upstream_mr, "thread_safe" + _options(patience=_time(patience, "patience")))


class AlignedResourceAdaptor(UpstreamResourceAdaptor):
    """Aligns the addresses of blocks.

    Args:
        upstream_mr: The resource below.
        alignment: The alignment in bytes, a power of 2.
        alignment_threshold: A size in bytes. The adaptor passes smaller requests on unchanged.

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: `alignment` is not a power of 2, or a size is malformed.

    Example:
        >>> import millpond
        >>> aligned = millpond.mr.AlignedResourceAdaptor(millpond.mr.CudaMemoryResource(), 4096)
        >>> millpond.DeviceBuffer(size=1000, mr=aligned).ptr % 4096
        0
    """

    def __init__(
        self, upstream_mr: DeviceMemoryResource, alignment: Size = 256, alignment_threshold: Size = 0
    ) -> None:
        options = _options(
            alignment=_size(alignment, "alignment"),
            threshold=_size(alignment_threshold, "alignment_threshold"),
        )
        self._on(upstream_mr, "aligned" + options)


class RetryResourceAdaptor(UpstreamResourceAdaptor):
    """If memory runs out, waits for other threads to free some before the request fails.

    Args:
        upstream_mr: The resource below.
        timeout: The longest wait: seconds, or a text such as "500ms".

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: `timeout` is negative or too large.

    Example:
        >>> import millpond
        >>> millpond.mr.RetryResourceAdaptor(millpond.mr.CudaMemoryResource(), timeout=0.5)
        <RetryResourceAdaptor `cuda+retry:timeout=500ms`>
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, timeout: float | str = 0.1) -> None:
        self._on(upstream_mr, "retry" + _options(timeout=_time(timeout, "timeout")))


class FallbackResourceAdaptor(UpstreamResourceAdaptor):
    """Takes memory from another stack if the resource below has no memory.

    Args:
        upstream_mr: The resource to try first.
        to: The text of the stack that serves a request if `upstream_mr` is out of memory.

    Raises:
        TypeError: `upstream_mr` is not a resource.
        StackError: `to` is malformed.

    Example:
        >>> import millpond
        >>> limited = millpond.stack("cuda+limiting:limit=1MiB")
        >>> resource = millpond.mr.FallbackResourceAdaptor(limited, to="managed")
        >>> millpond.DeviceBuffer(size=2 << 20, mr=resource).size
        2097152
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, to: str = "managed") -> None:
        self._on(upstream_mr, f"fallback:to=({_arguments.text(to, 'to', _arguments.STACK)})")


class RecordingResourceAdaptor(UpstreamResourceAdaptor):
    """Keeps the last events, for `millpond.memory_snapshot`. `millpond.record_memory_history` adds it, too.

    Args:
        upstream_mr: The resource below.
        events: The most events to keep. None means 100,000.
        stacks: The calls whose call stack is captured: "off", "live", "allocations" or "all". None means
            "off".

    Raises:
        TypeError: `upstream_mr` is not a resource.
        ValueError: An option is malformed.

    Example:
        >>> import millpond
        >>> millpond.mr.RecordingResourceAdaptor(millpond.mr.CudaMemoryResource(), events=1000)
        <RecordingResourceAdaptor `cuda+recording:events=1000`>
    """

    def __init__(
        self, upstream_mr: DeviceMemoryResource, events: int | None = None, stacks: str | None = None
    ) -> None:
        options = _options(
            events=None if events is None else _arguments.whole(events, "events", "a number of events"),
            stacks=_word(stacks, "stacks"),
        )
        self._on(upstream_mr, "recording" + options)


class CaptureScopesMemoryResource(_Adaptor):
    """Creates scopes, which keep the memory of captured graphs.

    Args:
        upstream_mr: The resource below, with all pools.

    Raises:
        TypeError: `upstream_mr` is not a resource.

    Example:
        >>> import millpond
        >>> pool = millpond.mr.PoolMemoryResource(millpond.mr.CudaMemoryResource(), "1MiB")
        >>> scopes = millpond.mr.CaptureScopesMemoryResource(pool)
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=scopes)
    """

    _layer_name = "capture_scopes"


class PlanMemoryResource(UpstreamResourceAdaptor):
    """Serves a program from a prepared plan of its allocations.

    Args:
        upstream_mr: The resource below. It serves the requests that are not in the plan.
        file: The path of the plan, which `millpond-replay plan LOG -o FILE.plan` makes.

    Raises:
        TypeError: `upstream_mr` is not a resource.
        LogFileError: The plan cannot be read.

    Example:
        >>> import millpond
        >>> millpond.mr.PlanMemoryResource(millpond.mr.CudaMemoryResource(), "step.plan")  # doctest: +SKIP
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, file: FilePath) -> None:
        _checked(upstream_mr, "upstream_mr")
        self._on(upstream_mr, "plan", file=os.fsdecode(_arguments.path(file, "file")))


_BY_LAYER: dict[str, type[DeviceMemoryResource]] = {
    "cuda": CudaMemoryResource,
    "managed": ManagedMemoryResource,
    "pinned_host": PinnedHostMemoryResource,
    "host": PageableHostMemoryResource,
    "system": SystemMemoryResource,
    "sam_headroom": SamHeadroomMemoryResource,
    "cuda_async": CudaAsyncMemoryResource,
    "cuda_async_managed": CudaAsyncManagedMemoryResource,
    "cuda_async_pinned": CudaAsyncPinnedMemoryResource,
    "cuda_async_view": CudaAsyncViewMemoryResource,
    "pool": PoolMemoryResource,
    "arena": ArenaMemoryResource,
    "fixed_size": FixedSizeMemoryResource,
    "binning": BinningMemoryResource,
    "logging": LoggingResourceAdaptor,
    "failure_callback": FailureCallbackResourceAdaptor,
    "callback": CallbackMemoryResource,
    "limiting": LimitingResourceAdaptor,
    "budget": BudgetResourceAdaptor,
    "statistics": StatisticsResourceAdaptor,
    "tracking": TrackingResourceAdaptor,
    "prefetch": PrefetchResourceAdaptor,
    "thread_safe": ThreadSafeResourceAdaptor,
    "aligned": AlignedResourceAdaptor,
    "retry": RetryResourceAdaptor,
    "fallback": FallbackResourceAdaptor,
    "recording": RecordingResourceAdaptor,
    "capture_scopes": CaptureScopesMemoryResource,
    "plan": PlanMemoryResource,
}

# --- The default resource of each device ---

#: Guards `_objects`, and the order in which defaults are set. The end of a replaced default may run the
#: program's functions. So replaced defaults end only after the lock is released.
_lock = _locks.lock()
#: Guards the logs of the devices.
_logs = _locks.lock()
_objects: dict[Device, DeviceMemoryResource] = {}
_hooks: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []


def _device(device: DeviceLike | None, name: str = "device") -> Device:
    if device is None:
        return Device()
    if isinstance(device, Device):
        return device
    allowed = "a device or its number"
    if isinstance(device, str):
        allowed += f", for example millpond.Device({device!r})"
    return Device.find(_arguments.whole(device, name, allowed, most=(1 << 32) - 1))


def _devices(devices: DeviceLike | Iterable[DeviceLike] | None, name: str) -> list[Device]:
    """Return the devices of an argument that names one device or several."""
    several: Any = [devices]
    if isinstance(devices, Iterable) and not isinstance(devices, (str, bytes)):
        several = devices
    return [_device(device, name) for device in several]


def _known(resource: Resource) -> DeviceMemoryResource:
    """Return the Python object of a resource: the object that was set as the default, or else a new one."""
    known = _objects.get(resource.device)
    if known is not None and known.is_equal(resource) and known.text == resource.text:
        return known
    return _as_class(resource)


def get_per_device_resource(device: DeviceLike | None) -> DeviceMemoryResource:
    """Return the default resource of a device.

    Args:
        device: The device or its number; None means the current device.

    Returns:
        The object that was set as the default, or else a new object of the outermost layer's class.

    Raises:
        NoDeviceError: There is no such device.
        StackError: The default comes from MILLPOND_STACK, and the stack's text is malformed.

    Example:
        >>> import millpond
        >>> millpond.mr.get_per_device_resource(0)
        <CudaMemoryResource `cuda`>
    """
    device = _device(device)
    while True:
        before, found = _objects.get(device), _known(default_resource(device))
        with _lock:
            # If the entry differs, another thread has set a default meanwhile. Then the loop looks again.
            if _objects.get(device) is before:
                _objects[device] = found
                return found


def set_per_device_resource(device: DeviceLike | None, mr: DeviceMemoryResource) -> None:
    """Make a resource the default of its device, for all code in this process that uses libmillpond.

    Existing buffers keep the resource that they came from.

    Args:
        device: The device or its number; None means the current device.
        mr: The resource.

    Raises:
        TypeError: `mr` is not a millpond resource.
        InvalidArgumentError: `mr` belongs to another device.
        NoDeviceError: There is no such device.

    Example:
        >>> import millpond
        >>> millpond.mr.set_per_device_resource(0, millpond.stack("cuda+statistics"))
        >>> millpond.mr.get_per_device_resource(0).text
        'cuda+statistics'
    """
    _checked(mr, "mr")
    device = _device(device)
    if mr.device != device:
        raise InvalidArgumentError(f"{mr!r} is on {mr.device}, not on {device}; build it on {device}")
    with _lock:
        # Keeps the replaced objects until the lock is released.
        before = mr._make_default(), _objects.get(device)
        _objects[device] = mr
    del before


def get_current_device_resource() -> DeviceMemoryResource:
    """Return the default resource of the thread's current device.

    Raises:
        NoDeviceError: No device is available.
        StackError: The default comes from MILLPOND_STACK, and the stack's text is malformed.

    Example:
        >>> import millpond
        >>> millpond.mr.get_current_device_resource()
        <CudaMemoryResource `cuda`>
    """
    return get_per_device_resource(None)


def set_current_device_resource(mr: DeviceMemoryResource) -> None:
    """Make a resource the default of the thread's current device.

    Args:
        mr: The resource.

    Raises:
        TypeError: `mr` is not a millpond resource.
        InvalidArgumentError: `mr` belongs to another device.

    Example:
        >>> import millpond
        >>> pool = millpond.mr.PoolMemoryResource(millpond.mr.CudaMemoryResource(), "64MiB")
        >>> millpond.mr.set_current_device_resource(pool)
        >>> millpond.DeviceBuffer(size=1000).mr is pool
        True
    """
    set_per_device_resource(None, mr)


def get_per_device_resource_type(device: DeviceLike | None) -> type[DeviceMemoryResource]:
    """Return the class of a device's default resource.

    Args:
        device: The device or its number; None means the current device.

    Returns:
        The class.

    Raises:
        NoDeviceError: There is no such device.

    Example:
        >>> import millpond
        >>> millpond.mr.get_per_device_resource_type(0).__name__
        'CudaMemoryResource'
    """
    return type(get_per_device_resource(device))


def get_current_device_resource_type() -> type[DeviceMemoryResource]:
    """Return the class of the default resource of the thread's current device.

    Raises:
        NoDeviceError: No device is available.

    Example:
        >>> import millpond
        >>> millpond.mr.get_current_device_resource_type().__name__
        'CudaMemoryResource'
    """
    return type(get_current_device_resource())


def reset_per_device_resource(device: DeviceLike | None) -> None:
    """Restore the initial default resource of a device.

    The initial default is the stack whose text is in MILLPOND_STACK. If this variable is not set, the initial
    default is plain CUDA memory.

    Args:
        device: The device or its number; None means the current device.

    Raises:
        NoDeviceError: There is no such device.

    Example:
        >>> import millpond
        >>> millpond.mr.set_current_device_resource(millpond.stack("cuda+statistics"))
        >>> millpond.mr.reset_per_device_resource(0)
        >>> millpond.mr.get_per_device_resource(0).text
        'cuda'
    """
    device = _device(device)
    before = _objects.pop(device, None)
    reset_default_resource(device)
    del before


def is_initialized() -> bool:
    """Return True, because every device has a default resource. Programs written for RMM call this function.

    Raises:
        NoDeviceError: No device is available.

    Example:
        >>> import millpond
        >>> millpond.is_initialized()
        True
    """
    return Device() is not None


def available_device_memory() -> tuple[int, int]:
    """Return the free and the total memory of the current device, in bytes.

    Raises:
        NoDeviceError: No device is available.

    Example:
        >>> import millpond
        >>> free, total = millpond.mr.available_device_memory()
        >>> 0 < free <= total
        True
    """
    return Device().memory_info()


def register_reinitialize_hook(
    func: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs
) -> Callable[_P, _R]:
    """Register a function to call before each `reinitialize`. The function registered last is called first.

    Args:
        func: The function to register.
        args: The positional arguments for `func`.
        kwargs: The keyword arguments for `func`.

    Returns:
        `func`, so that `register_reinitialize_hook` works as a decorator.

    Raises:
        TypeError: `func` is not a function.

    Example:
        >>> import millpond
        >>> @millpond.register_reinitialize_hook
        ... def forget():
        ...     print("the resource changes")
        >>> millpond.reinitialize()
        the resource changes
        >>> millpond.unregister_reinitialize_hook(forget)
    """
    _arguments.function(func, "func")
    _hooks.append((func, args, kwargs))
    return func


def unregister_reinitialize_hook(func: Callable[..., object]) -> None:
    """Remove all registrations of a function. Functions are compared with `==`, so bound methods work too.

    Args:
        func: The function that was registered. If it was not registered, nothing changes.

    Example:
        >>> import millpond
        >>> hook = millpond.register_reinitialize_hook(print, "the resource changes")
        >>> millpond.unregister_reinitialize_hook(hook)
        >>> millpond.reinitialize()
    """
    _hooks[:] = [hook for hook in _hooks if hook[0] != func]


def reinitialize(
    pool_allocator: bool = False,
    managed_memory: bool = False,
    initial_pool_size: Size | None = None,
    maximum_pool_size: Size | None = None,
    devices: DeviceLike | Iterable[DeviceLike] | None = 0,
    logging: bool = False,
    log_file_name: FilePath | None = None,
    *,
    stack: str | None = None,
) -> None:
    """Set a new default resource on one or more devices.

    Existing buffers keep the resource that they came from.

    Args:
        pool_allocator: Whether to put a pool on top of the device's memory.
        managed_memory: Whether to use managed memory as the base.
        initial_pool_size: The size that the pool allocates at creation: bytes, a text such as "1GiB", or a
            share of the free memory such as "50%". None means half of the free memory.
        maximum_pool_size: The largest size of the pool: bytes, a text, or a share. None sets no limit.
        devices: One device, or several. Each is a device or its number. None means device 0.
        logging: Whether to log each call, as `LoggingResourceAdaptor` does.
        log_file_name: The path of the log; None means the path in MILLPOND_LOG_FILE or RMM_LOG_FILE.
        stack: The text of a stack. It replaces `pool_allocator`, `managed_memory` and the pool's sizes.

    Raises:
        NoDeviceError: There is no such device. Then no default changes.
        TypeError: An argument has the wrong type, such as a text for `pool_allocator`.
        ValueError: A size is malformed, no file is named for the log, or `stack` is given together with an
            argument that it replaces.
        OutOfMemoryError: A device has too little memory for `initial_pool_size`.

    Example:
        >>> import millpond
        >>> millpond.reinitialize(pool_allocator=True, initial_pool_size="64MiB")
        >>> millpond.mr.get_current_device_resource().pool_size()
        67108864
    """
    if isinstance(pool_allocator, str):
        raise TypeError(f"`pool_allocator` is True or False; pass the text as stack={pool_allocator!r}")
    pool_allocator = _arguments.flag(pool_allocator, "pool_allocator")
    managed_memory = _arguments.flag(managed_memory, "managed_memory")
    logging = _arguments.flag(logging, "logging")
    sizes = initial_pool_size, maximum_pool_size
    if stack is not None and (pool_allocator or managed_memory or any(size is not None for size in sizes)):
        raise ValueError(
            "`stack` stands for `pool_allocator`, `managed_memory` and the pool's sizes; "
            'write them in the text, such as "cuda+pool:initial=1GiB,max=4GiB"'
        )
    if stack is not None:
        _arguments.text(stack, "stack", _arguments.STACK)
    found = _devices(0 if devices is None else devices, "devices")
    for func, args, kwargs in reversed(_hooks):
        func(*args, **kwargs)
    made: list[DeviceMemoryResource] = []
    for device in found:
        if stack is not None:
            resource = globals()["stack"](stack, device)
        else:
            base = ManagedMemoryResource if managed_memory else CudaMemoryResource
            resource = base(device=device)
            if pool_allocator:
                resource = PoolMemoryResource(resource, *sizes)
        made.append(LoggingResourceAdaptor(resource, log_file_name) if logging else resource)
    for device, resource in zip(found, made, strict=True):
        set_per_device_resource(device, resource)


# --- Logging ---


def _log(device: Device, log_file_name: FilePath | None) -> None:
    before = get_per_device_resource(device)
    set_per_device_resource(device, LoggingResourceAdaptor(before, log_file_name))


def enable_logging(log_file_name: FilePath | None = None) -> None:
    """Log the calls to the default resources, with a separate file for each device.

    Two kinds of devices get a log: the current device, and each device whose default this process has set or
    read. For device 0, `log.csv` becomes `log.dev0.csv`. `LoggingResourceAdaptor` describes the placeholders
    in a path. If a device's default resource is already a log, this log stays.

    Args:
        log_file_name: The path; None means the path in MILLPOND_LOG_FILE, or else in RMM_LOG_FILE.

    Raises:
        ValueError: Neither `log_file_name` nor the environment names a file.
        LogFileError: A file cannot be opened.

    Example:
        >>> import os, tempfile
        >>> import millpond
        >>> millpond.enable_logging(os.path.join(tempfile.mkdtemp(), "log.csv"))
        >>> os.path.basename(millpond.get_log_filenames()[0])
        'log.dev0.csv'
        >>> millpond.disable_logging()
    """
    with _logs:
        get_current_device_resource()
        for device in list(_objects):
            if not isinstance(get_per_device_resource(device), LoggingResourceAdaptor):
                _log(device, log_file_name)


def disable_logging() -> None:
    """Remove the logs that are default resources. The resource below a log becomes the default again.

    If a log is below another layer, it writes its buffered rows and stays.

    Raises:
        LogFileError: A log's file cannot be written.

    Example:
        >>> import millpond
        >>> millpond.disable_logging()
    """
    with _logs:
        _flush_logs()
        for device in list(_objects):
            resource = get_per_device_resource(device)
            if isinstance(resource, LoggingResourceAdaptor):
                set_per_device_resource(device, resource.upstream_mr)


def _default_logs() -> list[tuple[Device, DeviceMemoryResource, bytes | None]]:
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


def get_log_filenames() -> dict[int, str | None]:
    """Return the file of each device's log.

    Returns:
        A dict that maps each device's number to the path of its log, or to None if the device has no log.

    Example:
        >>> import millpond
        >>> millpond.get_log_filenames()[0] is None
        True
    """
    with _logs:
        names: dict[int, str | None] = {device.ordinal: None for device in (Device(), *_objects)}
        for device, _, file in _default_logs():
            # A simulated and a real device may have the same number. Only a device with a log counts.
            if file is not None:
                names[device.ordinal] = os.fsdecode(file)
        return names


def _flush_logs() -> None:
    """Write the buffered rows of all logs."""
    for _, resource, file in _default_logs():
        if file is not None:
            resource._flush()
