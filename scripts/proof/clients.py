"""The model of the pool's clients: Python's buffers, their exports, and layers that submit work.

Its rule is what the model of the pool assumes of its clients (`pool.py`): a free comes after all work on the
block, and no work touches a block that its client does not hold. The names and the order of the steps follow
the model in Rust (resources/src/stream_order/clients), which explains them. `compare.py` compares the two.
"""

from enum import Enum

from formulas import parts_of, put

Place = Enum("Place", ["pool", "new", "held", "old"])
Call = Enum("Call", ["idle", "use", "loan", "unnamed"])
ENUMS = (Place, Call)
# The legacy default stream.
CONSTANTS = {"legacy": "stream"}
# z3 shows states with this many blocks.
BLOCKS = 1

FIELDS = {
    "exists": (("stream",), "bool"),
    "captures": (("stream",), "bool"),
    # Whether it is a thread's default stream, which has another meaning on each thread.
    "local": (("stream",), "bool"),
    "place": (("block",), "place"),
    # The stream of the allocation, and of the free.
    "home": (("block",), "stream"),
    # Whether it is memory of another library, and ends with a call of that library.
    "foreign": (("block",), "bool"),
    # The belief that work may run on unnamed streams.
    "at_large": (("block",), "bool"),
    # The truth: whether work may run on a block that its client does not hold.
    "stray": (("block",), "bool"),
    # The truth: the streams whose next work comes after all work of earlier owners.
    "ready": (("block", "stream"), "bool"),
    # The truth: after the work that was submitted to the first stream, the second stream's next work comes.
    "after": (("block", "stream", "stream"), "bool"),
    "call": (("thread",), "call"),
    # Of a thread with a use or an export: the block and, if it is named, the stream.
    "of": (("thread",), "block"),
    "on": (("thread",), "stream"),
}


# The truth.


def gains(logic, s, stream, other):
    """Whether the order of a stream also holds for another one, as the legacy stream waits for local ones."""
    with_legacy = (s.local(stream) & (other == logic.legacy)) | ((stream == logic.legacy) & s.local(other))
    return (other == stream) | with_legacy


def submit(logic, s, block, stream, if_true=True):
    """Submits work on a block."""

    def after(b, worker, other):
        is_its = (b == block) & (worker == stream) & if_true
        return logic.ite(is_its, gains(logic, s, stream, other), s.after(b, worker, other))

    return s.but(after=after)


def follow(logic, s, stream, other):
    """Makes a stream wait for the work submitted so far to another one."""
    return s.but(
        after=lambda b, worker, x: (
            s.after(b, worker, x) | (gains(logic, s, stream, x) & s.after(b, worker, other))
        ),
        ready=lambda b, x: s.ready(b, x) | (gains(logic, s, stream, x) & s.ready(b, other)),
    )


def wait_for_device(logic, s, if_true=True):
    """The host waits for all work that is not captured."""
    return s.but(
        after=lambda b, worker, x: s.after(b, worker, x) | if_true,
        ready=lambda b, x: s.ready(b, x) | if_true,
    )


def wait_for_stream(logic, s, stream):
    """The host waits for the work submitted so far to a stream."""
    return s.but(
        after=lambda b, worker, x: s.after(b, worker, x) | s.after(b, worker, stream),
        ready=lambda b, x: s.ready(b, x) | s.ready(b, stream),
    )


def either(logic, condition, one, other):
    """Returns the truth of one state or of the other."""
    return other.but(
        after=lambda b, worker, x: logic.ite(condition, one.after(b, worker, x), other.after(b, worker, x)),
        ready=lambda b, x: logic.ite(condition, one.ready(b, x), other.ready(b, x)),
    )


# The steps. Each returns whether it is possible, and the next state.


def is_used(logic, s, block, thread):
    return logic.no(s.call(thread) == logic.idle) & (s.of(thread) == block)


def name(logic, s, wrong, stream, is_here):
    """Returns the stream that a stored handle means, on the thread of the stream or on another one."""
    elsewhere = logic.other(stream) if wrong == "OtherThreadsStream" else logic.legacy
    return logic.ite(s.local(stream) & logic.no(is_here), elsewhere, stream)


def order(logic, s, wrong, stream, other):
    """Makes a stream wait for another. If one of them captures, the host waits for the device instead."""
    is_captured = s.captures(stream) | s.captures(other)
    captured = s if wrong == "OrderInCapture" else wait_for_device(logic, s)
    ordered = either(logic, is_captured, captured, follow(logic, s, stream, other))
    return either(logic, stream == other, s, ordered)


