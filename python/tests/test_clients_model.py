"""The buffers take every step of the model of stream order (docs/design/stream-order.md), and agree with it.

The model's text is the one that is proved: scripts/proof/clients.py. In each state at a small scale, the real
buffers take each step, on several threads. The simulated device must find a wrong order exactly where the
model's rule is broken.
"""

import collections
import importlib
import os
import pathlib
import sys

import oracle
import pytest

import millpond
from millpond import DeviceBuffer, Stream, _native

PROOF = pathlib.Path(__file__).parents[2] / "scripts/proof"
if not PROOF.exists():
    pytest.skip("needs the sources of the proof", allow_module_level=True)
sys.path.insert(0, str(PROOF))

clients = importlib.import_module("clients")
Values = importlib.import_module("values").Values

IS_THOROUGH = bool(os.environ.get("MILLPOND_THOROUGH"))
SIZE = 5000
LEGACY, ONE, TWO = range(3)
MAIN = 0


class Model:
    """A state of the model, with one block and two uses. All streams of a thread are `local`."""

    logic = Values(clients, {"stream": 3, "block": 1, "thread": 2}, 0)

    def __init__(self, are_local):
        self.are_local = are_local
        new = {"bool": False, "place": "pool", "call": "idle", "stream": LEGACY, "block": 0}
        self.fields = {
            name: dict.fromkeys(self.logic.places(index), new[value])
            for name, (index, value) in clients.FIELDS.items()
        }
        for name in ("exists", "after"):
            self.fields[name] = dict.fromkeys(self.fields[name], True)
        self.fields["local"] = {(LEGACY,): False, (ONE,): are_local, (TWO,): are_local}
        # The default stream of the other thread.
        self.logic.other = lambda stream: {ONE: TWO, TWO: ONE}.get(stream, ONE)
        self.is_broken = False
        assert clients.start(self.logic, self.state())

    def state(self):
        return self.logic.state(self.fields)

    def __getattr__(self, name):
        table = self.__dict__["fields"][name]
        return lambda *at: table[at]

    def after(self, actions, mistake):
        """Return the state after some steps, or None if one of them is not possible."""
        next_model = object.__new__(Model)
        next_model.__dict__.update(self.__dict__)
        for name, *named in actions:
            possible, after = clients.STEPS[name][0](self.logic, next_model.state(), mistake, *named)
            if not possible:
                return None
            next_model.fields = {
                field: {at: getattr(after, field)(*at) for at in table}
                for field, table in next_model.fields.items()
            }
            next_model.is_broken |= not clients.rule(self.logic, next_model.state())
        return next_model

    def key(self):
        """Leave out the fields that the next steps do not read."""
        if self.place(0) == "pool":
            return tuple(self.fields["exists"].values()), tuple(self.fields["captures"].values())
        calls = [(self.call(t), self.on(t)) if self.call(t) != "idle" else None for t in range(2)]
        names = ("exists", "captures", "place", "home", "at_large", "ready", "after")
        return tuple(tuple(self.fields[name].values()) for name in names), tuple(map(str, calls))


class World:
    """Real buffers on a simulated device. Each call runs on the main thread or on a worker."""

    def __init__(self, are_local, workers):
        self.device = _native._oracle_device(64 << 20, 1)
        self.resource = oracle.Watched(millpond.stack("cuda+pool", self.device))
        self.library = oracle.Library(self.device)
        self.workers = workers
        own = [millpond.PER_THREAD_DEFAULT_STREAM] * 2
        streams = own if are_local else [Stream(device=self.device, flags=1) for _ in range(2)]
        self.streams = [millpond.DEFAULT_STREAM, *streams]
        self.pointers = [stream.ptr or 1 for stream in self.streams]
        self.buffer, self.address, self.exports = None, 0, [None, None]

    def on(self, caller, work):
        return work() if caller == MAIN else self.workers[caller - 1](work)

    def allocate(self, stream):
        # An earlier owner of the block still works on it.
        earlier = DeviceBuffer(size=SIZE, stream=self.streams[stream], mr=self.resource)
        earlier.fill(1)
        del earlier
        self.buffer = DeviceBuffer(size=SIZE, stream=self.streams[stream], mr=self.resource)
        self.address = self.buffer.ptr

    def use(self, stream):
        self.buffer.fill(2, self.streams[stream])

    def lend(self, thread, stream):
        named = -1 if stream is None else self.pointers[stream]
        self.exports[thread] = oracle.Taken(self.buffer.__dlpack__(stream=named), with_gil=True)

    def end(self, thread):
        self.exports[thread].end()
        self.exports[thread] = None

    def work(self, stream):
        self.library.fill(self.address, 3, SIZE, self.pointers[stream])

    def order(self, stream, other):
        self.library.wait(self.pointers[stream], self.pointers[other])

    def share(self):
        assert self.buffer.__cuda_array_interface__["data"][0] == self.address

    def drop(self, stream, thread=None):
        """Drop the buffer, and end its last export. The stream of the free gets the block again."""
        self.buffer = None
        if thread is not None:
            self.end(thread)
        DeviceBuffer(size=SIZE, stream=self.streams[stream], mr=self.resource)

    def destroy(self, stream):
        self.streams[stream] = None

    def capture(self, stream, begins):
        _native._oracle_capture(self.device, self.streams[stream], begins)

    def violations(self):
        return _native._oracle_violations(self.device)


