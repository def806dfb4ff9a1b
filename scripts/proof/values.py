"""The logic of Python's values: a state is a table, and "for all" is a loop."""

import itertools

from formulas import State


class Values:
    """The logic of states of a size. An epoch is at most `latest`."""

    def __init__(self, model, sizes, latest):
        self.sizes = sizes
        self.latest = latest
        for kind in model.ENUMS:
            self.__dict__.update((it.name, it.name) for it in kind)
        # A constant is the first of its sort.
        self.__dict__.update((name, 0) for name in model.CONSTANTS)

    @staticmethod
    def no(it):
        return not it

    @staticmethod
    def ite(condition, yes, no):
        return yes if condition else no

    @staticmethod
    def implies(condition, it):
        return it if condition else True

    def every(self, sorts, formula):
        return all(formula(*at) for at in self.places(sorts))

    def other(self, stream):
        return (stream + 1) % self.sizes["stream"]

    def early_waiter(self, s, donor):
        known = [it for it in range(self.sizes["stream"]) if it != donor and s.known(it)]
        return min(known, default=donor)

    def places(self, sorts):
        """Returns all values that index a field."""
        return itertools.product(*[range(self.sizes[sort]) for sort in sorts])

    @staticmethod
    def state(fields):
        """Returns the state of these tables."""
        return State(**{name: lambda *at, table=table: table[at] for name, table in fields.items()})