def allocate(logic, s, wrong, block, stream):
    return (s.place(block) == logic.pool) & s.exists(stream), s.but(
        place=put(logic, s.place, block, to=logic.new),
        home=put(logic, s.home, block, to=stream),
        foreign=put(logic, s.foreign, block, to=False),
        at_large=put(logic, s.at_large, block, to=False),
        ready=lambda b, x: logic.ite(b == block, gains(logic, s, stream, x), s.ready(b, x)),
        after=lambda b, worker, x: (b == block) | s.after(b, worker, x),
    )


def take_foreign(logic, s, wrong, block, stream):
    possible, next_state = allocate(logic, s, wrong, block, stream)
    return possible, next_state.but(
        place=put(logic, s.place, block, to=logic.held),
        foreign=put(logic, s.foreign, block, to=True),
    )


def work_of_layer(logic, s, wrong, block, place):
    home = s.home(block)
    worker = logic.other(home) if wrong == "LayerOnOwnStream" else home
    possible = (s.place(block) == place) & logic.no(s.foreign(block))
    if wrong == "LayerInCapture":
        stray = put(logic, s.stray, block, to=s.stray(block) | s.captures(home))
        return possible, submit(logic, s, block, worker, logic.no(s.captures(home))).but(stray=stray)
    return possible & logic.no(s.captures(home)), submit(logic, s, block, worker)


def work_new(logic, s, wrong, block):
    return work_of_layer(logic, s, wrong, block, logic.new)


def hand_over(logic, s, wrong, block):
    next_state = s.but(place=put(logic, s.place, block, to=logic.held))
    if wrong == "LayerSaysReady":
        next_state = next_state.but(home=put(logic, s.home, block, to=logic.other(s.home(block))))
    return s.place(block) == logic.new, next_state


def begin(logic, s, thread, block, stream, call):
    return s.but(
        call=put(logic, s.call, thread, to=call),
        of=put(logic, s.of, thread, to=block),
        on=put(logic, s.on, thread, to=stream),
    )


def may_begin(logic, s, thread, block):
    return (s.call(thread) == logic.idle) & (s.place(block) == logic.held)


def use(logic, s, wrong, thread, block, stream, here):
    possible = may_begin(logic, s, thread, block) & s.exists(stream) & logic.no(s.captures(stream))
    own = name(logic, s, wrong, s.home(block), here)
    ordered = s if wrong == "UseWithoutWait" else order(logic, s, wrong, stream, own)
    return possible, begin(logic, ordered, thread, block, stream, logic.use)


def lend(logic, s, wrong, thread, block, stream, here):
    own = name(logic, s, wrong, s.home(block), here)
    ordered = order(logic, s, wrong, stream, own)
    if wrong == "LendInCapture":
        ordered = either(logic, s.captures(stream) & s.captures(own), s, ordered)
    possible = may_begin(logic, s, thread, block) & s.exists(stream)
    return possible, begin(logic, ordered, thread, block, stream, logic.loan)


def lend_unnamed(logic, s, wrong, thread, block):
    possible = may_begin(logic, s, thread, block)
    return possible, begin(logic, s, thread, block, s.home(block), logic.unnamed)


def share(logic, s, wrong, block):
    return s.place(block) == logic.held, s.but(at_large=put(logic, s.at_large, block, to=True))


def work(logic, s, wrong, thread):
    block, stream = s.of(thread), s.on(thread)
    is_named = (s.call(thread) == logic.use) | (s.call(thread) == logic.loan)
    possible = is_named & s.exists(stream) & logic.no(s.captures(stream))
    return possible, submit(logic, s, block, stream)


def work_unnamed(logic, s, wrong, thread, stream):
    block = s.of(thread)
    is_ready = s.exists(stream) & logic.no(s.captures(stream)) & s.ready(block, stream)
    return (s.call(thread) == logic.unnamed) & is_ready, submit(logic, s, block, stream)


def work_at_large(logic, s, wrong, block, stream):
    is_ready = s.exists(stream) & logic.no(s.captures(stream)) & s.ready(block, stream)
    possible = (s.place(block) == logic.held) & is_ready
    if wrong != "SourceNotUsed":
        possible = possible & s.at_large(block)
    return possible, submit(logic, s, block, stream)


def end(logic, s, wrong, thread, here, there):
    call, block = s.call(thread), s.of(thread)
    home = logic.other(s.home(block)) if wrong == "ImportHasOwnOrder" else s.home(block)
    own = name(logic, s, wrong, home, here)
    is_use = call == logic.use
    stream = logic.ite(is_use, s.on(thread), name(logic, s, wrong, s.on(thread), there))
    dead = s if wrong == "DeadStreamSkipped" else wait_for_device(logic, s)
    alive = order(logic, s, wrong, own, stream)
    # On a third thread, the legacy stream stands for the streams of two threads.
    are_two = (own == stream) & s.local(home) & s.local(s.on(thread)) & logic.no(home == s.on(thread))
    if wrong != "LegacyStandsForTwo":
        alive = either(logic, are_two, wait_for_device(logic, s), alive)
    named = either(logic, s.exists(s.on(thread)), alive, dead)
    ended = either(logic, call == logic.unnamed, wait_for_device(logic, s), named)
    if wrong == "UseNotFollowed":
        ended = either(logic, is_use, s, ended)
    if wrong == "ExportNotFollowed":
        ended = either(logic, is_use, ended, s)
    return logic.no(call == logic.idle), ended.but(call=put(logic, s.call, thread, to=logic.idle))


