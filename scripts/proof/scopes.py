"""The model of a scope of captures: which stream gets a scope's block, and when memory goes back to the pool.

Its rule: a scope hands a block only to a stream that comes after all work on it, and returns memory to the
pool only after all work on it and after all launches of its graphs. Names follow the code in
resources/src/capture_scopes. A stream of this model works on one side: outside of captures, or in one
capture. So a stream of CUDA is several streams here, and `home` is the one outside of captures.
"""

from enum import Enum

from formulas import parts_of, put

Place = Enum("Place", ["live", "freeing", "owned", "parked", "withheld", "unowned", "removed", "upstream"])
Wait = Enum("Wait", ["none", "close", "fence"])
Call = Enum("Call", ["idle", "free", "record", "query", "device_wait"])
ENUMS = (Place, Wait, Call)
CONSTANTS = {}
# z3 shows states with this many blocks.
BLOCKS = 2

FIELDS = {
    "home": (("stream",), "stream"),
    # Of a stream in a capture: the stream on which the capture began, and whether it goes on.
    "capture": (("stream",), "stream"),
    "runs": (("stream",), "bool"),
    "open": (("stream",), "bool"),
    "tickets": (("stream",), "int"),
    "has_event": (("stream",), "bool"),
    "upto": (("stream",), "int"),
    "ended": ((), "bool"),
    "place": (("block",), "place"),
    # The stream that allocated a live block.
    "born": (("block",), "stream"),
    # The stream and the ticket of a free. While a parked block's capture goes on, its stream gets the block.
    "owner": (("block",), "stream"),
    "freed": (("block",), "int"),
    "goes": (("block",), "bool"),
    # What a parked block waits for.
    "wait": (("block", "stream"), "wait"),
    "device": (("block",), "bool"),
    "waited": (("block",), "bool"),
    "call": (("thread",), "call"),
    "of": (("thread",), "stream"),
    "item": (("thread",), "block"),
    "ends": (("thread",), "int"),
    "made": (("thread",), "bool"),
    # Of a thread that records or waits: the blocks that were parked before, and the tickets.
    "noted": (("thread", "block"), "bool"),
    "seen": (("thread", "stream"), "int"),
    # The truth. `after` is as in clients.py. An event comes after the work of a stream on a block.
    "after": (("block", "stream", "stream"), "bool"),
    "of_event": (("stream", "block", "stream"), "bool"),
    "of_fence": (("block", "stream", "stream"), "bool"),
    "of_call": (("thread", "block", "stream"), "bool"),
    # When the block was parked, a stream came after the work of another one.
    "via": (("block", "stream", "stream"), "bool"),
    "launched": (("block",), "bool"),
}


def some(logic, sorts, formula):
    return logic.no(logic.every(sorts, lambda *at: logic.no(formula(*at))))


def is_captured(logic, s, stream):
    return logic.no(s.home(stream) == stream)


def captures(logic, s, stream):
    """Whether a stream outside of captures is captured now."""
    return some(logic, ("stream",), lambda y: s.runs(y) & (s.home(y) == stream))


def may_work(logic, s, stream):
    outside = logic.no(is_captured(logic, s, stream) | captures(logic, s, stream))
    return s.runs(stream) | outside


def is_same_capture(logic, s, stream, other):
    both = is_captured(logic, s, stream) & is_captured(logic, s, other)
    return both & (s.capture(stream) == s.capture(other))


def comes_after(logic, s, block, stream):
    """Whether a stream comes after all work on the block."""
    return logic.every(("stream",), lambda worker: s.after(block, worker, stream))


def learn(logic, s, is_done):
    """The host learns that work is done: each stream comes after it."""
    return s.but(after=lambda b, worker, x: s.after(b, worker, x) | is_done(b, worker))


# The steps. Each returns whether it is possible, and the next state.


def take(logic, s, wrong, block, stream):
    is_its = (s.place(block) == logic.owned) & (s.owner(block) == stream)
    possible = logic.no(s.ended()) & may_work(logic, s, stream) & ((s.place(block) == logic.unowned) | is_its)
    return possible, s.but(
        place=put(logic, s.place, block, to=logic.live), born=put(logic, s.born, block, to=stream)
    )


