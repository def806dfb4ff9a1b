"""The pools of CUDA's stream-ordered allocator (`cudaMemPool_t`), also between processes.

A `MemoryPool` is a pool that it makes, the device's current or default pool, or the pool at the base of a
stack. All objects for one pool share the pool.

- A pool that millpond made is destroyed when its last object, resource and imported block end, unless it is
  the device's current pool. Blocks that are live then stay valid until they are freed.
- The other pools belong to the driver, or to the library that made them.

>>> from millpond import mr
>>> pool = mr.MemoryPool(max_bytes="1GiB", release_threshold="64MiB")
>>> mr.set_current_device_resource(pool.resource())
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _arguments
from ._native import (
    Device,
    ImportedHandle,
    PoolHandle,
    Resource,
    graph_memory,
    graph_memory_reset_highs,
    graph_memory_trim,
)
from .typing import DeviceLike, Size, StreamLike

if TYPE_CHECKING:
    from .mr import CudaAsyncViewMemoryResource

#: CUDA's numbers of the attributes that C calls `MILLPOND_MEMORY_POOL_ATTRIBUTE_…`.
_RELEASE_THRESHOLD, _RESERVED, _RESERVED_HIGH, _USED, _USED_HIGH = 4, 5, 6, 7, 8

#: The words of `reuse`, with the numbers of their attributes.
_REUSE = {"follow": 1, "opportunistic": 2, "internal": 3}
_HANDLES = {"none": 0, "fd": 1, "fabric": 8, "fd/fabric": 9}
_ACCESS = {"none": 0, "read": 1, "read_write": 3}


def _bytes(size: Size, name: str) -> int:
    from . import mr

    return mr._bytes(size, name)


def _place(location: object, numa: object, here: bool = False) -> tuple[int, int]:
    """Return CUDA's numbers of a location. `here` also allows the NUMA node of the thread."""
    _arguments.choice(location, "location", ("device", "host"))
    if numa is None:
        return (1, 0) if location == "device" else (2, 0)
    if location == "device":
        raise ValueError("`numa` is for host memory; pass location='host', or omit it")
    if here and isinstance(numa, str) and numa == "current":
        return (4, 0)
    allowed = "the number of a NUMA node, " + ("'current', " if here else "") + "or None"
    return (3, _arguments.whole(numa, "numa", allowed, most=(1 << 31) - 1))


def _data(data: object, name: str, allowed: str) -> bytes:
    """Return 64 bytes."""
    if not isinstance(data, (bytes, bytearray)):
        raise _arguments.wrong(TypeError, name, allowed, data)
    if len(data) != 64:
        raise _arguments.wrong(ValueError, name, allowed, data)
    return bytes(data)


def _device(device: DeviceLike | None, name: str = "device") -> Device:
    from . import mr

    return mr._device(device, name)


