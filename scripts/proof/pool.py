"""The model of stream order: states, steps, mistakes and the invariant.

Each formula is written once. `prove.py` reads it over z3's terms, for any number of streams, blocks, threads
and epochs. `compare.py` reads it over Python's values, and compares it with the model in Rust
(resources/src/stream_order/model). `logic` says what "not", "if" and "for all" mean. Names and
order of the steps follow `step.rs`, which explains them; the parts of the invariant follow `invariant.rs`.
"""

from enum import Enum

from formulas import parts_of, put

Place = Enum("Place", ["live", "freeing", "free", "unowned"])
Call = Enum("Call", ["idle", "record", "event", "device"])
Stage = Enum("Stage", ["picked", "reached", "waits"])
ENUMS = (Place, Call, Stage)
# No stream, block or thread has a name of its own.
CONSTANTS = {}
# z3 shows states with this many blocks.
BLOCKS = 1

# A state's fields: what each is indexed by, and what it holds. A field is a function.
FIELDS = {
    "exists": (("stream",), "bool"),
    "known": (("stream",), "bool"),
    "epoch": (("stream",), "int"),
    "has_event": (("stream",), "bool"),
    "recorded": (("stream",), "int"),
    "recorded_seen": (("stream", "stream"), "int"),
    "seen": (("stream", "stream"), "int"),
    "place": (("block",), "place"),
    # Of a block that is being freed, or free: the stream and the epoch of its free.
    "owner": (("block",), "stream"),
    "freed": (("block",), "int"),
    "before": (("block", "stream"), "bool"),
    "covered": (("block", "stream"), "bool"),
    "held": (("block", "thread"), "bool"),
    "done": (("block",), "bool"),
    "call": (("thread",), "call"),
    # Of a thread with a record or an event: its stream and epoch.
    "of": (("thread",), "stream"),
    "ends": (("thread",), "int"),
    # The epochs of other streams that the record or event covers, or that ended before the device's wait.
    "notes": (("thread", "stream"), "int"),
    "first": (("thread",), "bool"),
    "made": (("thread",), "bool"),
    # Of a thread with a record: whether the device has reached it.
    "reached": (("thread",), "bool"),
    "stage": (("thread",), "stage"),
    "waiter": (("thread",), "stream"),
}


def largest(logic, a, b):
    return logic.ite(a <= b, b, a)


def is_before(s, block, stream):
    """Whether a stream's next work comes after all work on a block."""
    return s.done(block) | s.before(block, stream)


def is_owned(logic, s, block):
    return (s.place(block) == logic.freeing) | (s.place(block) == logic.free)


def is_of(logic, s, block, stream, upto):
    """Whether a stream freed the block, in this epoch or before."""
    return is_owned(logic, s, block) & (s.owner(block) == stream) & (s.freed(block) <= upto)


def may_take(logic, s, block, stream):
    """Whether the pool may hand a block to a stream, by its beliefs."""
    owner = s.owner(block)
    has_seen = s.freed(block) <= s.seen(stream, owner)
    return (s.place(block) == logic.unowned) | (
        (s.place(block) == logic.free) & ((owner == stream) | has_seen)
    )


def rule(logic, s):
    """The pool hands a block only to a stream that comes after all work on the block."""

    def holds(block, stream):
        return logic.implies(
            s.exists(stream) & may_take(logic, s, block, stream), is_before(s, block, stream)
        )

    return logic.every(("block", "stream"), holds)


def start(logic, s):
    """All blocks are live and without work, and the pool knows no stream."""

    def new(stream, other):
        unknown = s.exists(stream) & logic.no(s.known(stream)) & (s.epoch(stream) == 1)
        unrecorded = logic.no(s.has_event(stream)) & (s.recorded(stream) == 0)
        return unknown & unrecorded & (s.seen(stream, other) == 0) & (s.recorded_seen(stream, other) == 0)

    def live(block, stream, thread):
        nothing = logic.no(s.before(block, stream) | s.covered(block, stream) | s.held(block, thread))
        return (s.place(block) == logic.live) & s.done(block) & nothing

    return (
        logic.every(("stream", "stream"), new)
        & logic.every(("block", "stream", "thread"), live)
        & logic.every(("thread",), lambda thread: s.call(thread) == logic.idle)
    )


# The steps. Each returns whether it is possible, and the next state.