def steps(model):
    """Yield what can be tried: the model's steps, the thread, and the same steps of real buffers."""
    home, threads = model.home(0), [MAIN, 1, 2] if model.are_local else [MAIN]

    def may_name(caller, stream):
        return not model.local(stream) or caller == stream

    def here(caller, stream):
        return not model.local(stream) or caller == stream

    for caller in threads:
        is_home = here(caller, home)
        for stream in filter(lambda it: may_name(caller, it), range(3)):
            begin = [("Allocate", 0, stream), ("HandOver", 0)]
            yield begin, caller, lambda world, s=stream: world.allocate(s)
            use = [("Use", 0, 0, stream, is_home), ("Work", 0), ("End", 0, is_home, True)]
            if model.call(0) == "idle":
                yield use, caller, lambda world, s=stream: world.use(s)
            works = [] if model.captures(stream) else [("Work",)]
            for thread in range(2):
                lend = [("Lend", thread, 0, stream, is_home), *[(it, thread) for (it,) in works]]

                def take(world, t=thread, s=stream, works=bool(works)):
                    world.lend(t, s)
                    if works:
                        world.work(s)

                yield lend, caller, take
                work = [("Work", thread)]
                if model.on(thread) == stream:
                    yield work, caller, lambda world, s=stream: world.work(s)
                yield [("WorkUnnamed", thread, stream)], caller, lambda world, s=stream: world.work(s)
            yield [("WorkAtLarge", 0, stream)], caller, lambda world, s=stream: world.work(s)
        for thread in range(2):
            end = [("End", thread, is_home, here(caller, model.on(thread)))]
            yield end, caller, lambda world, t=thread: world.end(t)
            # The export was the last owner.
            last = [*end, ("Release", 0, is_home), ("PassOn", 0)]
            freed = home if is_home else LEGACY
            yield last, caller, lambda world, t=thread, s=freed: world.drop(s, t)
        release = [("Release", 0, is_home), ("PassOn", 0)]
        freed = home if is_home else LEGACY
        yield release, caller, lambda world, s=freed: world.drop(s)
    for thread in range(2):
        yield [("LendUnnamed", thread, 0)], MAIN, lambda world, t=thread: world.lend(t, None)
    yield [("Share", 0)], MAIN, World.share
    if not model.are_local:
        for stream in (ONE, TWO):
            if not model.captures(stream):
                yield [("Destroy", stream)], MAIN, lambda world, s=stream: world.destroy(s)
            begin, end = ("BeginCapture", stream), ("EndCapture", stream)
            yield [begin], MAIN, lambda world, s=stream: world.capture(s, True)
            yield [end], MAIN, lambda world, s=stream: world.capture(s, False)
        # With the legacy stream, this is not possible beside a capture of a blocking stream.
        for stream, other in ((ONE, TWO), (TWO, ONE)):
            yield [("Order", stream, other)], MAIN, lambda world, s=stream, o=other: world.order(s, o)


def ending(model):
    """Return the steps with which all exports and the buffer end, and the same steps of real buffers."""
    threads = [thread for thread in range(2) if model.call(thread) != "idle"]
    home, is_held = model.home(0), model.place(0) == "held"
    is_home = not model.local(home)
    actions = [("End", thread, is_home, not model.local(model.on(thread))) for thread in threads]
    actions += [("Release", 0, True)] if is_held else []

    def end(world):
        for thread in threads:
            world.end(thread)
        if is_held:
            world.on(MAIN if is_home else home, lambda: world.drop(home))

    return actions, end


def run(world, path):
    for caller, body in path:
        world.on(caller, lambda body=body: body(world))
    return bool(world.violations())


def walk(are_local, most, mistake=None):
    """Take each step from the first states, and end all. Return the number of steps, or what differs."""
    workers = [oracle.Worker() for _ in range(2)]
    start = Model(are_local)
    known, ahead, count = {start.key()}, collections.deque([(start, [])]), 0
    try:
        for _ in range(most):
            model, path = ahead.popleft()
            for actions, caller, body in steps(model):
                after = model.after(actions, mistake)
                if after is None:
                    continue
                count += 1
                world, step = World(are_local, workers), [*path, (caller, body)]
                is_found, is_broken = run(world, step), after.is_broken
                if not is_broken:
                    last, end = ending(after)
                    is_broken = after.after(last, mistake).is_broken
                    is_found |= run(world, [(MAIN, end)])
                if is_found != is_broken:
                    return f"{actions} in {model.key()}: the model says {is_broken}, the device {is_found}"
                if not is_broken and after.key() not in known:
                    known.add(after.key())
                    ahead.append((after, step))
    finally:
        for worker in workers:
            worker.todo.put(None)
    return count


@pytest.mark.parametrize("are_local", [False, True])
def test_the_buffers_take_the_steps_of_the_model(are_local):
    count = walk(are_local, 2000 if IS_THOROUGH else 80)
    assert isinstance(count, int) and count > 1000, count


MISTAKES = {
    "UseWithoutWait": (oracle.BEFORE, False),
    "UseNotFollowed": (oracle.AFTER, False),
    "ExportNotFollowed": (oracle.EXPORT, False),
    "UnknownNotAwaited": (oracle.UNKNOWN, False),
    "OtherThreadsStream": (oracle.THREAD, True),
    "LegacyStandsForTwo": (oracle.THIRD, True),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_either_is_found_by_the_other(mistake):
    number, are_local = MISTAKES[mistake]
    assert "the model says True" in str(walk(are_local, 500, mistake))
    _native._oracle_mistakes(number)
    try:
        assert "the model says False" in str(walk(are_local, 500))
    finally:
        _native._oracle_mistakes(0)