def use(logic, s, wrong, block, stream):
    """The program uses a block of a capture only in this capture, until the capture ends."""
    born = s.born(block)
    is_inside = logic.no(s.runs(born)) | is_same_capture(logic, s, born, stream)
    return (s.place(block) == logic.live) & may_work(logic, s, stream) & is_inside, s.but(
        after=lambda b, worker, x: logic.ite(
            (b == block) & (worker == stream), x == stream, s.after(b, worker, x)
        )
    )


def order(logic, s, wrong, stream, other):
    is_captured_one = is_captured(logic, s, stream)
    are_outside = logic.no(is_captured_one | is_captured(logic, s, other))
    is_one_side = are_outside | is_same_capture(logic, s, stream, other)
    possible = may_work(logic, s, stream) & may_work(logic, s, other) & is_one_side
    return possible, s.but(
        after=lambda b, worker, x: s.after(b, worker, x) | ((x == stream) & s.after(b, worker, other))
    )


def begin_free(logic, s, wrong, thread, block, stream):
    is_free = (s.call(thread) == logic.idle) & (s.place(block) == logic.live)
    is_outside = logic.no(is_captured(logic, s, stream) | captures(logic, s, stream))
    ticket = s.tickets(stream) + 1
    return is_free & is_outside & comes_after(logic, s, block, stream), s.but(
        place=put(logic, s.place, block, to=logic.freeing),
        owner=put(logic, s.owner, block, to=stream),
        freed=put(logic, s.freed, block, to=ticket),
        tickets=put(logic, s.tickets, stream, to=ticket),
        call=put(logic, s.call, thread, to=logic.free),
        of=put(logic, s.of, thread, to=stream),
        item=put(logic, s.item, thread, to=block),
        ends=put(logic, s.ends, thread, to=ticket),
        made=put(logic, s.made, thread, to=False),
    )


def record(logic, s, wrong, thread):
    """The driver records an event. In a capture, the record is a part of the graph, and does not count."""
    stream = s.of(thread)
    is_for_event = (s.call(thread) == logic.free) | (s.call(thread) == logic.record)
    possible = is_for_event & logic.no(s.made(thread))
    is_in_capture = captures(logic, s, stream)
    if wrong != "RecordInCapture":
        possible = possible & logic.no(is_in_capture)
    return possible, s.but(
        of_call=lambda t, b, worker: logic.ite(
            t == thread, s.after(b, worker, stream) & logic.no(is_in_capture), s.of_call(t, b, worker)
        ),
        made=put(logic, s.made, thread, to=True),
    )


def keep_event(logic, s, wrong, thread, if_true):
    """Keeps the event that covers more frees of a stream."""
    stream, ends = s.of(thread), s.ends(thread)
    is_later = if_true & (logic.no(s.has_event(stream)) | (s.upto(stream) < ends))
    is_kept = is_later & logic.no(s.has_event(stream)) if wrong == "OldEventNewTicket" else is_later
    return s.but(
        has_event=put(logic, s.has_event, stream, to=s.has_event(stream) | if_true),
        upto=put(logic, s.upto, stream, to=logic.ite(is_later, ends, s.upto(stream))),
        of_event=lambda x, b, worker: logic.ite(
            (x == stream) & is_kept, s.of_call(thread, b, worker), s.of_event(x, b, worker)
        ),
    )


def end_free(logic, s, wrong, thread):
    block, made = s.item(thread), s.made(thread)
    if wrong == "TicketAfterRecord":
        ticket = s.tickets(s.of(thread)) + 1
        s = s.but(
            freed=put(logic, s.freed, block, to=ticket),
            tickets=put(logic, s.tickets, s.of(thread), to=ticket),
            ends=put(logic, s.ends, thread, to=ticket),
        )
    place = logic.ite(s.ended(), logic.unowned, logic.ite(made, logic.owned, logic.parked))
    kept = keep_event(logic, s, wrong, thread, made & logic.no(s.ended()))
    return s.call(thread) == logic.free, new_parked(logic, kept, block, s.owner(block)).but(
        place=put(logic, s.place, block, to=place),
        goes=put(logic, s.goes, block, to=False),
        device=put(logic, s.device, block, to=True),
        call=put(logic, s.call, thread, to=logic.idle),
    )