def submit(logic, s, block, stream):
    """Submits work on a block to a stream that comes after all earlier work."""
    return s.but(
        before=lambda x, other: logic.ite(x == block, other == stream, s.before(x, other)),
        covered=lambda x, other: logic.no(x == block) & s.covered(x, other),
        held=lambda x, thread: logic.no(x == block) & s.held(x, thread),
        done=lambda x: logic.no(x == block) & s.done(x),
    )


def free(logic, s, wrong, block, stream):
    possible = s.exists(stream) & (s.place(block) == logic.live)
    worker = logic.other(stream) if wrong == "FreeWithoutOrder" else stream
    return possible, submit(logic, s, block, worker).but(
        known=put(logic, s.known, stream, to=True),
        place=put(logic, s.place, block, to=logic.freeing),
        owner=put(logic, s.owner, block, to=stream),
        freed=put(logic, s.freed, block, to=s.epoch(stream)),
    )


def end_free(logic, s, wrong, block):
    next_state = s.but(place=put(logic, s.place, block, to=logic.free))
    if wrong == "WorkAfterFree":
        next_state = submit(logic, next_state, block, s.owner(block))
    return s.place(block) == logic.freeing, next_state


def take(logic, s, wrong, block, stream):
    place, known = put(logic, s.place, block, to=logic.live), put(logic, s.known, stream, to=True)
    return s.exists(stream) & may_take(logic, s, block, stream), s.but(place=place, known=known)


def meet(logic, s, wrong, stream):
    return s.exists(stream) & logic.no(s.known(stream)), s.but(known=put(logic, s.known, stream, to=True))


def begin_record(logic, s, wrong, thread, stream):
    possible = (s.call(thread) == logic.idle) & s.known(stream)
    ended = s.epoch(stream) + (0 if wrong == "RecordBeforeEpochEnds" else 1)
    return possible, s.but(
        epoch=put(logic, s.epoch, stream, to=ended),
        call=put(logic, s.call, thread, to=logic.record),
        of=put(logic, s.of, thread, to=stream),
        ends=put(logic, s.ends, thread, to=s.epoch(stream)),
        notes=lambda t, other: logic.ite(t == thread, s.seen(stream, other), s.notes(t, other)),
        first=put(logic, s.first, thread, to=logic.no(s.has_event(stream))),
        made=put(logic, s.made, thread, to=False),
        reached=put(logic, s.reached, thread, to=False),
    )


def make_record(logic, s, wrong, thread):
    stream = s.of(thread)
    possible = (s.call(thread) == logic.record) & logic.no(s.made(thread)) & s.exists(stream)
    first = s.first(thread)
    next_state = s.but(
        held=lambda x, t: logic.ite((t == thread) & first, is_before(s, x, stream), s.held(x, t)),
        covered=lambda x, other: logic.ite(
            (other == stream) & logic.no(first), is_before(s, x, stream), s.covered(x, other)
        ),
        made=put(logic, s.made, thread, to=True),
    )
    if wrong == "RecordBeforeEpochEnds":
        next_state = next_state.but(ends=put(logic, s.ends, thread, to=s.epoch(stream)))
    return possible, next_state


def end_record(logic, s, thread, becomes_its_event):
    """The thread's record ends. Its own event may become the stream's."""
    stream = s.of(thread)
    return s.but(
        covered=lambda x, other: logic.ite(
            becomes_its_event & (other == stream), s.held(x, thread), s.covered(x, other)
        ),
        held=lambda x, t: logic.no(t == thread) & s.held(x, t),
        has_event=put(logic, s.has_event, stream, to=s.has_event(stream) | becomes_its_event),
    )


def settle(logic, s, wrong, thread):
    stream, ends, made, first = s.of(thread), s.ends(thread), s.made(thread), s.first(thread)
    becomes_its_event = first & made & logic.no(s.has_event(stream))
    counts = made if wrong == "SecondEventCounts" else made & (logic.no(first) | becomes_its_event)
    next_state = end_record(logic, s, thread, becomes_its_event)
    if wrong == "RecordBeforeEpochEnds":
        next_state.epoch = put(logic, s.epoch, stream, to=largest(logic, s.epoch(stream), ends + 1))

    def notes(other):
        return s.seen(stream, other) if wrong == "SeenAtSettle" else s.notes(thread, other)

    is_noted = counts & (s.recorded(stream) < ends)
    return s.call(thread) == logic.record, next_state.but(
        recorded=put(logic, s.recorded, stream, to=logic.ite(is_noted, ends, s.recorded(stream))),
        recorded_seen=lambda x, other: logic.ite(
            (x == stream) & is_noted, notes(other), s.recorded_seen(x, other)
        ),
        call=put(logic, s.call, thread, to=logic.ite(counts | s.reached(thread), logic.event, logic.idle)),
        notes=lambda t, other: logic.ite(t == thread, notes(other), s.notes(t, other)),
        stage=put(logic, s.stage, thread, to=logic.ite(s.reached(thread), logic.reached, logic.picked)),
    )


