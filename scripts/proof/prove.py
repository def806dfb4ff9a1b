"""Proves the rules of the models of stream order, for any number of streams, blocks, threads and epochs.

    scripts/proof/prove.py [--each] [--full] [--model MODEL]…

The obligations: the invariant holds at the start; each step keeps each part of it; and the model's rule
follows from it. z3 looks for a counterexample of each. None exists if it answers "unsat". cvc5, another
solver, must give the same answer if it is installed.

Then the script tests itself. Each step must be possible from a state with the invariant, and each mistake
must break an obligation. z3 shows the state, and Python's values repeat the step. `--each` prints every
obligation with its time. `--full` asks cvc5 about each model, shows every obligation that a mistake breaks,
and leaves out each part of the invariant in turn: the proof must fail. All times are of the processor.
"""

import argparse
import functools
import itertools
import sys
import time

import clients
import pool
import scopes
import z3
from formulas import State
from values import Values

MODELS = {"pool": pool, "clients": clients, "scopes": scopes}
SORTS = {name: z3.DeclareSort(name.title()) for name in ("stream", "block", "thread")}
ONE_SECOND = 1000

try:
    import cvc5
except ImportError:
    cvc5 = None


class Terms:
    """The logic of z3's terms. Streams, blocks and threads are sorts without a size."""

    implies = staticmethod(z3.Implies)
    ite = staticmethod(z3.If)
    no = staticmethod(z3.Not)

    def __init__(self, model):
        self.types = {"bool": z3.BoolSort(), "int": z3.IntSort(), **SORTS}
        for kind in model.ENUMS:
            # A field may have the name of a value, and another model the name of a kind.
            sort, terms = z3.EnumSort(f"{model.__name__}.{kind.__name__}", [f"{it.name}!" for it in kind])
            self.types[kind.__name__.lower()] = sort
            self.__dict__.update(zip((it.name for it in kind), terms, strict=True))
        for name, sort in model.CONSTANTS.items():
            self.__dict__[name] = z3.Const(name, SORTS[sort])
        self.numbers = itertools.count()
        # What a mistake adds: an epoch, and a stream.
        self.latest = z3.Int("latest")
        self.another = z3.Const("another", SORTS["stream"])

    def every(self, sorts, formula):
        variables = [z3.Const(f"{sort}{next(self.numbers)}", SORTS[sort]) for sort in sorts]
        return z3.ForAll(variables, formula(*variables))

    def other(self, stream):
        return self.another

    def early_waiter(self, s, donor):
        return self.another


def ask_cvc5(text):
    """Returns the answer of cvc5 to the text of a question."""
    solver = cvc5.Solver()
    solver.setOption("tlimit-per", str(60 * ONE_SECOND))
    # The sorts have few terms, so that cvc5 can try them all.
    solver.setOption("enum-inst", "true")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, f"(set-logic ALL)\n{text}", "")
    answer = ""
    while not (command := parser.nextCommand()).isNull():
        answer += command.invoke(solver, parser.getSymbolManager())
    return answer.strip()