def new_parked(logic, s, block, owner):
    """A block that is parked now: no thread has noted it, and it waits for no stream."""
    return s.but(
        owner=put(logic, s.owner, block, to=owner),
        noted=lambda t, b: logic.no(b == block) & s.noted(t, b),
        wait=lambda b, x: logic.ite(b == block, logic.none, s.wait(b, x)),
        via=lambda b, worker, x: logic.ite(b == block, s.after(b, worker, x), s.via(b, worker, x)),
    )


def is_of_its_capture(logic, s, block, stream):
    return is_same_capture(logic, s, s.born(block), stream)


def is_after_captured(logic, s, block, stream):
    return logic.every(("stream",), lambda w: logic.implies(s.runs(w), s.after(block, w, stream)))


def free_captured(logic, s, wrong, block, stream):
    possible = (s.place(block) == logic.live) & s.runs(stream) & is_after_captured(logic, s, block, stream)
    if wrong == "FreedMeansCaptured":
        possible = possible & is_ordered_outside(logic, s, block, stream)
    else:
        possible = possible & is_of_its_capture(logic, s, block, stream)
    place = logic.ite(s.ended(), logic.unowned, logic.owned)
    return possible, s.but(
        place=put(logic, s.place, block, to=place), owner=put(logic, s.owner, block, to=stream)
    )


def is_ordered_outside(logic, s, block, stream):
    """The program's duty for a block that a capture frees and that work outside of it used."""

    def is_ordered(worker):
        def has_it(x):
            is_named = s.open(x) | (x == s.home(stream)) | (x == s.home(s.born(block)))
            return is_named & s.after(block, worker, x)

        return s.runs(worker) | some(logic, ("stream",), has_it)

    return logic.every(("stream",), is_ordered)


def park(logic, s, wrong, block, stream):
    """A capture frees a block that work outside of it may use."""
    possible = (s.place(block) == logic.live) & s.runs(stream) & is_after_captured(logic, s, block, stream)
    possible = possible & logic.no(is_of_its_capture(logic, s, block, stream))
    possible = possible & is_ordered_outside(logic, s, block, stream)
    allocator, home = s.home(s.born(block)), s.home(stream)

    def closes(x):
        return (x == home) if wrong == "OpenForgotten" else s.open(x) | (x == home)

    has_fence = logic.no(closes(allocator) | captures(logic, s, allocator))
    no_fence = logic.no(closes(allocator)) & captures(logic, s, allocator)
    if wrong == "AllocatorForgotten":
        has_fence = no_fence = False

    def wait(b, x):
        fence = logic.ite((x == allocator) & has_fence, logic.fence, logic.none)
        return logic.ite(b == block, logic.ite(closes(x), logic.close, fence), s.wait(b, x))

    return possible, new_parked(logic, s, block, stream).but(
        place=put(logic, s.place, block, to=logic.ite(s.ended(), logic.unowned, logic.parked)),
        goes=put(logic, s.goes, block, to=True),
        device=put(logic, s.device, block, to=no_fence),
        wait=wait,
        of_fence=lambda b, x, worker: logic.ite(b == block, s.after(b, worker, x), s.of_fence(b, x, worker)),
    )


def park_unknown(logic, s, wrong, block, stream):
    """A free on a stream that the driver cannot answer for: the block waits for the device."""
    is_outside = logic.no(is_captured(logic, s, stream))
    possible = (s.place(block) == logic.live) & is_outside & comes_after(logic, s, block, stream)
    return possible, new_parked(logic, s, block, stream).but(
        place=put(logic, s.place, block, to=logic.ite(s.ended(), logic.unowned, logic.parked)),
        goes=put(logic, s.goes, block, to=False),
        device=put(logic, s.device, block, to=True),
    )


def withhold(logic, s, wrong, block):
    """A graph outside of the scope frees a block."""
    place = logic.unowned if wrong == "OtherGraphForgotten" else logic.withheld
    return s.place(block) == logic.live, s.but(
        place=put(logic, s.place, block, to=logic.ite(s.ended(), logic.unowned, place))
    )


def open_scope(logic, s, wrong, stream):
    possible = logic.no(s.ended() | s.open(stream) | is_captured(logic, s, stream))
    return possible, s.but(open=put(logic, s.open, stream, to=True))