class MemoryPool:
    """A new pool of the driver, with CUDA's defaults.

    Args:
        location: "device", or "host" for pinned host memory.
        numa: The NUMA node of a host pool. None means any node, which needs CUDA 13.0.
        managed: Whether the memory is managed, so that host and device share it. It needs CUDA 13.0.
        handles: The handles with which other processes can import the pool: "none", "fd", "fabric" or
            "fd/fabric". The driver returns the memory of such a pool only when the pool ends.
        max_bytes: The most bytes that the pool may hold, as a number or a text. With 0, the system decides,
            as in CUDA: the pool may hold all memory of its location.
        hw_decompress: Whether the device's decompression engine can use the memory.
        release_threshold: How many bytes the pool keeps when the program synchronizes, as a number or a text.
            None means CUDA's default: 0.
        reuse: How the driver reuses memory that other streams have freed: "follow/opportunistic/internal",
            some of these words, or "own". None means all three.
        device: The device or its number; None means the current device.

    Raises:
        UnsupportedError: The driver or the device does not support such a pool.
        ValueError: An argument is malformed.

    Example:
        >>> import millpond
        >>> pool = millpond.mr.MemoryPool(max_bytes="64MiB")
        >>> buffer = millpond.DeviceBuffer(size=1000, mr=pool.resource())
        >>> pool.used_bytes
        1024
    """

    _pool: PoolHandle

    def __init__(
        self,
        *,
        location: str = "device",
        numa: int | None = None,
        managed: bool = False,
        handles: str = "none",
        max_bytes: Size = 0,
        hw_decompress: bool = False,
        release_threshold: Size | None = None,
        reuse: str | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        place = _place(location, numa)
        _arguments.choice(handles, "handles", _HANDLES)
        self._pool = PoolHandle.new(
            _device(device),
            place,
            _HANDLES[handles],
            _bytes(max_bytes, "max_bytes"),
            _arguments.flag(managed, "managed"),
            _arguments.flag(hw_decompress, "hw_decompress"),
        )
        if release_threshold is not None:
            self.release_threshold = _bytes(release_threshold, "release_threshold")
        if reuse is not None:
            self.reuse = reuse

    @classmethod
    def _of(cls, pool: PoolHandle) -> "MemoryPool":
        made = cls.__new__(cls)
        made._pool = pool
        return made

    @staticmethod
    def current(device: DeviceLike | None = None) -> "MemoryPool":
        """Return the current pool of a device, from which `cudaMallocAsync` allocates.

        Args:
            device: The device or its number; None means the current device.

        Raises:
            UnsupportedError: The device has no pools.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool.current() == millpond.mr.MemoryPool.default()
            True
        """
        return MemoryPool._of(PoolHandle.current(_device(device)))

    @staticmethod
    def default(
        device: DeviceLike | None = None,
        *,
        location: str = "device",
        numa: int | None = None,
        managed: bool = False,
    ) -> "MemoryPool":
        """Return a default pool, which belongs to the driver.

        Args:
            device: The device or its number; None means the current device.
            location: "device", or "host" for pinned host memory, which needs CUDA 13.0.
            numa: The NUMA node of the host. None means any node.
            managed: Whether the memory is managed, which needs CUDA 13.0.

        Raises:
            UnsupportedError: The driver or the device has no such pool.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool.default().release_threshold
            0
            >>> managed = millpond.mr.MemoryPool.default(managed=True)
        """
        place = _place(location, numa)
        return MemoryPool._of(PoolHandle.default(_device(device), place, _arguments.flag(managed, "managed")))

    @staticmethod
    def from_handle(pool_handle: int, *, device: DeviceLike | None = None) -> "MemoryPool":
        """Return an object for a pool that another library made.

        Args:
            pool_handle: The handle (`cudaMemPool_t`) as a number. The other library keeps the pool while this
                object and its resources exist, and destroys it.
            device: The device of the pool, or its number; None means the current device.

        Example:
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool()
            >>> millpond.mr.MemoryPool.from_handle(pool.pool_handle) == pool
            True
        """
        allowed = "the handle of a pool as a number"
        handle = _arguments.whole(pool_handle, "pool_handle", allowed, least=1)
        return MemoryPool._of(PoolHandle.from_raw(_device(device), handle))

    @staticmethod
    def of(mr: Resource) -> "MemoryPool":
        """Return the pool at the base of a stack, such as the pool of `cuda_async`.

        Args:
            mr: The stack.

        Raises:
            UnsupportedError: The stack's base has no driver pool.
            TypeError: `mr` is not a resource.

        Example:
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool.of(millpond.stack("cuda_async:max=1GiB+statistics"))
            >>> pool.max_bytes
            1073741824
        """
        resource = _arguments.instance(mr, "mr", Resource, _arguments.RESOURCE)
        return MemoryPool._of(PoolHandle.of_resource(resource))

    @staticmethod
    def import_fd(fd: int, *, device: DeviceLike | None = None) -> "MemoryPool":
        """Import a pool of another process, the exporter.

        The imported pool cannot allocate, nor count its memory. `import_pointer` opens the exporter's blocks.
        This process must use a block only after the exporter's work on it is done. It must free the block,
        and finish its own work on it, before the exporter frees it.

        Args:
            fd: The file descriptor from `export_fd`, as this process received it. The caller closes it.
            device: The device or its number; None means the current device.

        Raises:
            InvalidArgumentError: `fd` is no pool of the device.

        Example:
            >>> import os
            >>> import millpond
            >>> exported = millpond.mr.MemoryPool(handles="fd").export_fd()
            >>> os.close(exported)
        """
        number = _arguments.whole(fd, "fd", "a file descriptor", most=(1 << 31) - 1)
        return MemoryPool._of(PoolHandle.import_fd(_device(device), number))

    @staticmethod
    def import_fabric(handle: bytes, *, device: DeviceLike | None = None) -> "MemoryPool":
        """Import a pool of another process, also on another machine, with the rules of `import_fd`.

        Args:
            handle: The 64 bytes from `export_fabric`.
            device: The device or its number; None means the current device.

        Raises:
            InvalidArgumentError: `handle` names no pool that the device can reach.
            UnsupportedError: This process cannot open the exporter's IMEX channel.

        Example:
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool(handles="fabric")
            >>> millpond.mr.MemoryPool.import_fabric(pool.export_fabric()).is_imported
            True
        """
        data = _data(handle, "handle", "the 64 bytes from `export_fabric`")
        return MemoryPool._of(PoolHandle.import_fabric(_device(device), data))

    def resource(self) -> "CudaAsyncViewMemoryResource":
        """Return a resource that allocates from this pool, as a base for a stack. It keeps the pool.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool()
            >>> stack = millpond.mr.StatisticsResourceAdaptor(pool.resource())
            >>> buffer = millpond.DeviceBuffer(size=1000, mr=stack)
        """
        from .mr import CudaAsyncViewMemoryResource

        made = CudaAsyncViewMemoryResource.__new__(CudaAsyncViewMemoryResource)
        self._pool.build(made)
        return made

    def set_current(self) -> None:
        """Make this pool its device's current pool, for the whole process. It then lives while it is current.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> before, pool = millpond.mr.MemoryPool.current(), millpond.mr.MemoryPool()
            >>> pool.set_current()
            >>> millpond.mr.MemoryPool.current() == pool
            True
            >>> before.set_current()
        """
        self._pool.set_current()

    @property
    def pool_handle(self) -> int:
        """The driver's handle of the pool (`cudaMemPool_t`) as a number.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().pool_handle != 0
            True
        """
        return self._pool.raw()

    @property
    def device(self) -> Device:
        """The device whose driver has the pool.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().device == millpond.Device()
            True
        """
        return self._pool.device()

    @property
    def is_imported(self) -> bool:
        """Whether the pool was imported from another process.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().is_imported
            False
        """
        return self._pool.is_imported()

    @property
    def location(self) -> str:
        """The location of the memory: "device" or "host".

        For a pool of another library, the driver must support CUDA 13.2. The same holds for `numa`,
        `handles`, `max_bytes`, `managed` and `hw_decompress`.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool(location="host", numa=0).location
            'host'
        """
        return "device" if self._pool.properties()[0][0] == 1 else "host"

    @property
    def numa(self) -> int | None:
        """The NUMA node of a host pool that is on one node; None for other pools.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool(location="host", numa=0).numa
            0
        """
        kind, node = self._pool.properties()[0]
        return node if kind == 3 else None

    @property
    def handles(self) -> str:
        """The handles with which other processes can import the pool.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool(handles="fd").handles
            'fd'
        """
        bits = self._pool.properties()[1]
        return next((name for name, known in _HANDLES.items() if known == bits), str(bits))

    @property
    def max_bytes(self) -> int:
        """The most bytes that the pool may hold; with 0, the system decides.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool(max_bytes="1MiB").max_bytes
            1048576
        """
        return self._pool.properties()[2]

    @property
    def managed(self) -> bool:
        """Whether the memory is managed.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().managed
            False
        """
        return self._pool.properties()[3]

    @property
    def hw_decompress(self) -> bool:
        """Whether the device's decompression engine can use the memory.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().hw_decompress
            False
        """
        return self._pool.properties()[4]

    @property
    def release_threshold(self) -> int:
        """How many bytes the pool keeps when the program synchronizes. It can be set, also to a text.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool()
            >>> pool.release_threshold = "64MiB"
            >>> pool.release_threshold
            67108864
        """
        return self._pool.get(_RELEASE_THRESHOLD)

    @release_threshold.setter
    def release_threshold(self, size: Size) -> None:
        self._pool.set(_RELEASE_THRESHOLD, _bytes(size, "release_threshold"))

    @property
    def reuse(self) -> str:
        """How the driver reuses memory that other streams have freed. It can be set.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool(reuse="own")
            >>> pool.reuse = "follow/internal"
            >>> pool.reuse
            'follow/internal'
        """
        return "/".join(word for word, number in _REUSE.items() if self._pool.get(number)) or "own"

    @reuse.setter
    def reuse(self, words: str) -> None:
        allowed = '"own", or some of the words follow, opportunistic and internal, joined by "/"'
        text = _arguments.text(words, "reuse", allowed)
        given = [] if text == "own" else text.split("/")
        if not _REUSE.keys() >= set(given):
            raise _arguments.wrong(ValueError, "reuse", allowed, words)
        for word, number in _REUSE.items():
            self._pool.set(number, int(word in given))

    @property
    def reserved_bytes(self) -> int:
        """The bytes that the pool holds, live and free.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().reserved_bytes
            0
        """
        return self._pool.get(_RESERVED)

    @property
    def reserved_high(self) -> int:
        """The highest number of bytes that the pool has held.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().reserved_high
            0
        """
        return self._pool.get(_RESERVED_HIGH)

    @property
    def used_bytes(self) -> int:
        """The bytes of the live blocks.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().used_bytes
            0
        """
        return self._pool.get(_USED)

    @property
    def used_high(self) -> int:
        """The highest number of bytes that were live.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().used_high
            0
        """
        return self._pool.get(_USED_HIGH)

    def reset_highs(self) -> None:
        """Restart `reserved_high` and `used_high` from the bytes of now.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().reset_highs()
        """
        self._pool.set(_RESERVED_HIGH, 0)
        self._pool.set(_USED_HIGH, 0)

    def trim(self, keep_bytes: Size = 0) -> int:
        """Release free memory to the device, after a wait for the device.

        Args:
            keep_bytes: How many bytes the pool may keep, as a number or a text.

        Returns:
            The number of released bytes.

        Raises:
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> millpond.mr.MemoryPool().trim()
            0
        """
        return self._pool.trim(_bytes(keep_bytes, "keep_bytes"))

    def access(
        self,
        device: DeviceLike | None = None,
        *,
        location: str = "device",
        numa: int | str | None = None,
    ) -> str:
        """Return the access of a device or of the host to the pool's memory: "none", "read" or "read_write".

        Args:
            device: The device or its number; None means the current device.
            location: "device", or "host" for the host, which is not a device.
            numa: With location="host": one NUMA node, or "current" for the node of this thread.

        Raises:
            InvalidArgumentError: The driver does not know the place.

        Example:
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool()
            >>> pool.access(), pool.access(location="host")
            ('read_write', 'none')
        """
        place = _place(location, numa, here=True)
        if location == "device":
            number = self._pool.access(_device(device))
        elif device is None:
            number = self._pool.host_access(place)
        else:
            raise ValueError("give `device` or location='host', not both")
        return next(word for word, known in _ACCESS.items() if known == number)

    def set_access(
        self,
        access: str,
        devices: DeviceLike | Iterable[DeviceLike] | None = None,
        *,
        location: str = "device",
        numa: int | str | None = None,
    ) -> None:
        """Set the access of devices or of the host, also to memory that the pool allocates later.

        A pool of host memory needs this call before its own device can use the memory.

        Args:
            access: "none", "read" or "read_write".
            devices: One device, or several. Each is a device or its number. None means the current device.
            location: "device", or "host" for the host, which is not a device.
            numa: With location="host": one NUMA node, or "current" for the node of this thread.

        Raises:
            InvalidArgumentError: One of the devices cannot access the memory, or the driver refuses this
                access to the host.
            ValueError: `access` is malformed.

        Example:
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool(location="host")
            >>> pool.set_access("read_write", millpond.Device())
        """
        _arguments.choice(access, "access", _ACCESS)
        from . import mr

        place = _place(location, numa, here=True)
        if location == "device":
            for device in mr._devices(devices, "devices"):
                self._pool.set_access(device, _ACCESS[access])
        elif devices is None:
            self._pool.set_host_access(place, _ACCESS[access])
        else:
            raise ValueError("give `devices` or location='host', not both")

    def export_fd(self) -> int:
        """Return a new file descriptor with which another process can import the pool. The caller closes it.

        Send it over a Unix socket (`socket.send_fds`), or let a child process inherit it.

        Raises:
            InvalidArgumentError: The pool was made without handles="fd".
            UnsupportedError: The pool was imported.

        Example:
            >>> import os
            >>> import millpond
            >>> os.close(millpond.mr.MemoryPool(handles="fd").export_fd())
        """
        return self._pool.export_fd()

    def export_fabric(self) -> bytes:
        """Return a fabric handle of 64 bytes, with which another process can import the pool.

        The process may run on another machine of the same NVLink domain. Both processes must be able to open
        the same IMEX channel (`/dev/nvidia-caps-imex-channels/channel0`).

        Raises:
            InvalidArgumentError: The pool was made without handles="fabric".
            UnsupportedError: The pool was imported.

        Example:
            >>> import millpond
            >>> len(millpond.mr.MemoryPool(handles="fabric").export_fabric())
            64
        """
        return self._pool.export_fabric()

    def export_pointer(self, ptr: int) -> bytes:
        """Return 64 bytes that describe a block to a process that imported the pool.

        Args:
            ptr: The address of the block, such as `buffer.ptr`.

        Raises:
            InvalidArgumentError: No block of this pool begins there, or the pool was made without handles.

        Example:
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool(handles="fd")
            >>> buffer = millpond.DeviceBuffer(size=1000, mr=pool.resource())
            >>> len(pool.export_pointer(buffer.ptr))
            64
        """
        return self._pool.export_pointer(_arguments.whole(ptr, "ptr", _arguments.ADDRESS))

    def import_pointer(self, data: bytes, size: int) -> "ImportedAllocation":
        """Open a block of the exporter, in an imported pool.

        Args:
            data: The 64 bytes from `export_pointer`.
            size: The size of the block in bytes, as the exporter requested it.

        Raises:
            InvalidArgumentError: The pool was not imported, or `data` describes no live block of the pool.

        Example:
            >>> import os
            >>> import millpond
            >>> pool = millpond.mr.MemoryPool(handles="fd")
            >>> buffer = millpond.DeviceBuffer(size=3, mr=pool.resource())
            >>> buffer.copy_from_host(b"abc")
            >>> data, fd = pool.export_pointer(buffer.ptr), pool.export_fd()
            >>> # In the other process:
            >>> imported = millpond.mr.MemoryPool.import_fd(fd)
            >>> with imported.import_pointer(data, 3) as block:
            ...     copy = millpond.DeviceBuffer(size=3)
            ...     copy.copy_from_device(block)
            ...     copy.tobytes()
            b'abc'
            >>> os.close(fd)
        """
        block = _data(data, "data", "the 64 bytes from `export_pointer`")
        whole = _arguments.whole_bytes(size, "size", "a whole number of bytes")
        return ImportedAllocation._of(self._pool.import_pointer(block), whole)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryPool):
            return NotImplemented
        return self.device == other.device and self.pool_handle == other.pool_handle

    def __hash__(self) -> int:
        return hash(self.pool_handle)

    def __repr__(self) -> str:
        return f"<MemoryPool {self.pool_handle:#x} of {self.device!r}>"