class Proof:
    """The obligations, and the counterexamples."""

    def __init__(self, model, show_each, is_full):
        self.model = model
        self.is_full = is_full
        # The scopes' model has the most questions.
        self.asks_cvc5 = cvc5 and (is_full or model is not scopes)
        self.steps = {**model.STEPS, **model.MORE_STEPS}
        self.logic = Terms(model)
        types = self.logic.types
        self.s = State(
            **{
                name: z3.Function(f"s.{name}", *[types[sort] for sort in (*index, value)])
                for name, (index, value) in model.FIELDS.items()
            }
        )
        self.invariant = {number: part(self.logic, self.s) for number, part in model.PARTS.items()}
        self.show_each = show_each
        self.slowest = (0, "none")
        self.failed = []
        self.cvc5_seconds = 0

    def step(self, name, wrong=None):
        """Returns what a step names, whether it is possible, and the next state."""
        step, sorts = self.steps[name]
        named = [z3.Const(f"{sort}{i}_of_step", self.logic.types[sort]) for i, sort in enumerate(sorts)]
        return named, *step(self.logic, self.s, wrong, *named)

    def prove(self, name, given, goal):
        """Asks for a state with the given formulas and without the goal. There must be none."""
        solver = z3.Solver()
        solver.set("timeout", 60 * ONE_SECOND)
        solver.add(*given, z3.Not(goal))
        begin = time.process_time()
        answer = solver.check()
        seconds = time.process_time() - begin
        self.slowest = max(self.slowest, (seconds, name))
        if self.show_each:
            print(f"{answer} {seconds:7.3f} s  {name}", flush=True)
        if answer != z3.unsat:
            self.failed.append(f"{name}: {answer} {solver.reason_unknown() if answer == z3.unknown else ''}")
        elif self.asks_cvc5:
            begin = time.process_time()
            answer = ask_cvc5(solver.to_smt2())
            self.cvc5_seconds += time.process_time() - begin
            if answer != "unsat":
                self.failed.append(f"{name}: z3 says unsat, and cvc5 {answer}")

    def obligations(self):
        logic, s = self.logic, self.s
        for number, part in self.invariant.items():
            yield f"the start has part {number}", [self.model.start(logic, s)], part
        yield "the rule follows", list(self.invariant.values()), self.model.rule(logic, s)
        for name in self.steps:
            _, possible, after = self.step(name)
            for number, part in self.model.PARTS.items():
                given = [*self.invariant.values(), possible]
                yield f"{name} keeps part {number}", given, part(logic, after)

    def few(self):
        """Says that there are few streams, blocks and threads, so that z3 can show a whole state."""
        sizes = {"stream": 3, "block": self.model.BLOCKS, "thread": 2}
        names = {sort: [z3.Const(f"{sort}_{i}", SORTS[sort]) for i in range(n)] for sort, n in sizes.items()}
        constants = [getattr(self.logic, it) == names[of][0] for it, of in self.model.CONSTANTS.items()]
        closed = [
            self.logic.every((sort,), lambda x, some=some: z3.Or([x == it for it in some]))
            for sort, some in names.items()
        ]
        different = [z3.Distinct(*some) for some in names.values() if len(some) > 1]
        small = [
            getattr(self.s, field)(*at) <= 9
            for field, (index, value) in self.model.FIELDS.items()
            for at in itertools.product(*[names[sort] for sort in index])
            if value == "int"
        ]
        return names, [*closed, *different, *constants, *small, self.logic.latest == 99]

    def example(self, name, wrong, *claims, without=None):
        """Returns a state with the invariant, except for a part, and a step. Claims are about its end."""
        named, possible, after = self.step(name, wrong)
        names, few = self.few()
        solver = z3.Solver()
        solver.set("timeout", 60 * ONE_SECOND)
        solver.add(*[part for number, part in self.invariant.items() if number != without])
        solver.add(*few, possible, *[claim(after) for claim in claims])
        if solver.check() != z3.sat:
            return None
        return Example(self, solver.model(), names, named)


class Example:
    """A counterexample of z3 as Python's values."""

    def __init__(self, proof, found, names, named):
        def value(term):
            term = found.eval(term, model_completion=True)
            for sort, some in names.items():
                if term.sort() == SORTS[sort]:
                    at = [found.eval(it, model_completion=True) for it in some]
                    return next(index for index, it in enumerate(at) if it.eq(term))
            if z3.is_int(term):
                return term.as_long()
            return z3.is_true(term) if z3.is_bool(term) else str(term).rstrip("!")

        fields = {}
        for name, (index, _) in proof.model.FIELDS.items():
            field = getattr(proof.s, name)
            places = itertools.product(*[range(len(names[sort])) for sort in index])
            fields[name] = {
                at: value(field(*[names[s][i] for s, i in zip(index, at, strict=True)])) for at in places
            }
        another = value(proof.logic.another)
        self.steps, self.parts = proof.steps, proof.model.PARTS
        sizes = {sort: len(some) for sort, some in names.items()}
        self.logic = Values(proof.model, sizes, value(proof.logic.latest))
        self.logic.other = lambda stream: another
        self.logic.early_waiter = lambda s, donor: another
        self.s = self.logic.state(fields)
        self.named = [value(it) for it in named]

    def check(self, name, wrong):
        """Repeats the step. Returns the parts of the invariant that the next state breaks."""
        assert not self.broken(self.s), f"{name}: z3's state breaks {self.broken(self.s)}"
        possible, after = self.steps[name][0](self.logic, self.s, wrong, *self.named)
        assert possible, f"{name}: the step is not possible from z3's state"
        return self.broken(after)

    def broken(self, s):
        return [number for number, part in self.parts.items() if not part(self.logic, s)]