def fail(logic, s, wrong, thread):
    block = s.of(thread)
    is_large = s.at_large(block) if wrong == "FailureForgotten" else True
    return logic.no(s.call(thread) == logic.idle), s.but(
        call=put(logic, s.call, thread, to=logic.idle),
        at_large=put(logic, s.at_large, block, to=is_large),
    )


def release(logic, s, wrong, block, here):
    possible = s.place(block) == logic.held
    if wrong != "ReleaseDuringUse":
        possible = possible & logic.every(("thread",), lambda t: logic.no(is_used(logic, s, block, t)))
    own = name(logic, s, wrong, s.home(block), here)
    captured = s if wrong == "ForeignEndsInCapture" else wait_for_device(logic, s)
    of_foreign = either(logic, s.captures(own), captured, wait_for_stream(logic, s, own))
    ordered = either(logic, s.foreign(block), of_foreign, s)
    if wrong != "UnknownNotAwaited":
        ordered = either(logic, s.at_large(block), wait_for_device(logic, s), ordered)
    return possible, ordered.but(
        place=put(logic, s.place, block, to=logic.old),
        home=put(logic, s.home, block, to=own),
    )


def work_old(logic, s, wrong, block):
    return work_of_layer(logic, s, wrong, block, logic.old)


def pass_on(logic, s, wrong, block):
    next_state = s.but(place=put(logic, s.place, block, to=logic.pool))
    if wrong == "LayerAfterPassingOn":
        next_state = next_state.but(stray=put(logic, s.stray, block, to=True))
    return s.place(block) == logic.old, next_state


def program_order(logic, s, wrong, stream, other):
    are_alive = s.exists(stream) & s.exists(other)
    return are_alive & logic.no(s.captures(stream) | s.captures(other)), follow(logic, s, stream, other)


def has_call(logic, s, stream):
    """Whether a call of a buffer uses the stream now."""
    return logic.no(
        logic.every(("thread",), lambda t: logic.no((s.call(t) == logic.use) & (s.on(t) == stream)))
    )


def destroy(logic, s, wrong, stream):
    is_home = logic.no(
        logic.every(
            ("block",), lambda b: logic.no((s.home(b) == stream) & logic.no(s.place(b) == logic.pool))
        )
    )
    is_needed = (stream == logic.legacy) | s.local(stream) | is_home | has_call(logic, s, stream)
    return s.exists(stream) & logic.no(is_needed), s.but(exists=put(logic, s.exists, stream, to=False))


def begin_capture(logic, s, wrong, stream):
    possible = s.exists(stream) & logic.no(s.captures(stream) | (stream == logic.legacy))
    return possible & logic.no(has_call(logic, s, stream)), s.but(
        captures=put(logic, s.captures, stream, to=True)
    )


def end_capture(logic, s, wrong, stream):
    return s.captures(stream), s.but(captures=put(logic, s.captures, stream, to=False))


STEPS = {
    "Allocate": (allocate, ("block", "stream")),
    "TakeForeign": (take_foreign, ("block", "stream")),
    "WorkNew": (work_new, ("block",)),
    "HandOver": (hand_over, ("block",)),
    "Use": (use, ("thread", "block", "stream", "bool")),
    "Lend": (lend, ("thread", "block", "stream", "bool")),
    "LendUnnamed": (lend_unnamed, ("thread", "block")),
    "Share": (share, ("block",)),
    "Work": (work, ("thread",)),
    "WorkUnnamed": (work_unnamed, ("thread", "stream")),
    "WorkAtLarge": (work_at_large, ("block", "stream")),
    "End": (end, ("thread", "bool", "bool")),
    "Fail": (fail, ("thread",)),
    "Release": (release, ("block", "bool")),
    "WorkOld": (work_old, ("block",)),
    "PassOn": (pass_on, ("block",)),
    "Order": (program_order, ("stream", "stream")),
    "Destroy": (destroy, ("stream",)),
    "BeginCapture": (begin_capture, ("stream",)),
    "EndCapture": (end_capture, ("stream",)),
}
MORE_STEPS = {}