def close_scope(logic, s, wrong, stream):
    """After the last close, blocks of ended captures are free. The program ends a capture before."""
    none_runs = logic.every(("stream",), lambda x: logic.no(s.runs(x)))
    is_last = logic.every(("stream",), lambda x: (x == stream) | logic.no(s.open(x)))
    frees = True if wrong == "CloseFreesAll" else is_last
    possible = s.open(stream) & logic.no(captures(logic, s, stream)) & logic.implies(is_last, none_runs)

    def place(b):
        is_free = (s.place(b) == logic.owned) & is_captured(logic, s, s.owner(b)) & frees
        return logic.ite(is_free, logic.unowned, s.place(b))

    return possible, s.but(
        open=put(logic, s.open, stream, to=False),
        place=place,
        goes=lambda b: s.goes(b) & logic.no(is_last),
    )


def begin_record(logic, s, wrong, thread, stream):
    """After a close, a thread records an event on a stream for which parked blocks wait."""
    possible = (s.call(thread) == logic.idle) & logic.no(is_captured(logic, s, stream))
    return possible, s.but(
        call=put(logic, s.call, thread, to=logic.record),
        of=put(logic, s.of, thread, to=stream),
        made=put(logic, s.made, thread, to=False),
        noted=lambda t, b: logic.ite(t == thread, s.place(b) == logic.parked, s.noted(t, b)),
    )


def settle_record(logic, s, wrong, thread):
    stream, made = s.of(thread), s.made(thread)

    def is_its(b, x):
        is_noted = True if wrong == "CloseCoversLater" else s.noted(thread, b)
        waits = (s.place(b) == logic.parked) & (s.wait(b, x) == logic.close)
        return waits & is_noted & (x == stream)

    return s.call(thread) == logic.record, s.but(
        wait=lambda b, x: logic.ite(is_its(b, x), logic.ite(made, logic.fence, logic.none), s.wait(b, x)),
        device=lambda b: s.device(b) | (is_its(b, stream) & logic.no(made)),
        of_fence=lambda b, x, worker: logic.ite(
            is_its(b, x), s.of_call(thread, b, worker), s.of_fence(b, x, worker)
        ),
        call=put(logic, s.call, thread, to=logic.idle),
    )


def begin_query(logic, s, wrong, thread, stream):
    return (s.call(thread) == logic.idle) & s.has_event(stream), s.but(
        call=put(logic, s.call, thread, to=logic.query),
        of=put(logic, s.of, thread, to=stream),
        ends=put(logic, s.ends, thread, to=s.upto(stream)),
        made=put(logic, s.made, thread, to=False),
        of_call=lambda t, b, worker: logic.ite(
            t == thread, s.of_event(stream, b, worker), s.of_call(t, b, worker)
        ),
        has_event=put(logic, s.has_event, stream, to=False),
    )


def reached(logic, s, wrong, thread):
    possible = (s.call(thread) == logic.query) & logic.no(s.made(thread))
    learned = learn(logic, s, lambda b, worker: s.of_call(thread, b, worker))
    return possible, learned.but(made=put(logic, s.made, thread, to=True))


def end_query(logic, s, wrong, thread):
    stream, made = s.of(thread), s.made(thread)
    kept = keep_event(logic, s, None, thread, logic.no(made))

    def place(b):
        is_its = (s.place(b) == logic.owned) & (s.owner(b) == stream) & made
        if wrong != "QueryCoversLater":
            is_its = is_its & (s.freed(b) <= s.ends(thread))
        return logic.ite(is_its, logic.unowned, s.place(b))

    return s.call(thread) == logic.query, kept.but(
        place=place, call=put(logic, s.call, thread, to=logic.idle)
    )


def fence_reached(logic, s, wrong, block, stream):
    possible = (s.place(block) == logic.parked) & (s.wait(block, stream) == logic.fence)
    learned = learn(logic, s, lambda b, worker: (b == block) & s.of_fence(b, stream, worker))
    return possible, learned.but(
        wait=lambda b, x: logic.ite((b == block) & (x == stream), logic.none, s.wait(b, x))
    )


def begin_device(logic, s, wrong, thread):
    return s.call(thread) == logic.idle, s.but(
        call=put(logic, s.call, thread, to=logic.device_wait),
        made=put(logic, s.made, thread, to=False),
        noted=lambda t, b: logic.ite(t == thread, s.place(b) == logic.parked, s.noted(t, b)),
        seen=lambda t, x: logic.ite(t == thread, s.tickets(x), s.seen(t, x)),
    )