def prove_all(proof):
    begin, count = time.process_time(), 0
    for obligation in proof.obligations():
        proof.prove(*obligation)
        count += 1
    seconds = time.process_time() - begin - proof.cvc5_seconds
    print(f"{count - len(proof.failed)} of {count} obligations are proved by z3, in {seconds:.1f} s")
    if proof.asks_cvc5:
        answers = "says the same" if not proof.failed else "was asked, too"
        print(f"cvc5 {cvc5.__version__} {answers}, in {proof.cvc5_seconds:.1f} s")
    else:
        why = "--full asks it" if cvc5 else "it is not installed"
        print(f"not checked: cvc5's answers, because {why}")
    print(f"the slowest took {proof.slowest[0]:.2f} s: {proof.slowest[1]}")
    return proof.failed


def test_possible(proof):
    """Each step is possible from a state with the invariant, or its obligations would prove nothing."""
    failed = []
    for name in proof.steps:
        example = proof.example(name, None)
        if example is None or example.check(name, None):
            failed.append(f"{name} is possible from no state with the invariant")
    count = len(proof.steps)
    print(f"{count - len(failed)} of {count} steps are possible from a state with the invariant")
    return failed


def test_mistakes(proof):
    failed = []
    for wrong in proof.model.MISTAKES:
        found = list(itertools.islice(broken_by(proof, wrong), None if proof.is_full else 1))
        print(f"{wrong}: {', '.join(found) or 'NOT FOUND'}", flush=True)
        if not found:
            failed.append(f"{wrong} breaks no obligation")
    return failed


def broken_by(proof, wrong):
    """Returns each obligation that fails with a mistake."""
    for name, (number, part) in itertools.product(proof.model.MISTAKES[wrong], proof.model.PARTS.items()):
        is_broken = functools.partial(lambda after, part: z3.Not(part(proof.logic, after)), part=part)
        example = proof.example(name, wrong, is_broken)
        if example and number in example.check(name, wrong):
            yield f"{name} breaks {number}"


def test_parts(proof):
    """Without any one of its parts, the rule does not follow, or a step breaks another part."""
    failed = []
    for number in proof.model.PARTS:
        found = next(uses(proof, number), None)
        print(f"part {number} is needed for: {found or 'NOTHING'}", flush=True)
        if not found:
            failed.append(f"the proof holds without part {number}")
    return failed


def uses(proof, number):
    """Returns each obligation that fails without a part."""
    logic, others = proof.logic, [part for other, part in proof.invariant.items() if other != number]
    solver = z3.Solver()
    solver.add(*others, *proof.few()[1], z3.Not(proof.model.rule(logic, proof.s)))
    if solver.check() == z3.sat:
        yield "the rule"
    for name, (other, part) in itertools.product(proof.steps, proof.model.PARTS.items()):
        is_broken = functools.partial(lambda after, part: z3.Not(part(logic, after)), part=part)
        if other != number and (example := proof.example(name, None, is_broken, without=number)):
            possible, after = proof.steps[name][0](example.logic, example.s, None, *example.named)
            if possible and example.broken(example.s) == [number] and other in example.broken(after):
                yield f"{name} keeps part {other}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--each", action="store_true", help="print every obligation with its time")
    parser.add_argument("--full", action="store_true", help="ask more questions")
    parser.add_argument("--model", choices=MODELS, action="append", help="prove only this model")
    arguments = parser.parse_args()
    print(f"z3 {z3.get_version_string()}")
    failed = []
    for name in arguments.model or MODELS:
        print(f"the model of the {name}:")
        proof = Proof(MODELS[name], arguments.each, arguments.full)
        failed += prove_all(proof) + test_possible(proof) + test_mistakes(proof)
        if arguments.full:
            failed += test_parts(proof)
    for line in failed:
        print(f"FAILED: {line}", file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