MISTAKES = {
    "UseWithoutWait": ("Use",),
    "UseNotFollowed": ("End",),
    "SourceNotUsed": ("WorkAtLarge",),
    "ExportNotFollowed": ("End",),
    "UnknownNotAwaited": ("Release",),
    "OtherThreadsStream": ("Use", "Lend", "End", "Release"),
    "LegacyStandsForTwo": ("End",),
    "FailureForgotten": ("Fail",),
    "OrderInCapture": ("Use", "Lend", "End"),
    "LendInCapture": ("Lend",),
    "DeadStreamSkipped": ("End",),
    "ImportHasOwnOrder": ("End",),
    "ReleaseDuringUse": ("Release",),
    "ForeignEndsInCapture": ("Release",),
    "LayerOnOwnStream": ("WorkNew", "WorkOld"),
    "LayerAfterPassingOn": ("PassOn",),
    "LayerInCapture": ("WorkNew", "WorkOld"),
    "LayerSaysReady": ("HandOver",),
}


# The rule and the invariant.


def start(logic, s):
    """The pool has all blocks, and nothing is under way."""
    is_plain = logic.no(s.local(logic.legacy))

    def streams(stream):
        return s.exists(stream) & logic.no(s.captures(stream))

    def blocks(block, worker, stream):
        nothing = logic.no(s.stray(block) | s.foreign(block) | s.at_large(block) | s.ready(block, stream))
        return (s.place(block) == logic.pool) & nothing & s.after(block, worker, stream)

    return (
        is_plain
        & logic.every(("stream",), streams)
        & logic.every(("block", "stream", "stream"), blocks)
        & logic.every(("thread",), lambda thread: s.call(thread) == logic.idle)
    )


def rule(logic, s):
    """Each free comes after all work on the block, earlier owners' work included. Work runs only on a block
    that its client holds, and only after the work of earlier owners.
    """

    def block(b, worker, stream):
        home = s.home(b)
        is_handed = (s.place(b) == logic.new) | (s.place(b) == logic.old)
        is_last = s.exists(home) & s.ready(b, home) & s.after(b, worker, home)
        is_done = logic.implies(s.foreign(b), s.after(b, worker, stream))
        return logic.implies(is_handed, is_last & is_done) & logic.no(s.stray(b))

    def thread(t, stream):
        of, is_named = s.of(t), work(logic, s, None, t)[0]
        may_work = is_named | work_unnamed(logic, s, None, t, stream)[0]
        is_ready = logic.implies(is_named, s.ready(of, s.on(t)))
        return logic.implies(may_work, (s.place(of) == logic.held) & is_ready)

    return logic.every(("block", "stream", "stream"), block) & logic.every(("thread", "stream"), thread)


def part_1(logic, s):
    def part(b, worker, x):
        is_handed = (s.place(b) == logic.new) | (s.place(b) == logic.old)
        is_done = logic.implies(s.foreign(b), s.after(b, worker, x))
        return logic.implies(is_handed, s.after(b, worker, s.home(b)) & is_done)

    return logic.every(("block", "stream", "stream"), part)


def part_2(logic, s):
    def part(b):
        home = s.home(b)
        return logic.implies(logic.no(s.place(b) == logic.pool), s.ready(b, home) & s.exists(home))

    return logic.every(("block",), part)


def part_3(logic, s):
    def part(t):
        block, call = s.of(t), s.call(t)
        is_ready = (call == logic.unnamed) | s.ready(block, s.on(t))
        return logic.implies(logic.no(call == logic.idle), (s.place(block) == logic.held) & is_ready)

    return logic.every(("thread",), part)


def part_4(logic, s):
    return logic.every(("block",), lambda b: logic.no(s.stray(b)))


def part_5(logic, s):
    def part(b, worker):
        def is_not_its(t):
            has_stream = (s.call(t) == logic.unnamed) | (s.on(t) == worker)
            return logic.no(is_used(logic, s, b, t) & has_stream)

        is_noted = s.at_large(b) | logic.no(logic.every(("thread",), is_not_its))
        return logic.implies(s.place(b) == logic.held, s.after(b, worker, s.home(b)) | is_noted)

    return logic.every(("block", "stream"), part)


def part_6(logic, s):
    def part(b, worker, x):
        return logic.implies(gains(logic, s, worker, x), s.after(b, worker, x))

    return logic.every(("block", "stream", "stream"), part)


def part_7(logic, s):
    def part(b, worker, x):
        has_after = logic.implies(s.after(b, worker, x), s.after(b, worker, logic.legacy))
        has_ready = logic.implies(s.ready(b, x), s.ready(b, logic.legacy))
        return logic.implies(s.local(x), has_after & has_ready)

    return logic.every(("block", "stream", "stream"), part)


def part_8(logic, s):
    is_plain = logic.no(s.local(logic.legacy) | s.captures(logic.legacy))
    return s.exists(logic.legacy) & is_plain


PARTS = parts_of(globals())
