"""Compares the proof's formulas with the model in Rust, over Python's values.

    scripts/proof/compare.py STEPS

STEPS is a file that a test of the model wrote: states, the parts of the invariant that each breaks, whether
it breaks the rule, and every step that is possible from it. In each state, the formulas must find the same
parts, the same possible steps, and the same next states. Some steps contain a mistake. There, the same
mistake in the formulas must lead to the same states, and the formulas without it must not.
"""

import collections
import itertools
import json
import random
import re
import sys
import time

from model import FIELDS, MISTAKES, PARTS, STEPS, rule, start
from values import Values

# Rust's text of a value, as JSON.
TO_JSON = [
    (re.compile(r"(\w+)\((\d+)\)"), r'{"is": "\1", "of": \2}'),
    (re.compile(r"(\w+) \{ "), r'{"is": "\1", '),
    (re.compile(r"(\w+): "), r'"\1": '),
    (re.compile(r"(?<![\"\w])([A-Z]\w*)"), r'{"is": "\1"}'),
]


def read(text):
    for pattern, json_text in TO_JSON:
        text = pattern.sub(json_text, text)
    return json.loads(text)


def tables(text, sizes):
    """Returns the table of each field of a state. Fields that a thread or block does not use are missing."""
    state = read(text)
    fields = {name: {} for name in FIELDS}
    streams = range(sizes["stream"])

    def put(at, **values):
        for name, value in values.items():
            if name in ("notes", "seen", "recorded_seen", "before", "covered", "held"):
                second = range(sizes[FIELDS[name][0][1]])
                is_bits = isinstance(value, int)
                fields[name].update({(at, i): bool(value >> i & 1) if is_bits else value[i] for i in second})
            else:
                fields[name][at,] = value

    for at, it in zip(streams, state["streams"], strict=False):
        names = ("exists", "epoch", "has_event", "recorded", "recorded_seen", "seen")
        put(at, known=it["is_known"], **{name: it[name] for name in names})
    for at, it in zip(range(sizes["block"]), state["blocks"], strict=False):
        place = it["place"]
        put(at, place=place["is"].lower(), done=it["is_done"])
        put(at, **{name: it[name] for name in ("before", "covered", "held")})
        if "owner" in place:
            put(at, owner=place["owner"], freed=place["epoch"])
    for at, it in zip(range(sizes["thread"]), state["calls"], strict=False):
        put(at, call=it["is"].lower())
        if "stream" in it:
            put(at, of=it["stream"], ends=it["epoch"], notes=it["seen"])
        if "epochs" in it:
            put(at, notes=it["epochs"])
        if "is_made" in it:
            put(at, made=it["is_made"])
        if "is_first" in it:
            put(at, first=it["is_first"], reached=it["is_reached"])
        if "stage" in it:
            put(at, stage=it["stage"]["is"].lower())
        if it.get("stage", {}).get("is") == "Waits":
            put(at, waiter=it["stage"]["of"])
    return fields


def filled(fields, logic, rng):
    """Gives unused fields random values: no formula may depend on them."""
    values = {
        "bool": [False, True],
        "int": range(8),
        "stage": ["picked", "reached", "waits"],
        "stream": range(logic.sizes["stream"]),
    }
    return {
        name: {
            at: fields[name][at] if at in fields[name] else rng.choice(values[value])
            for at in logic.places(index)
        }
        for name, (index, value) in FIELDS.items()
    }


def is_within(logic, scale, name, named, s, after):
    """The checker's scale takes steps away: it limits threads and epochs."""
    if name in ("Free", "BeginRecord", "Pick", "BeginDevice"):
        busy = sum(s.call(it) != "idle" for it in range(logic.sizes["thread"]))
        busy += sum(s.place(it) == "freeing" for it in range(logic.sizes["block"]))
        if busy >= scale["threads"]:
            return False
    if name == "BeginRecord" and s.epoch(named[1]) >= scale["epochs"]:
        return False
    streams = range(logic.sizes["stream"])
    return name != "BeginDevice" or all(after.epoch(it) <= scale["epochs"] for it in streams)