def leave(logic, s, wrong, thread):
    becomes_its_event = s.first(thread) & logic.no(s.has_event(s.of(thread)))
    next_state = end_record(logic, s, thread, becomes_its_event)
    return s.call(thread) == logic.record, next_state.but(call=put(logic, s.call, thread, to=logic.idle))


def pick(logic, s, wrong, thread, stream):
    possible = (s.call(thread) == logic.idle) & s.known(stream) & (0 < s.recorded(stream))
    seen = s.seen if wrong == "Merge2489" else s.recorded_seen
    return possible, s.but(
        call=put(logic, s.call, thread, to=logic.event),
        of=put(logic, s.of, thread, to=stream),
        ends=put(logic, s.ends, thread, to=s.recorded(stream)),
        notes=lambda t, other: logic.ite(t == thread, seen(stream, other), s.notes(t, other)),
        stage=put(logic, s.stage, thread, to=logic.picked),
    )


def query(logic, s, wrong, thread):
    stream = s.of(thread)
    has_event = (s.call(thread) == logic.event) & (s.stage(thread) == logic.picked)
    has_record = (s.call(thread) == logic.record) & s.made(thread) & logic.no(s.reached(thread))
    is_own = has_record & s.first(thread)
    return has_event | has_record, s.but(
        done=lambda x: s.done(x) | logic.ite(is_own, s.held(x, thread), s.covered(x, stream)),
        reached=put(logic, s.reached, thread, to=has_record | s.reached(thread)),
        stage=put(logic, s.stage, thread, to=logic.ite(has_event, logic.reached, s.stage(thread))),
    )


def complete(logic, s, wrong, thread):
    stream, upto = s.of(thread), s.ends(thread)
    if wrong == "QueryKeptOverRecord":
        upto = largest(logic, upto, s.recorded(stream))
    known, recorded = s.known(stream), s.recorded(stream)

    def place(x):
        is_of_it = (s.place(x) == logic.free) & (s.owner(x) == stream) & (s.freed(x) <= upto)
        return logic.ite(known & is_of_it, logic.unowned, s.place(x))

    return (s.call(thread) == logic.event) & (s.stage(thread) == logic.reached), s.but(
        recorded=put(logic, s.recorded, stream, to=logic.ite(known & (recorded == upto), 0, recorded)),
        place=place,
        call=put(logic, s.call, thread, to=logic.idle),
    )


def disown(logic, s, wrong, thread, block):
    stream = s.of(thread)
    reached = (s.call(thread) == logic.event) & (s.stage(thread) == logic.reached) & s.known(stream)
    is_of_it = (s.owner(block) == stream) & (s.freed(block) <= s.ends(thread))
    possible = reached & (s.place(block) == logic.free) & is_of_it
    return possible, s.but(place=put(logic, s.place, block, to=logic.unowned))


def wait(logic, s, wrong, thread, stream):
    donor = s.of(thread)
    may_wait = s.exists(stream) & s.known(stream) & logic.no(stream == donor)
    return (s.call(thread) == logic.event) & (s.stage(thread) == logic.picked) & may_wait, s.but(
        before=lambda x, other: s.before(x, other) | ((other == stream) & s.covered(x, donor)),
        stage=put(logic, s.stage, thread, to=logic.waits),
        waiter=put(logic, s.waiter, thread, to=stream),
    )


def note_wait(logic, s, wrong, thread):
    donor, upto, waiter = s.of(thread), s.ends(thread), s.waiter(thread)
    possible = (s.call(thread) == logic.event) & (s.stage(thread) == logic.waits)
    if wrong == "WaitNotedEarly":
        early = logic.early_waiter(s, donor)
        may_wait = logic.no(early == donor) & s.known(early)
        is_early = (s.call(thread) == logic.event) & (s.stage(thread) == logic.picked)
        waiter, possible = logic.ite(is_early, early, waiter), possible | (is_early & may_wait)
        call = put(logic, s.call, thread, to=logic.ite(is_early, logic.event, logic.idle))
    else:
        call = put(logic, s.call, thread, to=logic.idle)
    if wrong == "WaitCoversLater":
        upto = logic.latest
    both_known = s.known(donor) & s.known(waiter)

    def seen(x, other):
        old = s.seen(x, other)
        waited = logic.ite(other == donor, largest(logic, old, upto), old)
        inherited = logic.ite(other == waiter, waited, largest(logic, waited, s.notes(thread, other)))
        return logic.ite((x == waiter) & both_known, inherited, old)

    return possible, s.but(seen=seen, call=call)


