"""Compares the proof's formulas with the model in Rust, over Python's values.

    scripts/proof/compare.py MODEL STEPS

STEPS is a file that a test of the model in Rust wrote: states, the parts of the invariant that each breaks,
whether it breaks the rule, and every step that is possible from it. In each state, the formulas must find the
same parts, the same possible steps, and the same next states. Some steps contain a mistake. There, the same
mistake in the formulas must lead to the same states, and the formulas without it must not.
"""

import collections
import itertools
import json
import random
import sys
import time

import clients
import pool
from rust_text import is_within, read, sizes_of, tables
from values import Values

MODELS = {"pool": pool, "clients": clients}


def filled(model, fields, logic, rng):
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
        for name, (index, value) in model.FIELDS.items()
    }


class Comparison:
    def __init__(self, model):
        self.model = model
        self.rng = random.Random(35)
        self.counts = collections.Counter()
        # The parts that states broke; the names of steps; the mistakes that the right formulas do not make.
        self.parts, self.names, self.mistakes = set(), set(), set()
        self.latest = 0

    def start(self, text):
        """The first state tells how many streams, blocks and threads each state has."""
        self.logic = Values(self.model, sizes_of(read(text)), self.latest)
        self.logic.other = lambda stream: (stream + 1) % self.scale["streams"]
        assert self.model.start(self.logic, self.state(text)), f"this is no start: {text}"

    def state(self, text):
        return self.logic.state(filled(self.model, self.tables(text), self.logic, self.rng))

    def tables(self, text):
        return tables(self.model, text, self.logic.sizes)

    def compare(self, mistake, text, broken, races, steps):
        """Compares all answers about one state with Rust's."""
        logic = self.logic
        state = self.state(text)
        self.counts["states"] += 1
        found = [number for number, part in self.model.PARTS.items() if not part(logic, state)]
        assert found == broken, f"broken parts {found}, and not {broken}, in {text}"
        self.parts.update(found)
        holds = self.model.rule(logic, state)
        assert races != holds, f"the rule is {holds} in {text}"
        expected = {self.action(action): self.tables(next_text) for action, next_text in steps}
        self.counts["steps"] += len(expected)
        wrong = self.steps(state, mistake, expected)
        assert not wrong, f"{wrong[0]} with the mistake {mistake} in {text}"
        if mistake and self.steps(state, None, expected):
            self.mistakes.add(mistake)
        self.names.update(name for name, _ in expected)

    def action(self, text):
        fields = read(text)
        return fields.pop("is"), tuple(fields.values())

    def steps(self, state, mistake, expected):
        """Returns the differences between the steps of the formulas and the expected steps."""
        logic, wrong = self.logic, []
        for name, (step, sorts) in self.model.STEPS.items():
            for named in itertools.product(*map(self.values, sorts)):
                possible, after = step(logic, state, mistake, *named)
                possible = possible and is_within(self.model, logic, self.scale, name, named, state, after)
                table = expected.get((name, named))
                if possible != (table is not None):
                    wrong.append(f"{name} {named}: possible is {possible}")
                elif possible:
                    wrong += self.differences(name, named, after, table)
        return wrong

    def values(self, sort):
        return (False, True) if sort == "bool" else range(self.scale[f"{sort}s"])

    def differences(self, name, named, after, expected):
        return [
            f"{name} {named}: {field}{at} is {getattr(after, field)(*at)} and not {value}"
            for field, table in expected.items()
            for at, value in table.items()
            if getattr(after, field)(*at) != value
        ]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    begin = time.process_time()
    model = MODELS[sys.argv[1]]
    comparison = Comparison(model)
    with open(sys.argv[2]) as file:
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
        model.PARTS.keys() - comparison.parts
        | model.STEPS.keys() - comparison.names
        | model.MISTAKES.keys() - comparison.mistakes
    )
    assert not missing, f"these were never compared: {missing}"
    counts = comparison.counts
    print(
        f"the proof's formulas and the model of the {sys.argv[1]} agree in {counts['states']} states and"
        f" {counts['steps']} steps,"
        f" in {time.process_time() - begin:.1f} s"
    )


if __name__ == "__main__":
    main()
