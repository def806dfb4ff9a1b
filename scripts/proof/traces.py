"""Makes random runs of the scopes' model, which a test in Rust repeats with a real scope.

    scripts/proof/traces.py >resources/src/capture_scopes/traces.txt

Each line is a call, and what the model then believes about each block. Then follows a run with each of some
mistakes in the model. There, the real scope must differ.
"""

import itertools
import random

import scopes
from values import Values

# Streams outside of captures, and the captured sides of each.
HOMES, SIDES, BLOCKS = 2, 3, 3
STREAMS = HOMES * (1 + SIDES)
SIZES = {"stream": STREAMS, "block": BLOCKS, "thread": 1}
RUNS, CALLS = 40, 30


def default(value):
    return {"bool": False, "place": "unowned", "wait": "none", "call": "idle"}.get(value, 0)


class Run:
    def __init__(self, rng, mistake):
        self.rng, self.mistake, self.logic = rng, mistake, Values(scopes, SIZES, 0)
        self.fields = {
            name: dict.fromkeys(self.logic.places(index), default(value))
            for name, (index, value) in scopes.FIELDS.items()
        }
        self.fields["after"] = dict.fromkeys(self.fields["after"], True)
        for stream in range(STREAMS):
            self.fields["home"][stream,] = stream % HOMES
            self.fields["capture"][stream,] = stream
        assert scopes.start(self.logic, self.state())

    def state(self):
        return self.logic.state(self.fields)

    def step(self, name, *named):
        """Takes a step. Returns whether it is possible."""
        s = self.state()
        possible, after = scopes.STEPS[name][0](self.logic, s, self.mistake, *named)
        if possible:
            self.fields = {
                field: {at: getattr(after, field)(*at) for at in table}
                for field, table in self.fields.items()
            }
        return possible

    def blocks(self):
        return range(BLOCKS)

    def settle_all(self):
        for block in self.blocks():
            self.step("Ready", block)

    def call(self):
        """Tries a random call. Returns its text, or None."""
        kind = self.rng.choice(
            ["take", "take", "take", "use", "use", "free", "free", "free", "order", "open", "close"]
            + ["capture", "capture", "stop", "query", "device"]
        )
        block, stream = self.rng.randrange(BLOCKS), self.rng.randrange(STREAMS)
        home, s = stream % HOMES, self.state()
        if kind == "take":
            return self.step("Take", block, stream) and f"take {block} {stream}"
        if kind == "use":
            return self.step("Use", block, stream) and f"use {block} {stream}"
        if kind == "order":
            return self.step("Order", home, (home + 1) % HOMES) and f"order {home} {(home + 1) % HOMES}"
        if kind == "open":
            return self.step("Open", home) and f"open {home}"
        if kind == "close":
            return self.close(home) and f"close {home}"
        if kind == "capture":
            return self.step("BeginCapture", stream, stream) and f"capture {stream}"
        if kind == "stop":
            return self.step("EndCapture", stream) and f"stop {stream}"
        if kind == "query":
            return self.rng.random() < 0.3 and self.query() and "query"
        if kind == "device":
            done = not any(s.runs(x) for x in range(STREAMS)) and self.step("BeginDevice", 0)
            if done:
                self.step("MakeDevice", 0)
                self.step("EndDevice", 0)
                self.settle_all()
            return done and "device"
        return self.free(block, stream) and f"free {block} {stream}"

    def free(self, block, stream):
        s = self.state()
        if stream < HOMES:
            if not self.step("BeginFree", 0, block, stream):
                return False
            self.step("MakeRecord", 0)
            return self.step("EndFree", 0)
        if not s.runs(stream):
            return False
        if not s.open(s.home(stream)):
            return self.step("Withhold", block)
        return self.step("FreeCaptured", block, stream) or self.step("Park", block, stream)

    def close(self, stream):
        if not self.step("Close", stream):
            return False
        s = self.state()
        is_last = not any(s.open(x) for x in range(HOMES))
        for other in range(HOMES):
            waits = any(s.place(b) == "parked" and s.wait(b, other) == "close" for b in self.blocks())
            if waits and (is_last or other == stream):
                self.step("BeginRecord", 0, other)
                self.step("MakeRecord", 0)
                self.step("SettleRecord", 0)
        return True

    def query(self):
        """All work is done, and the scope asks about each event."""
        for stream in range(HOMES):
            if self.step("BeginQuery", 0, stream):
                self.step("Reached", 0)
                self.step("EndQuery", 0)
        for block in self.blocks():
            for stream in range(HOMES):
                self.step("FenceReached", block, stream)
        self.settle_all()
        return True

    def belief(self, block):
        s = self.state()
        place = s.place(block)
        if place == "owned":
            return f"owned:{s.owner(block)}"
        if place == "parked":
            # The scope does not know the streams of its events.
            waits = [f"close{x}" for x in range(HOMES) if s.wait(block, x) == "close"]
            waits += ["fence" for x in range(HOMES) if s.wait(block, x) == "fence"]
            waits += ["device"] if s.device(block) else []
            goes = s.owner(block) if s.goes(block) else "all"
            return ":".join(["parked", str(goes), *sorted(waits)])
        return place


# Mistakes after which these calls show another belief.
SHOWN = ["FreedMeansCaptured", "OpenForgotten", "AllocatorForgotten", "CloseFreesAll", "ReadyForAll"]
SHOWN += ["OtherGraphForgotten"]


def lines(seed, mistake):
    """Returns the lines of a run."""
    run, found = Run(random.Random(seed), mistake), []
    while len(found) < CALLS:
        text = run.call()
        if text:
            holds = mistake or scopes.rule(run.logic, run.state())
            assert holds, f"seed {seed}: {text} breaks the rule"
            found.append(f"{text} | {' '.join(run.belief(block) for block in run.blocks())}")
    return found


def shows(seed, mistake):
    """Whether a mistake changes a belief of a run before it changes a call."""
    pairs = zip(lines(seed, mistake), lines(seed, None), strict=True)
    wrong, right = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
    return wrong != right and wrong.split(" | ")[0] == right.split(" | ")[0]


def main():
    for mistake in [None, *SHOWN]:
        seeds = itertools.count() if mistake else range(RUNS)
        if mistake:
            seeds = [next(seed for seed in seeds if shows(seed, mistake))]
        print(f"mistake {mistake}")
        for seed in seeds:
            print("scope", *lines(seed, mistake), sep="\n")


if __name__ == "__main__":
    main()