class ImportedAllocation:
    """A block of another process, opened in this process. `MemoryPool.import_pointer` makes it.

    It has CUDA's array interface, so CuPy, PyTorch and `DeviceBuffer.copy_from_device` read it as an array of
    bytes. When it ends, it waits for the device, and frees the block in this process. The exporter's block
    stays.

    Example:
        >>> import millpond
        >>> millpond.memory_pool.ImportedAllocation.__doc__ is not None
        True
    """

    _block: ImportedHandle
    _size: int

    @classmethod
    def _of(cls, block: ImportedHandle, size: int) -> "ImportedAllocation":
        made = cls.__new__(cls)
        made._block, made._size = block, size
        return made

    @property
    def ptr(self) -> int:
        """The address of the block in this process; 0 once it was freed.

        Example:
            >>> import millpond
            >>> isinstance(millpond.memory_pool.ImportedAllocation.ptr, property)
            True
        """
        return self._block.address()

    @property
    def size(self) -> int:
        """The size of the block in bytes.

        Example:
            >>> import millpond
            >>> isinstance(millpond.memory_pool.ImportedAllocation.size, property)
            True
        """
        return self._size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not self.ptr:
            raise ValueError("the imported block was freed")
        return {"shape": (self._size,), "typestr": "|u1", "data": (self.ptr, False), "version": 3}

    def free(self, stream: StreamLike | None = None) -> None:
        """Free the block in this process. A second call does nothing.

        Args:
            stream: The stream in whose order the block is freed. The program then synchronizes the stream
                before it tells the exporter. None waits for the device.

        Raises:
            InvalidArgumentError: The stream captures a graph. The block is then freed after a wait.

        Example:
            >>> import millpond
            >>> callable(millpond.memory_pool.ImportedAllocation.free)
            True
        """
        if stream is None:
            self._block.free()
        else:
            self._block.free(stream)

    def __enter__(self) -> "ImportedAllocation":
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class GraphMemory:
    """The memory that the graphs of a device allocate in their own nodes, in bytes.

    A program that calls `cudaMallocAsync` while it captures a graph makes such nodes. The driver keeps their
    memory apart from the pools, also after the graph has run. No resource of millpond makes such nodes.

    Args:
        device: The device or its number; None means the current device.

    Example:
        >>> import millpond
        >>> millpond.mr.GraphMemory().used_bytes
        0
    """

    def __init__(self, device: DeviceLike | None = None) -> None:
        self._device = _device(device)

    @property
    def used_bytes(self) -> int:
        """The bytes that graphs use now.

        Example:
            >>> import millpond
            >>> millpond.mr.GraphMemory().used_bytes
            0
        """
        return graph_memory(self._device)[0]

    @property
    def used_high(self) -> int:
        """The highest number of bytes that graphs used.

        Example:
            >>> import millpond
            >>> millpond.mr.GraphMemory().used_high
            0
        """
        return graph_memory(self._device)[1]

    @property
    def reserved_bytes(self) -> int:
        """The bytes that the driver reserves for graphs now.

        Example:
            >>> import millpond
            >>> millpond.mr.GraphMemory().reserved_bytes
            0
        """
        return graph_memory(self._device)[2]

    @property
    def reserved_high(self) -> int:
        """The highest number of bytes that the driver reserved for graphs.

        Example:
            >>> import millpond
            >>> millpond.mr.GraphMemory().reserved_high
            0
        """
        return graph_memory(self._device)[3]

    def reset_highs(self) -> None:
        """Restart `used_high` and `reserved_high` from the bytes of now.

        Example:
            >>> import millpond
            >>> millpond.mr.GraphMemory().reset_highs()
        """
        graph_memory_reset_highs(self._device)

    def trim(self) -> None:
        """Release the memory that the driver reserves for graphs and no graph uses.

        Example:
            >>> import millpond
            >>> millpond.mr.GraphMemory().trim()
        """
        graph_memory_trim(self._device)
