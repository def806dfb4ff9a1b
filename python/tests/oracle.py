"""A simulated device that checks the order of all work, and programs on it. A model knows the programs'
bytes."""

import ctypes
import os
import queue
import random
import threading

import numpy as np

import millpond
from millpond import _LIBRARY, DeviceBuffer, Stream, _native, mr

# The argument of `_native._oracle_mistakes`.
BEFORE, AFTER, SOURCE, EXPORT, UNKNOWN, THREAD, WAIT, THIRD, FOREIGN = (1 << bit for bit in range(9))


class Watched(mr.DeviceMemoryResource):
    """A resource under the checks of a simulated device."""

    def __init__(self, upstream_mr):
        self._watch(upstream_mr)


class Library:
    """Work of another library. It knows an address and a stream, and the package does not order it."""

    def __init__(self, device):
        self.functions = ctypes.CDLL(os.fspath(_LIBRARY))
        self.device = ctypes.c_void_p()
        found = self.functions.millpond_device_find(
            device.ordinal, device.is_simulated, ctypes.byref(self.device)
        )
        assert found == 0

    def __del__(self):
        self.functions.millpond_device_free(self.device)

    def fill(self, ptr, value, size, stream):
        self._done(
            self.functions.millpond_fill(
                self.device, ctypes.c_void_p(ptr), value, ctypes.c_uint64(size), ctypes.c_void_p(stream)
            )
        )

    def wait(self, stream, other):
        self._done(
            self.functions.millpond_stream_wait(self.device, ctypes.c_void_p(stream), ctypes.c_void_p(other))
        )

    @staticmethod
    def _done(status):
        assert status == 0, f"status {status}"


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_USED = b"used_dltensor"


class Taken:
    """A tensor that another library took out of a capsule. It ends with or without the GIL."""

    def __init__(self, capsule, with_gil):
        self.tensor = _pointer_of(capsule, b"dltensor")
        _rename(capsule, _USED)
        words = (ctypes.c_uint64 * 8).from_address(self.tensor)
        self.ptr = words[0]
        kind = ctypes.PYFUNCTYPE if with_gil else ctypes.CFUNCTYPE
        self.deleter = kind(None, ctypes.c_void_p)(words[7])

    def end(self):
        self.deleter(self.tensor)


class Bytes:
    """The bytes of a block in the model. Some bytes may be unknown."""

    def __init__(self, capacity):
        self.data, self.known = np.zeros(capacity, "u1"), np.zeros(capacity, bool)
        # Set while a consumer has the block and is not ordered with the buffer.
        self.is_lent = False


class Part:
    """A buffer, and the place of its bytes in the model."""

    def __init__(self, buffer, whole, start, size):
        self.buffer, self.whole, self.start, self.size = buffer, whole, start, size

    @property
    def range(self):
        return slice(self.start, self.start + self.size)

    def set(self, data, size=None):
        at = slice(self.start, self.start + (self.size if size is None else size))
        self.whole.data[at], self.whole.known[at] = data, True

    def check(self, seen, what):
        """Compare bytes with the model."""
        seen, known = np.frombuffer(seen, "u1"), self.whole.known[self.range]
        assert len(seen) == self.size, what
        assert (seen == self.whole.data[self.range])[known].all(), f"{what}: other bytes"


class Worker(threading.Thread):
    """A thread that runs tasks one at a time."""

    def __init__(self):
        super().__init__(daemon=True)
        self.todo, self.done = queue.SimpleQueue(), queue.SimpleQueue()
        self.start()

    def run(self):
        for work in iter(self.todo.get, None):
            try:
                self.done.put((work(), None))
            except BaseException as error:
                self.done.put((None, error))
            work = None

    def __call__(self, work):
        self.todo.put(work)
        answer, error = self.done.get()
        if error is not None:
            raise error
        return answer


class Interface:
    """An object of another library over a buffer's memory."""

    def __init__(self, interface):
        self.__cuda_array_interface__ = interface