def give_up(logic, s, wrong, thread):
    waits = (s.call(thread) == logic.device) & logic.no(s.made(thread))
    return (s.call(thread) == logic.event) | waits, s.but(call=put(logic, s.call, thread, to=logic.idle))


def begin_device(logic, s, wrong, thread):
    def ended(stream):
        return logic.ite(s.known(stream), s.epoch(stream), 0)

    return s.call(thread) == logic.idle, s.but(
        epoch=lambda stream: s.epoch(stream) + logic.ite(s.known(stream), 1, 0),
        call=put(logic, s.call, thread, to=logic.device),
        notes=lambda t, stream: logic.ite(t == thread, ended(stream), s.notes(t, stream)),
        made=put(logic, s.made, thread, to=False),
    )


def make_device(logic, s, wrong, thread):
    return (s.call(thread) == logic.device) & logic.no(s.made(thread)), s.but(
        held=lambda x, t: (t == thread) | s.held(x, t),
        made=put(logic, s.made, thread, to=True),
    )


def end_device(logic, s, wrong, thread):
    def upto(stream):
        return logic.latest if wrong == "DeviceCoversLater" else s.notes(thread, stream)

    def covers(stream, epoch):
        return (0 < upto(stream)) & s.known(stream) & (epoch <= upto(stream))

    def is_covered(x):
        return (s.place(x) == logic.free) & covers(s.owner(x), s.freed(x))

    return (s.call(thread) == logic.device) & s.made(thread), s.but(
        done=lambda x: s.done(x) | s.held(x, thread),
        held=lambda x, t: logic.no(t == thread) & s.held(x, t),
        recorded=lambda stream: logic.ite(covers(stream, s.recorded(stream)), 0, s.recorded(stream)),
        place=lambda x: logic.ite(is_covered(x), logic.unowned, s.place(x)),
        call=put(logic, s.call, thread, to=logic.idle),
    )


def skip(logic, s, wrong, stream):
    return 0 < s.recorded(stream), s.but(recorded=put(logic, s.recorded, stream, to=0))


def sweep(logic, s, wrong, stream):
    def owns(x):
        owns_free = (s.place(x) == logic.free) & (s.owner(x) == stream)
        owns_freeing = (s.place(x) == logic.freeing) & (s.owner(x) == stream)
        return owns_free if wrong == "SweepDuringFree" else owns_free | owns_freeing

    possible = s.known(stream) & logic.every(("block",), lambda x: logic.no(owns(x)))
    if wrong != "SweepDuringCalls":
        possible = possible & logic.every(("thread",), lambda t: s.call(t) == logic.idle)

    def without(epochs):
        def kept(x, other):
            is_gone = x == stream if wrong == "SweepKeepsSeen" else (x == stream) | (other == stream)
            return logic.ite(is_gone, 0, epochs(x, other))

        return kept

    return possible, s.but(
        known=put(logic, s.known, stream, to=False),
        epoch=put(logic, s.epoch, stream, to=1),
        has_event=put(logic, s.has_event, stream, to=False),
        recorded=put(logic, s.recorded, stream, to=0),
        recorded_seen=without(s.recorded_seen),
        seen=without(s.seen),
        covered=lambda x, other: logic.no(other == stream) & s.covered(x, other),
    )


def destroy(logic, s, wrong, stream):
    return s.exists(stream), s.but(exists=put(logic, s.exists, stream, to=False))


def create(logic, s, wrong, stream):
    return logic.no(s.known(stream) | s.exists(stream)), s.but(
        exists=put(logic, s.exists, stream, to=True),
        before=lambda x, other: logic.no(other == stream) & s.before(x, other),
    )


def join(logic, s, wrong, block, stream, epoch):
    """A free block joins a free neighbour of a known stream, and gets the later epoch of the two."""
    has_owner = (s.place(block) == logic.free) & (s.owner(block) == stream) & (s.freed(block) <= epoch)
    is_neighbour = s.known(stream) & (0 < epoch) & (epoch <= s.epoch(stream))
    return is_neighbour & (has_owner | (s.place(block) == logic.unowned)), s.but(
        place=put(logic, s.place, block, to=logic.free),
        owner=put(logic, s.owner, block, to=stream),
        freed=put(logic, s.freed, block, to=epoch),
    )