class Comparison:
    def __init__(self):
        self.rng = random.Random(35)
        self.counts = collections.Counter()
        # The parts that states broke; the names of steps; the mistakes that the right formulas do not make.
        self.parts, self.names, self.mistakes = set(), set(), set()
        self.latest = 0

    def start(self, text):
        """The first state tells how many streams, blocks and threads each state has."""
        state = read(text)
        sizes = {
            "stream": len(state["streams"]),
            "block": len(state["blocks"]),
            "thread": len(state["calls"]),
        }
        self.logic = Values(sizes, self.latest)
        self.logic.other = lambda stream: (stream + 1) % self.scale["streams"]
        assert start(self.logic, self.state(text)), f"this is no start: {text}"

    def state(self, text):
        return self.logic.state(filled(tables(text, self.logic.sizes), self.logic, self.rng))

    def compare(self, mistake, text, broken, races, steps):
        """Compares all answers about one state with Rust's."""
        logic = self.logic
        state = self.state(text)
        self.counts["states"] += 1
        found = [number for number, part in PARTS.items() if not part(logic, state)]
        assert found == broken, f"broken parts {found}, and not {broken}, in {text}"
        self.parts.update(found)
        assert races != rule(logic, state), f"the rule is {rule(logic, state)} in {text}"
        expected = {self.action(action): tables(next_text, logic.sizes) for action, next_text in steps}
        self.counts["steps"] += len(expected)
        wrong = self.steps(state, mistake, expected)
        assert not wrong, f"{wrong[0]} with the mistake {mistake} in {text}"
        if mistake and self.steps(state, None, expected):
            self.mistakes.add(mistake)
        self.names.update(name for name, _ in expected)

    def action(self, text):
        fields = read(text)
        name = fields["is"]
        return name, tuple(fields[sort] for sort in STEPS[name][1])

    def steps(self, state, mistake, expected):
        """Returns the differences between the steps of the formulas and the expected steps."""
        logic, wrong = self.logic, []
        for name, (step, sorts) in STEPS.items():
            for named in itertools.product(*[range(self.scale[f"{sort}s"]) for sort in sorts]):
                possible, after = step(logic, state, mistake, *named)
                possible = possible and is_within(logic, self.scale, name, named, state, after)
                table = expected.get((name, named))
                if possible != (table is not None):
                    wrong.append(f"{name} {named}: possible is {possible}")
                elif possible:
                    wrong += self.differences(name, named, after, table)
        return wrong

    def differences(self, name, named, after, expected):
        return [
            f"{name} {named}: {field}{at} is {getattr(after, field)(*at)} and not {value}"
            for field, table in expected.items()
            for at, value in table.items()
            if getattr(after, field)(*at) != value
        ]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    begin = time.process_time()
    comparison = Comparison()
    with open(sys.argv[1]) as file:
        lines = itertools.chain((line.rstrip("\n") for line in file), [""])
        line = next(lines)
        while line:
            kind, _, rest = line.partition(" ")
            following = None
            if kind == "latest":
                comparison.latest = int(rest)
            elif kind == "start":
                comparison.start(rest)
            elif kind == "Scale":
                comparison.scale = read(line)
            elif kind == "mistake":
                mistake = None if rest == "None" else rest.removeprefix("Some(").removesuffix(")")
            elif kind == "State":
                broken = [int(it) for it in json.loads(next(lines).partition(" ")[2])]
                races = next(lines) == "races true"
                steps = []
                while " => " in (following := next(lines)):
                    steps.append(following.split(" => "))
                comparison.compare(mistake, line, broken, races, steps)
            else:
                sys.exit(f"unknown line: {line}")
            line = next(lines, "") if following is None else following
    missing = (
        PARTS.keys() - comparison.parts
        | STEPS.keys() - comparison.names
        | MISTAKES.keys() - comparison.mistakes
    )
    assert not missing, f"these were never compared: {missing}"
    counts = comparison.counts
    print(
        f"the proof's formulas and the model agree in {counts['states']} states and {counts['steps']} steps,"
        f" in {time.process_time() - begin:.1f} s"
    )


if __name__ == "__main__":
    main()