def make_device(logic, s, wrong, thread):
    possible = (s.call(thread) == logic.device_wait) & logic.no(s.made(thread))
    learned = learn(logic, s, lambda b, worker: logic.no(is_captured(logic, s, worker)))
    return possible, learned.but(made=put(logic, s.made, thread, to=True))


def end_device(logic, s, wrong, thread):
    """Ends a wait for the device, or gives it up if the driver refused it."""
    made, covers_later = s.made(thread), wrong == "DeviceCoversLater"

    def place(b):
        owner = s.owner(b)
        is_its = (s.place(b) == logic.owned) & logic.no(is_captured(logic, s, owner)) & made
        if not covers_later:
            is_its = is_its & (s.freed(b) <= s.seen(thread, owner))
        return logic.ite(is_its, logic.unowned, s.place(b))

    def is_over(b):
        is_noted = True if covers_later else s.noted(thread, b)
        return (s.place(b) == logic.parked) & is_noted & made

    return s.call(thread) == logic.device_wait, s.but(
        place=place,
        wait=lambda b, x: logic.ite(is_over(b), logic.none, s.wait(b, x)),
        device=lambda b: s.device(b) & logic.no(is_over(b)),
        call=put(logic, s.call, thread, to=logic.idle),
    )


def ready(logic, s, wrong, block):
    """A parked block that waits for nothing is free: for its capture while that goes on, or for all."""
    nothing = logic.every(("stream",), lambda x: s.wait(block, x) == logic.none) & logic.no(s.device(block))
    goes = False if wrong == "ReadyForAll" else s.goes(block)
    return (s.place(block) == logic.parked) & nothing, s.but(
        place=put(logic, s.place, block, to=logic.ite(goes, logic.owned, logic.unowned))
    )


def begin_capture(logic, s, wrong, stream, first):
    """A stream is captured; or it joins the capture that began on `first`."""
    is_first = (first == stream) | (s.runs(first) & (s.capture(first) == first))
    unused = logic.no(s.runs(stream)) & logic.no(captures(logic, s, s.home(stream)))
    is_new = logic.every(("block",), lambda b: logic.no((s.owner(b) == stream) | (s.born(b) == stream)))
    # The driver numbers each capture anew.
    is_numbered = logic.every(("stream",), lambda x: (x == stream) | logic.no(s.capture(x) == stream))
    is_new = is_new & logic.implies(first == stream, is_numbered)
    return is_captured(logic, s, stream) & unused & is_new & is_first & logic.no(s.ended()), s.but(
        runs=put(logic, s.runs, stream, to=True), capture=put(logic, s.capture, stream, to=first)
    )


def end_capture(logic, s, wrong, stream):
    """Launches of the graph come later, and the program orders them."""

    def is_its(x):
        return s.runs(x) & (s.capture(x) == stream)

    ended = learn(logic, s, lambda b, worker: is_its(worker))
    return s.runs(stream) & (s.capture(stream) == stream), ended.but(
        runs=lambda x: s.runs(x) & logic.no(is_its(x))
    )


def launch(logic, s, wrong, block):
    """The program launches a graph that uses the block, before the scope ends."""
    possible = logic.no(s.ended()) & logic.no(s.place(block) == logic.upstream)
    return possible, s.but(launched=put(logic, s.launched, block, to=True))


def end_scope(logic, s, wrong):
    none_runs = logic.every(("stream",), lambda x: logic.no(s.runs(x) | s.open(x)))
    return logic.no(s.ended()) & none_runs, s.but(ended=lambda: s.ended() | True)


def remove(logic, s, wrong, block):
    place = s.place(block)
    is_free = (place == logic.owned) | (place == logic.parked) | (place == logic.withheld)
    return s.ended() & (is_free | (place == logic.unowned)), s.but(
        place=put(logic, s.place, block, to=logic.removed),
        waited=put(logic, s.waited, block, to=False),
    )


def wait_for_removed(logic, s, wrong):
    """A thread waits for the device. The memory that was removed before may then go back."""
    learned = learn(logic, s, lambda b, worker: logic.no(is_captured(logic, s, worker)))
    return s.ended(), learned.but(
        waited=lambda b: s.waited(b) | (s.place(b) == logic.removed), launched=lambda b: s.launched(b) & False
    )