# Each step, with the things that it names.
STEPS = {
    "Free": (free, ("block", "stream")),
    "EndFree": (end_free, ("block",)),
    "Take": (take, ("block", "stream")),
    "Meet": (meet, ("stream",)),
    "BeginRecord": (begin_record, ("thread", "stream")),
    "MakeRecord": (make_record, ("thread",)),
    "Settle": (settle, ("thread",)),
    "Leave": (leave, ("thread",)),
    "Pick": (pick, ("thread", "stream")),
    "Query": (query, ("thread",)),
    "Complete": (complete, ("thread",)),
    "Disown": (disown, ("thread", "block")),
    "Wait": (wait, ("thread", "stream")),
    "NoteWait": (note_wait, ("thread",)),
    "GiveUp": (give_up, ("thread",)),
    "BeginDevice": (begin_device, ("thread",)),
    "MakeDevice": (make_device, ("thread",)),
    "EndDevice": (end_device, ("thread",)),
    "Skip": (skip, ("stream",)),
    "Sweep": (sweep, ("stream",)),
    "Destroy": (destroy, ("stream",)),
    "Create": (create, ("stream",)),
}

# A step that the model in Rust lacks, since its blocks have no neighbours.
MORE_STEPS = {"Join": (join, ("block", "stream", "int"))}

# Each mistake, with the steps that it changes.
MISTAKES = {
    "Merge2489": ("Pick",),
    "SeenAtSettle": ("Settle",),
    "RecordBeforeEpochEnds": ("BeginRecord", "MakeRecord", "Settle"),
    "SecondEventCounts": ("Settle",),
    "QueryKeptOverRecord": ("Complete",),
    "WaitNotedEarly": ("NoteWait",),
    "WaitCoversLater": ("NoteWait",),
    "DeviceCoversLater": ("EndDevice",),
    "SweepKeepsSeen": ("Sweep",),
    "SweepDuringCalls": ("Sweep",),
    "SweepDuringFree": ("Sweep",),
    "WorkAfterFree": ("EndFree",),
    "FreeWithoutOrder": ("Free",),
}


# The invariant.


def includes(logic, s, block, epochs):
    """Whether these epochs of streams include the epoch of the block's free."""
    return is_owned(logic, s, block) & (s.freed(block) <= epochs(s.owner(block)))


def notes_of(s, thread):
    return lambda stream: s.notes(thread, stream)


def is_noted(logic, s, block, thread):
    """Whether a thread's record or event notes that it covers the block."""
    is_its = is_of(logic, s, block, s.of(thread), s.ends(thread))
    return is_its | includes(logic, s, block, notes_of(s, thread))


def covers(s, block, stream):
    return s.done(block) | s.covered(block, stream)


def holds(s, block, thread):
    return s.done(block) | s.held(block, thread)


def has_call(logic, s, thread):
    """Whether a thread has a record or an event."""
    return (s.call(thread) == logic.record) | (s.call(thread) == logic.event)


def part_1(logic, s):
    def part(b):
        owner = s.owner(b)
        return logic.implies(is_owned(logic, s, b), is_before(s, b, owner) & s.known(owner))

    return logic.every(("block",), part)


def part_2(logic, s):
    return logic.every(("block",), lambda b: logic.implies(s.place(b) == logic.unowned, s.done(b)))


def part_3(logic, s):
    def part(b, x):
        has_seen = s.known(x) & includes(logic, s, b, lambda other: s.seen(x, other))
        return logic.implies(has_seen, is_before(s, b, x))

    return logic.every(("block", "stream"), part)


def part_4(logic, s):
    def part(b, x):
        return logic.implies(s.known(x) & is_of(logic, s, b, x, s.recorded(x)), covers(s, b, x))

    return logic.every(("block", "stream"), part)


def part_5(logic, s):
    def part(b, x):
        had_seen = includes(logic, s, b, lambda other: s.recorded_seen(x, other))
        return logic.implies(s.known(x) & (0 < s.recorded(x)) & had_seen, covers(s, b, x))

    return logic.every(("block", "stream"), part)


def part_6(logic, s):
    def part(b, x):
        return logic.implies(s.known(x) & s.has_event(x) & s.covered(b, x), is_before(s, b, x))

    return logic.every(("block", "stream"), part)


