"""A memory resource of `cuda.core` over a millpond stack.

>>> import millpond.cuda_core
>>> mr = millpond.cuda_core.use()  # `Device().memory_resource`, from which `Device.allocate` takes memory
"""

import functools

from . import _library


def _core():
    return _library.framework("cuda.core", "cuda-core")


@functools.cache
def _class():
    core = _core()
    if not hasattr(core, "MemoryResource"):  # before 0.5 it stands elsewhere
        core = _library.framework("cuda.core.experimental", "'cuda-core>=0.5.1'")

    class MillpondMemoryResource(core.MemoryResource):
        """Memory of a millpond stack, in the order of streams."""

        def __init__(self, stack=None, device=None):
            ordinal = _library.ordinal_of(device, stack)
            self._resource = _library.prepare(stack, ordinal)
            self._ordinal = ordinal
            self._streams = {}

        @property
        def resource(self):
            """The millpond resource below."""
            return self._resource

        def allocate(self, size, stream=None, **options):
            handle = _stream_pointer(stream)
            ptr = self._resource.allocate(size, handle)
            self._streams[ptr] = handle, stream  # a stream lives as long as its memory
            return self._buffer(ptr, size, stream)

        def _buffer(self, ptr, size, stream):
            # `from_handle` takes the stream by keyword since 1.0, and only of cuda.core's own classes.
            kinds = tuple(getattr(core, name) for name in ("Stream", "GraphBuilder") if hasattr(core, name))
            if isinstance(stream, kinds):
                try:
                    return core.Buffer.from_handle(ptr, size, mr=self, stream=stream)
                except TypeError:  # the arguments are read first, so nothing was made
                    pass
            return core.Buffer.from_handle(ptr, size, mr=self)

        # 0.5 passes the stream by position, 1.x by keyword.
        def deallocate(self, ptr, size, stream=None, **options):
            ptr = int(ptr)
            handle = self._streams.pop(ptr, (0, None))[0]
            if stream is not None:
                handle = _stream_pointer(stream)
            self._resource.deallocate(ptr, size, handle)

        @property
        def is_device_accessible(self):
            return self._resource.is_device_accessible

        @property
        def is_host_accessible(self):
            return self._resource.is_host_accessible

        @property
        def is_managed(self):
            return "managed" in self._resource.text.split("+")[0]

        @property
        def device_id(self):
            return self._ordinal

    return MillpondMemoryResource


def _stream_pointer(stream):
    # A graph builder stands for the stream that it captures.
    if stream is not None and not hasattr(stream, "__cuda_stream__") and hasattr(stream, "stream"):
        stream = stream.stream
    return _library.stream_pointer(stream)


def memory_resource(stack=None, device=None):
    """Return a `cuda.core.MemoryResource` over a device's stack: a text, a resource, or the default."""
    return _class()(stack, device)


def use(stack=None, device=None):
    """Make a stack the `memory_resource` of a device in cuda.core, and return that."""
    made = memory_resource(stack, device)
    _core().Device(made.device_id).memory_resource = made
    return made