def give_back(logic, s, wrong, block):
    possible = s.place(block) == logic.removed
    if wrong != "ReturnWithoutWait":
        possible = possible & s.waited(block)
    return possible, s.but(place=put(logic, s.place, block, to=logic.upstream))


def restore(logic, s, wrong, block):
    return s.place(block) == logic.removed, s.but(place=put(logic, s.place, block, to=logic.unowned))


STEPS = {
    "Take": (take, ("block", "stream")),
    "Use": (use, ("block", "stream")),
    "Order": (order, ("stream", "stream")),
    "BeginFree": (begin_free, ("thread", "block", "stream")),
    "MakeRecord": (record, ("thread",)),
    "EndFree": (end_free, ("thread",)),
    "FreeCaptured": (free_captured, ("block", "stream")),
    "Park": (park, ("block", "stream")),
    "ParkUnknown": (park_unknown, ("block", "stream")),
    "Withhold": (withhold, ("block",)),
    "Open": (open_scope, ("stream",)),
    "Close": (close_scope, ("stream",)),
    "BeginRecord": (begin_record, ("thread", "stream")),
    "SettleRecord": (settle_record, ("thread",)),
    "BeginQuery": (begin_query, ("thread", "stream")),
    "Reached": (reached, ("thread",)),
    "EndQuery": (end_query, ("thread",)),
    "FenceReached": (fence_reached, ("block", "stream")),
    "BeginDevice": (begin_device, ("thread",)),
    "MakeDevice": (make_device, ("thread",)),
    "EndDevice": (end_device, ("thread",)),
    "Ready": (ready, ("block",)),
    "BeginCapture": (begin_capture, ("stream", "stream")),
    "EndCapture": (end_capture, ("stream",)),
    "Launch": (launch, ("block",)),
    "EndScope": (end_scope, ()),
    "Remove": (remove, ("block",)),
    "WaitForRemoved": (wait_for_removed, ()),
    "GiveBack": (give_back, ("block",)),
    "Restore": (restore, ("block",)),
}
MORE_STEPS = {}

MISTAKES = {
    "FreedMeansCaptured": ("FreeCaptured",),
    "RecordInCapture": ("MakeRecord",),
    "TicketAfterRecord": ("EndFree",),
    "OldEventNewTicket": ("EndFree",),
    "OpenForgotten": ("Park",),
    "AllocatorForgotten": ("Park",),
    "CloseFreesAll": ("Close",),
    "CloseCoversLater": ("SettleRecord",),
    "QueryCoversLater": ("EndQuery",),
    "DeviceCoversLater": ("EndDevice",),
    "ReadyForAll": ("Ready",),
    "OtherGraphForgotten": ("Withhold",),
    "ReturnWithoutWait": ("GiveBack",),
}


# The rule and the invariant.


def start(logic, s):
    """The scope has memory that no work uses, and nothing is under way."""

    def streams(x):
        is_known = (s.home(s.home(x)) == s.home(x)) & (s.capture(x) == x)
        return is_known & logic.no(s.runs(x) | s.open(x) | s.has_event(x)) & (s.tickets(x) == 0)

    def blocks(b, worker, x):
        is_new = (s.place(b) == logic.unowned) & s.after(b, worker, x) & logic.no(s.goes(b) | s.launched(b))
        return is_new & (s.owner(b) == s.home(s.owner(b))) & (s.born(b) == s.home(s.born(b)))

    return (
        logic.no(s.ended())
        & logic.every(("stream",), streams)
        & logic.every(("block", "stream", "stream"), blocks)
        & logic.every(("thread",), lambda thread: s.call(thread) == logic.idle)
    )


def rule(logic, s):
    def is_taken_late(b, x, worker):
        return logic.implies(take(logic, s, None, b, x)[0], s.after(b, worker, x))

    def is_returned_late(b, x, worker):
        return logic.implies(s.place(b) == logic.upstream, s.after(b, worker, x) & logic.no(s.launched(b)))

    return logic.every(("block", "stream", "stream"), is_taken_late) & logic.every(
        ("block", "stream", "stream"), is_returned_late
    )