def part_7(logic, s):
    def part(b, t):
        is_next = (s.call(t) == logic.record) & logic.no(s.made(t)) & includes(logic, s, b, notes_of(s, t))
        return logic.implies(is_next, is_before(s, b, s.of(t)))

    return logic.every(("block", "thread"), part)


def part_8(logic, s):
    def part(b, t):
        is_made = (s.call(t) == logic.record) & s.made(t)
        is_covered = logic.ite(s.first(t), holds(s, b, t), covers(s, b, s.of(t)))
        is_own = s.first(t) & s.held(b, t)
        is_true = logic.implies(is_noted(logic, s, b, t), is_covered) & logic.implies(
            is_own, is_before(s, b, s.of(t))
        )
        return logic.implies(is_made, is_true)

    return logic.every(("block", "thread"), part)


def part_9(logic, s):
    def part(b, t):
        return logic.implies((s.call(t) == logic.event) & is_noted(logic, s, b, t), covers(s, b, s.of(t)))

    return logic.every(("block", "thread"), part)


def part_10(logic, s):
    def part(b, t):
        is_reached = logic.implies(s.stage(t) == logic.reached, s.done(b))
        is_after = logic.implies(s.stage(t) == logic.waits, is_before(s, b, s.waiter(t)))
        return logic.implies((s.call(t) == logic.event) & is_noted(logic, s, b, t), is_reached & is_after)

    return logic.every(("block", "thread"), part)


def part_11(logic, s):
    def part(b, t):
        is_over = (s.call(t) == logic.device) & s.made(t) & includes(logic, s, b, notes_of(s, t))
        return logic.implies(is_over, holds(s, b, t))

    return logic.every(("block", "thread"), part)


def part_12(logic, s):
    def is_over(stream, epoch):
        return (epoch == 0) | (epoch < s.epoch(stream))

    def of_stream(x, other):
        is_seen_over = is_over(other, s.seen(x, other)) & is_over(other, s.recorded_seen(x, other))
        return is_seen_over & is_over(x, s.recorded(x))

    def of_thread(t, other):
        is_end_over = logic.implies(has_call(logic, s, t), is_over(s.of(t), s.ends(t)))
        return is_end_over & ((s.call(t) == logic.idle) | is_over(other, s.notes(t, other)))

    def of_block(b):
        return logic.implies(is_owned(logic, s, b), s.freed(b) <= s.epoch(s.owner(b)))

    return (
        logic.every(("stream", "stream"), of_stream)
        & logic.every(("thread", "stream"), of_thread)
        & logic.every(("block",), of_block)
    )


def part_13(logic, s):
    def part(x, other):
        nothing = logic.no(s.has_event(x)) & (s.recorded(x) == 0) & (s.seen(x, other) == 0)
        return s.known(x) | nothing

    return logic.every(("stream", "stream"), part)


def part_14(logic, s):
    is_counted = logic.every(("stream",), lambda x: 0 < s.epoch(x))
    return is_counted & logic.every(
        ("block",), lambda b: logic.implies(is_owned(logic, s, b), 0 < s.freed(b))
    )


def part_15(logic, s):
    def part(t):
        has_waiter = (s.call(t) == logic.event) & (s.stage(t) == logic.waits)
        is_known = logic.implies(has_call(logic, s, t), s.known(s.of(t)))
        return is_known & logic.implies(has_waiter, s.known(s.waiter(t)))

    return logic.every(("thread",), part)


def part_16(logic, s):
    def part(t):
        needs_event = (s.call(t) == logic.event) | ((s.call(t) == logic.record) & logic.no(s.first(t)))
        return logic.implies(needs_event, s.has_event(s.of(t)))

    is_kept = logic.every(("stream",), lambda x: logic.implies(0 < s.recorded(x), s.has_event(x)))
    return is_kept & logic.every(("thread",), part)


def part_17(logic, s):
    def part(b, t):
        is_reached = (s.call(t) == logic.record) & s.reached(t)
        return logic.implies(is_reached, s.made(t) & logic.implies(is_noted(logic, s, b, t), s.done(b)))

    return logic.every(("block", "thread"), part)


def part_18(logic, s):
    def part(b, t):
        has_event = (s.call(t) == logic.record) & s.first(t) & s.made(t)
        has_device = (s.call(t) == logic.device) & s.made(t)
        return logic.implies(s.held(b, t), has_event | has_device)

    return logic.every(("block", "thread"), part)


PARTS = parts_of(globals())