class Program:
    """Random calls of every method that takes a stream, on several streams and threads."""

    LARGEST = 3000
    #: Whether to compare bytes with the model.
    compares = True

    def __init__(self, seed, stack="cuda+pool"):
        self.random = random.Random(seed)
        self.device = self.open(seed)
        self.library = Library(self.device)
        self.resource = self.build(stack)
        self.streams = [Stream(device=self.device, flags=flags) for flags in (0, 0, 1, 1)]
        self.streams += [millpond.DEFAULT_STREAM, millpond.PER_THREAD_DEFAULT_STREAM]
        self.parts, self.lent, self.workers = [], [], [Worker() for _ in range(2)]
        self.methods = [name for name in dir(self) if name.startswith("do_")]

    def open(self, seed):
        return _native._oracle_device(64 << 20, seed)

    def build(self, stack):
        return Watched(millpond.stack(stack, self.device))

    def violations(self):
        return _native._oracle_violations(self.device)

    def run(self, calls):
        try:
            for _ in range(calls):
                name = self.random.choice(self.methods)
                on = self.random.choice([*self.workers, *[None] * 6])
                on(getattr(self, name)) if on else getattr(self, name)()
            self.end()
        finally:
            for worker in self.workers:
                worker.todo.put(None)
        return self.violations()

    def end(self):
        while self.lent:
            self.do_end_export()
        for part in self.parts:
            if not part.whole.is_lent:
                self.check(part, part.buffer.tobytes(), "at the end")
        self.parts.clear()
        # New buffers reuse each of the blocks.
        for stream in self.streams:
            blocks = [self.new(size, stream) for size in (1, 300, 700, 1500, 3000) for _ in range(3)]
            for block in blocks:
                block.fill(0)

    # --- Parts of a call ---

    def check(self, part, seen, what):
        if self.compares:
            part.check(seen, what)

    def new(self, size, stream):
        return DeviceBuffer(size=size, stream=stream, mr=self.resource)

    def stream(self):
        return self.random.choice(self.streams)

    def kwargs(self):
        return {"stream": self.stream()} if self.random.random() < 0.8 else {}

    def part(self):
        """Return a buffer that no consumer has, or a new buffer."""
        free = [part for part in self.parts if not part.whole.is_lent]
        return self.random.choice(free) if free else self.do_new()

    def drop(self, part):
        self.parts.remove(part)

    # --- Calls ---

    def do_new(self):
        if len(self.parts) > 12:
            self.parts.pop(self.random.randrange(len(self.parts)))
        size = self.random.randint(1, self.LARGEST)
        part = Part(self.new(size, self.stream()), Bytes(size), 0, size)
        self.parts.append(part)
        return part

    def do_fill(self):
        part, value = self.part(), self.random.randrange(256)
        part.buffer.fill(value, **self.kwargs())
        part.set(value)

    do_fill_again = do_fill_more = do_fill

    def do_copy_from_host(self):
        part = self.part()
        data = np.frombuffer(self.random.randbytes(self.random.randint(0, part.size)), "u1")
        part.buffer.copy_from_host(data, **self.kwargs())
        part.set(data, len(data))

    def do_tobytes(self):
        part = self.part()
        self.check(part, part.buffer.tobytes(**self.kwargs()), "tobytes")

    def do_copy_to_host(self):
        part = self.part()
        self.check(part, part.buffer.copy_to_host(**self.kwargs()), "copy_to_host")

    def do_view(self):
        part = self.part()
        self.check(part, memoryview(part.buffer), "memoryview")

    def do_item(self):
        part = self.part()
        if part.size:
            index = self.random.randrange(part.size)
            seen, at = part.buffer[index], part.start + index
            is_right = not part.whole.known[at] or seen == part.whole.data[at]
            assert is_right or not self.compares, "an item: another byte"

    def do_copy_from_device(self):
        target, source = self.part(), self.part()
        if target.whole is source.whole or target.size < source.size:
            return
        named = source.buffer
        if self.random.random() < 0.01:
            named = Interface(named.__cuda_array_interface__)
        target.buffer.copy_from_device(named, **self.kwargs())
        at = slice(target.start, target.start + source.size)
        target.whole.data[at] = source.whole.data[source.range]
        target.whole.known[at] = source.whole.known[source.range]
        if self.random.random() < 0.5:
            self.drop(source)

    do_copy_from_device_again = do_copy_from_device

    def moved(self, part, buffer, size, capacity):
        """Return other memory with the bytes of a part."""
        whole, kept = Bytes(capacity), min(size, part.size)
        at = slice(part.start, part.start + kept)
        whole.data[:kept], whole.known[:kept] = part.whole.data[at], part.whole.known[at]
        return Part(buffer, whole, 0, size)

    def do_copy(self):
        part = self.part()
        self.parts.append(self.moved(part, part.buffer.copy(), part.size, part.size))

    def replace(self, part, size, capacity):
        self.drop(part)
        self.parts.append(self.moved(part, part.buffer, size, capacity))

    def do_resize(self):
        part, size = self.part(), self.random.randint(0, self.LARGEST)
        capacity = part.buffer.capacity()
        if part.buffer.mr is None:
            size = min(size, capacity)
        part.buffer.resize(size, **self.kwargs())
        if size > capacity:
            self.replace(part, size, size)
        else:
            part.size = size

    def do_reserve(self):
        part, wanted = self.part(), self.random.randint(0, self.LARGEST)
        capacity = part.buffer.capacity()
        if part.buffer.mr is None:
            return
        part.buffer.reserve(wanted, **self.kwargs())
        if wanted > capacity:
            self.replace(part, part.size, wanted)

    def do_shrink(self):
        part = self.part()
        capacity = part.buffer.capacity()
        if part.buffer.mr is None:
            return
        part.buffer.shrink_to_fit(**self.kwargs())
        if part.size < capacity:
            self.replace(part, part.size, part.size)

    def do_prefetch(self):
        self.part().buffer.prefetch(**self.kwargs())

    def do_slice(self):
        part = self.part()
        start = self.random.randint(0, part.size)
        stop = self.random.randint(start, part.size)
        self.parts.append(Part(part.buffer[start:stop], part.whole, part.start + start, stop - start))

    def do_drop(self):
        if self.parts:
            self.parts.pop(self.random.randrange(len(self.parts)))

    do_drop_again = do_drop

    def do_new_stream(self):
        """A stream ends with its last user, and buffers are users."""
        self.streams[self.random.randrange(4)] = Stream(device=self.device, flags=self.random.randrange(2))

    # --- Exports ---

    def do_from_dlpack(self):
        part = self.part()
        if part.size:
            other = millpond.from_dlpack(part.buffer, **self.kwargs())
            self.parts.append(Part(other, part.whole, part.start, part.size))

    do_from_dlpack_again = do_from_dlpack

    def do_capsule(self):
        """A capsule that no consumer takes."""
        self.part().buffer.__dlpack__(stream=self.random.choice([None, -1, 1, 2]))

    def do_export(self):
        """Another library takes a capsule, and works on its own stream until it ends the tensor."""
        part, stream = self.part(), self.stream()
        named = max(stream.ptr, 1) if self.random.random() < 0.97 else -1
        if not part.size or stream.ptr == 2 or len(self.lent) > 4:
            return
        taken = Taken(part.buffer.__dlpack__(stream=named), self.random.random() < 0.5)
        if named == -1:
            self.library.wait(stream.ptr, part.buffer.__cuda_array_interface__["stream"])
        part.whole.is_lent = True
        kept = stream if self.random.random() < 0.7 else None
        self.lent.append((taken, part.whole, part.buffer.stream, kept))
        value = self.random.randrange(256)
        self.library.fill(taken.ptr, value, part.size, stream.ptr)
        part.set(value)
        if self.random.random() < 0.5:
            # Only the tensor keeps the memory now.
            self.parts = [other for other in self.parts if other.whole is not part.whole]

    do_export_again = do_export

    def do_end_export(self):
        if self.lent:
            taken, whole, stream, _ = self.lent.pop(self.random.randrange(len(self.lent)))
            taken.end()
            whole.is_lent = False
            # The next owner of the memory, if it was freed.
            self.new(len(whole.data), stream).fill(0)

    def do_interface(self):
        """Another library works on a stream that it does not name while the buffer lives."""
        if self.random.random() < 0.8:
            return  # the host waits for the device, which makes an early error unlikely
        part, stream = self.part(), self.stream()
        interface = part.buffer.__cuda_array_interface__
        if not part.size or stream.ptr == 2 or any(lent[1] is part.whole for lent in self.lent):
            return
        self.library.wait(stream.ptr, interface["stream"])
        self.library.fill(interface["data"][0], 1, part.size, stream.ptr)
        # Only the buffer's end orders this work.
        part.whole.is_lent = True
        self.parts = [other for other in self.parts if other.whole is not part.whole]