def part_1(logic, s):
    def part(b, worker, x):
        is_free = (s.place(b) == logic.unowned) & logic.no(s.ended())
        return logic.implies(is_free, s.after(b, worker, x))

    return logic.every(("block", "stream", "stream"), part)


def is_owned(logic, s, b):
    return (s.place(b) == logic.owned) | (s.place(b) == logic.freeing)


def part_2(logic, s):
    """The owner comes after all work."""

    def part(b, worker):
        return logic.implies(is_owned(logic, s, b), s.after(b, worker, s.owner(b)))

    return logic.every(("block", "stream"), part)


def part_3(logic, s):
    """What a capture allocated or owns has no work outside of it that is not done."""

    def part(b, worker, x):
        owns = (s.place(b) == logic.owned) & is_captured(logic, s, s.owner(b))
        bore = (s.place(b) == logic.live) & s.runs(s.born(b))
        is_outside = logic.no(is_captured(logic, s, worker))
        return logic.implies((owns | bore) & is_outside, s.after(b, worker, x))

    return logic.every(("block", "stream", "stream"), part)


def is_within(logic, s, b, stream, ticket):
    """Whether the block's free on the stream has this ticket or an earlier one."""
    return is_owned(logic, s, b) & (s.owner(b) == stream) & (s.freed(b) <= ticket)


def part_4(logic, s):
    """A stream's event covers the frees up to its ticket."""

    def part(b, worker, x, y):
        is_its = s.has_event(x) & logic.no(is_captured(logic, s, x)) & is_within(logic, s, b, x, s.upto(x))
        return logic.implies(is_its, s.of_event(x, b, worker) | s.after(b, worker, y))

    return logic.every(("block", "stream", "stream", "stream"), part)


def part_5(logic, s):
    """So does the event of a thread that frees or queries."""

    def part(t, b, worker, y):
        frees = (s.call(t) == logic.free) & s.made(t)
        queries = s.call(t) == logic.query
        is_its = (frees | queries) & is_within(logic, s, b, s.of(t), s.ends(t))
        is_learned = logic.implies(queries & s.made(t), s.after(b, worker, y))
        return logic.implies(is_its, (s.of_call(t, b, worker) | s.after(b, worker, y)) & is_learned)

    return logic.every(("thread", "block", "stream", "stream"), part)


def part_6(logic, s):
    """A thread that frees has the block and its ticket. Two threads have different blocks."""

    def part(t, other):
        b, frees = s.item(t), s.call(t) == logic.free
        is_its = (s.place(b) == logic.freeing) & (s.owner(b) == s.of(t)) & (s.freed(b) == s.ends(t))
        both = frees & (s.call(other) == logic.free) & (s.item(other) == b)
        return logic.implies(frees, is_its) & logic.implies(both, t == other)

    return logic.every(("thread", "thread"), part)


def part_7(logic, s):
    """A parked block waits for all work on it that is not done."""

    def part(b, worker, y):
        def waits(x):
            fence = (s.wait(b, x) == logic.fence) & s.of_fence(b, x, worker)
            return s.via(b, worker, x) & ((s.wait(b, x) == logic.close) | fence)

        is_noted = s.after(b, worker, y) | s.device(b) | some(logic, ("stream",), waits)
        outside = logic.implies(logic.no(is_captured(logic, s, worker)), is_noted)
        return logic.implies(s.place(b) == logic.parked, outside)

    return logic.every(("block", "stream", "stream"), part)


def part_8(logic, s):
    """A parked block comes after captured work on it, or that work is done."""

    def part(b, worker, y):
        parked = (s.place(b) == logic.parked) & is_captured(logic, s, worker)
        goes = s.goes(b) & is_captured(logic, s, s.owner(b)) & s.after(b, worker, s.owner(b))
        return logic.implies(parked, goes | (s.after(b, worker, y) & logic.no(s.goes(b))))

    return logic.every(("block", "stream", "stream"), part)


def part_9(logic, s):
    """A record for parked blocks covers what their streams came after when they were parked."""

    def part(t, b, worker, x):
        is_parked = s.place(b) == logic.parked
        had = logic.implies(is_parked & s.via(b, worker, x), s.after(b, worker, x))
        noted = (s.call(t) == logic.record) & s.made(t) & s.noted(t, b) & is_parked
        return had & logic.implies(noted & s.via(b, worker, s.of(t)), s.of_call(t, b, worker))

    return logic.every(("thread", "block", "stream", "stream"), part)


def part_10(logic, s):
    """A wait for the device that was made covers the frees and the parked blocks before it."""

    def part(t, b, worker, y):
        owner = s.owner(b)
        is_free = is_owned(logic, s, b) & (s.freed(b) <= s.seen(t, owner))
        is_free = is_free & logic.no(is_captured(logic, s, owner))
        is_parked = (s.place(b) == logic.parked) & s.noted(t, b)
        made = (s.call(t) == logic.device_wait) & s.made(t) & logic.no(is_captured(logic, s, worker))
        return logic.implies(made & (is_free | is_parked), s.after(b, worker, y))

    return logic.every(("thread", "block", "stream", "stream"), part)


def part_11(logic, s):
    """Only streams of a capture come after its work before it ends. An ended capture has no work."""

    def part(b, worker, y, z):
        is_inside = s.runs(y) & (s.capture(y) == s.capture(worker)) & s.runs(worker)
        is_known = is_captured(logic, s, worker) & logic.no(is_inside)
        over = is_captured(logic, s, worker) & logic.no(s.runs(worker))
        return logic.implies(is_known & s.after(b, worker, y), s.after(b, worker, z)) & logic.implies(
            over, s.after(b, worker, z)
        )

    return logic.every(("block", "stream", "stream", "stream"), part)


def part_12(logic, s):
    """Tickets count up."""

    def of_block(b):
        is_outside = is_owned(logic, s, b) & logic.no(is_captured(logic, s, s.owner(b)))
        return logic.implies(is_outside, s.freed(b) <= s.tickets(s.owner(b)))

    def of_thread(t, x):
        has_ticket = (s.call(t) == logic.free) | (s.call(t) == logic.query)
        is_past = logic.implies(has_ticket, s.ends(t) <= s.tickets(s.of(t)))
        return is_past & logic.implies(s.call(t) == logic.device_wait, s.seen(t, x) <= s.tickets(x))

    def of_stream(x):
        return logic.implies(s.has_event(x), s.upto(x) <= s.tickets(x))

    return (
        logic.every(("block",), of_block)
        & logic.every(("thread", "stream"), of_thread)
        & logic.every(("stream",), of_stream)
    )


def part_13(logic, s):
    """The sides of streams: a capture's streams have a home, and frees with tickets are outside."""

    def of_stream(x):
        is_home = s.home(s.home(x)) == s.home(x)
        outside = logic.implies(s.open(x) | s.has_event(x), logic.no(is_captured(logic, s, x)))
        first = s.capture(x)
        inside = is_captured(logic, s, x) & s.runs(first) & (s.capture(first) == first)
        return is_home & outside & logic.implies(s.runs(x), inside)

    def of_thread(t):
        return logic.implies(
            logic.no((s.call(t) == logic.idle) | (s.call(t) == logic.device_wait)),
            logic.no(is_captured(logic, s, s.of(t))),
        )

    def of_block(b):
        is_outside = logic.no(is_captured(logic, s, s.owner(b)))
        goes = (s.place(b) == logic.parked) & s.goes(b)
        return logic.implies(s.place(b) == logic.freeing, is_outside) & logic.no(goes & is_outside)

    def of_capture(x, y):
        is_inside = is_captured(logic, s, x) & s.runs(y) & (s.capture(x) == s.capture(y))
        return logic.implies(is_inside, s.runs(x))

    return (
        logic.every(("stream",), of_stream)
        & logic.every(("stream", "stream"), of_capture)
        & logic.every(("thread",), of_thread)
        & logic.every(("block",), of_block)
    )


def part_14(logic, s):
    """Memory goes back after all work and launches."""

    def part(b, worker, x):
        is_back = ((s.place(b) == logic.removed) & s.waited(b)) | (s.place(b) == logic.upstream)
        is_over = s.after(b, worker, x) & logic.no(s.launched(b)) & s.ended()
        return logic.implies(is_back, is_over)

    ended = logic.every(("stream",), lambda x: logic.implies(s.ended(), logic.no(s.runs(x) | s.open(x))))
    removed = logic.every(("block",), lambda b: logic.implies(s.place(b) == logic.removed, s.ended()))
    return ended & removed & logic.every(("block", "stream", "stream"), part)


PARTS = parts_of(globals())
